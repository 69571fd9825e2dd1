"""Stacks of independent generators: the counterpart of `nets.critics`, for warming up every critic against its own.

A generator runs the blocks of a convolutional critic backwards: a dense layer to the last map, then the transposes of
its convolutions, each followed by ReLU and a norm over channels, and a sigmoid at the end. All numbers of a generator
lie in its row of one tensor, and no operation mixes rows.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.nets.critics import ConvBlock, conv_critics
from veilset.nets.patches import KERNEL, folded

FLAT = 1e-10


class Generators:
    """The layout of generators for images of `spec`: what the numbers in the rows of a stack mean."""

    def __init__(self, spec: ImageSpec, width: int, latent_size: int) -> None:
        self.spec, self.latent_size = spec, latent_size
        blocks = [block for block in conv_critics(spec, width).blocks if isinstance(block, ConvBlock)]
        self.blocks = blocks[::-1]
        self.first = self.blocks[0].out_shape
        # Matrices take rows of activations from the left: (inputs, outputs).
        self.matrices = [(latent_size + spec.num_classes, math.prod(self.first))]
        self.matrices += [(block.outputs, KERNEL * KERNEL * block.channels) for block in self.blocks]
        self.biases = [math.prod(self.first), *(block.channels for block in self.blocks)]
        self.num_weights = sum(rows * columns for rows, columns in self.matrices) + sum(self.biases)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """First weights of `count` generators, uniform within 1 / sqrt(fan in)."""
        limits = [inputs**-0.5 for inputs, _ in self.matrices]
        sizes = [math.prod(shape) for shape in self.matrices]
        pieces = [
            (2 * torch.rand(count, size, generator=generator, device=generator.device) - 1) * limit
            for size, limit in zip([*sizes, *self.biases], [*limits, *limits], strict=True)
        ]
        return torch.cat(pieces, dim=1)

    def images(self, weights: Tensor, latents: Tensor, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """(generators, n, latent_size) and (generators, n) -> (generators, n, channels, height, width) in [0, 1]."""
        codes = torch.cat([latents.to(dtype), F.one_hot(labels, self.spec.num_classes).to(dtype)], dim=2)
        sizes = [math.prod(shape) for shape in self.matrices]
        pieces = [piece.to(dtype) for piece in weights.split([*sizes, *self.biases], dim=1)]
        matrices = [piece.unflatten(1, shape) for piece, shape in zip(pieces, self.matrices, strict=False)]
        dense, *biases = pieces[len(sizes) :]
        count, number = codes.shape[:2]
        hidden = torch.baddbmm(dense[:, None], codes, matrices[0]).reshape(count, number, *self.first)
        for block, matrix, bias in zip(self.blocks, matrices[1:], biases, strict=True):
            columns = _normed(hidden.relu()).reshape(count, -1, block.outputs) @ matrix
            hidden = folded(columns, block.height, block.width, block.channels) + bias[:, None, None, None]
        return hidden.float().sigmoid().movedim(4, 2)


def _normed(maps: Tensor) -> Tensor:
    """Each pixel's channels with a mean square of 1."""
    return maps * (maps.float().square().mean(-1, keepdim=True) + FLAT).rsqrt().to(maps.dtype)
