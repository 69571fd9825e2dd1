"""Stacks of independent critics: any number of small networks of one layout, as one set of tensors. Vault side.

A critic is the discriminator of GS-WGAN (Chen et al. 2020): blocks of matrix product and ReLU, and the score of an
image x of class y is <linear + embedding(y), h> + bias for its last activations h. Every matrix is divided by its
largest singular value, which one step of power iteration follows.

All numbers of a critic lie in its row of two tensors, its weights and the singular vectors of its matrices. No
operation mixes rows, so nothing of one critic can reach another. Nothing is kept between calls either: what a forward
pass changes is returned, so that a training step can be captured as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets.patches import KERNEL, folded, halved, patches

WIDTH = 64
"""Filters of the first block in the paper's code."""
LAST_SIDE = 4
"""The last map is at most this high and wide: three blocks for 28 x 28, as in the paper."""
WIDEST = 4
"""Each block has twice the filters of the one before it, up to this many times the first one's."""


class Block(Protocol):
    """A matrix product over parts of the activations before it. Activations are (critics, images, *shape)."""

    @property
    def outputs(self) -> int: ...

    @property
    def inputs(self) -> int: ...

    @property
    def out_shape(self) -> tuple[int, ...]: ...

    def columns(self, hidden: Tensor) -> Tensor:
        """What the matrix is multiplied with: (critics, images x places, inputs)."""

    def transposed(self, columns: Tensor) -> Tensor:
        """The transpose of `columns`, which takes gradients back."""


@dataclass(frozen=True)
class ConvBlock:
    """Kernel 5, stride 2, padding 2; the channels come last, so that columns are copied in long pieces."""

    height: int
    width: int
    channels: int
    outputs: int

    @property
    def inputs(self) -> int:
        return KERNEL * KERNEL * self.channels

    @property
    def out_shape(self) -> tuple[int, ...]:
        return halved(self.height), halved(self.width), self.outputs

    def columns(self, hidden: Tensor) -> Tensor:
        return patches(hidden)

    def transposed(self, columns: Tensor) -> Tensor:
        return folded(columns, self.height, self.width, self.channels)


@dataclass(frozen=True)
class DenseBlock:
    in_shape: tuple[int, ...]
    outputs: int

    @property
    def inputs(self) -> int:
        return math.prod(self.in_shape)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.outputs,)

    def columns(self, hidden: Tensor) -> Tensor:
        return hidden.flatten(2)

    def transposed(self, columns: Tensor) -> Tensor:
        return columns.unflatten(2, self.in_shape)


class Ready(NamedTuple):
    """Weights of a forward pass: matrices (critics, outputs, inputs) divided by their norms, and biases.

    First those of the blocks; then a critic has linear layer and embedding, and a bias of the linear layer.
    """

    matrices: list[Tensor]
    biases: list[Tensor]


class Critics:
    """The layout of critics for images of `spec`: what the numbers in the rows of a stack mean."""

    def __init__(self, spec: ImageSpec, blocks: Sequence[Block]) -> None:
        self.spec, self.blocks = spec, tuple(blocks)
        linear, embeddings = self._head(math.prod(self.blocks[-1].out_shape))
        self.with_bias = [*((block.outputs, block.inputs) for block in blocks), linear]
        self.matrices = [*self.with_bias, *embeddings]
        self.biases = [outputs for outputs, _ in self.with_bias]
        self.num_weights = sum(rows * columns for rows, columns in self.matrices) + sum(self.biases)
        self.num_vectors = sum(rows + columns for rows, columns in self.matrices)

    @property
    def products(self) -> int:
        """Multiplications of one critic's score of one image."""
        return sum(math.prod(block.out_shape) * block.inputs for block in self.blocks) + 2 * self.matrices[-1][1]

    @property
    def activations(self) -> int:
        """Numbers that one critic's forward pass writes for one image, columns included."""
        places = [math.prod(block.out_shape) // block.outputs for block in self.blocks]
        return sum(n * (block.inputs + block.outputs) for n, block in zip(places, self.blocks, strict=True))

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """First weights and singular vectors of `count` critics, by torch's default laws."""
        pieces = [_uniform(count, rows * inputs, inputs, generator) for rows, inputs in self.with_bias]
        pieces += [
            torch.randn(count, math.prod(shape), generator=generator, device=generator.device)
            for shape in self.matrices[len(self.with_bias) :]
        ]
        pieces += [_uniform(count, rows, inputs, generator) for rows, inputs in self.with_bias]
        vectors = torch.randn(count, self.num_vectors, generator=generator, device=generator.device)
        return torch.cat(pieces, dim=1), torch.cat([F.normalize(v, dim=1) for v in self._vectors(vectors)], dim=1)

    @torch.no_grad()
    def iterated(self, weights: Tensor, vectors: Tensor) -> Tensor:
        """The singular vectors after one step of power iteration."""
        left = self._vectors(vectors)[::2]
        result = []
        for matrix, u in zip(self._split(weights).matrices, left, strict=True):
            v = F.normalize((u[:, None] @ matrix).squeeze(1), dim=1)
            result += [F.normalize((matrix @ v[:, :, None]).squeeze(2), dim=1), v]
        return torch.cat(result, dim=1)

    def ready(self, weights: Tensor, vectors: Tensor, dtype: torch.dtype) -> Ready:
        """Weights for forward passes in `dtype`; norms are taken in their own one. Has gradients in the weights."""
        matrices, biases = self._split(weights)
        singular = self._vectors(vectors)
        normed = [
            matrix / (u[:, None] @ matrix @ v[:, :, None])
            for matrix, u, v in zip(matrices, singular[::2], singular[1::2], strict=True)
        ]
        return Ready([matrix.to(dtype) for matrix in normed], [bias.to(dtype) for bias in biases])

    def scores(self, ready: Ready, images: Tensor, labels: Tensor) -> Tensor:
        """Images (critics, n, channels, height, width) with labels (critics, n) -> (critics, n) in float32.

        One batch for all critics is given without their dimension: (n, channels, height, width) and (n,).
        """
        last = self._hidden(ready, images)[-1].flatten(2)
        directions, offsets = self._last_layer(ready, labels)
        return (last.float() * directions.float()).sum(2) + offsets.float()

    def image_gradients(self, ready: Ready, images: Tensor, labels: Tensor) -> Tensor:
        """Gradients of the scores with respect to the images, (critics, n, channels, height, width) in float32.

        Written out rather than left to autograd: a network of ReLUs is linear around an image, so that these are
        products of its matrices, and their own gradients in the weights, which a gradient penalty needs, are first
        derivatives of that product. Autograd would go through the forward pass again to carry back zeros.
        """
        with torch.no_grad():
            active = [hidden > 0 for hidden in self._hidden(ready, images)]
        gradients, _ = self._last_layer(ready, labels)
        matrices = ready.matrices[: len(self.blocks)]
        for block, matrix, on in zip(self.blocks[::-1], matrices[::-1], active[::-1], strict=True):
            passed = gradients.reshape(on.shape) * on
            gradients = block.transposed(passed.reshape(len(on), -1, block.outputs) @ matrix)
        return gradients.movedim(4, 2).float()

    def _head(self, last: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
        """Shapes after the blocks, which end in `last` numbers: the linear layer's, and those of embeddings."""
        return (1, last), [(self.spec.num_classes, last)]

    def _last_layer(self, ready: Ready, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What an image's last activations are multiplied with, (critics, n, activations), and what is then added.

        A product with one-hot labels, because the gradient of picking rows is added up in an order of chance on CUDA.
        """
        linear, embedding = ready.matrices[-2:]
        one_hot = F.one_hot(labels, embedding.shape[1]).to(embedding.dtype)
        return linear + one_hot.expand(len(linear), -1, -1) @ embedding, ready.biases[-1]

    def _hidden(self, ready: Ready, images: Tensor) -> list[Tensor]:
        """Activations after every block; a shared batch becomes every critic's own after the first."""
        count, number = len(ready.matrices[0]), images.shape[-4]
        hidden = images.reshape(-1, number, *self.spec.shape).movedim(2, 4).to(ready.matrices[0].dtype)
        result = []
        for block, matrix, bias in zip(self.blocks, ready.matrices, ready.biases, strict=False):
            columns = block.columns(hidden).expand(count, -1, -1)
            hidden = torch.baddbmm(bias[:, None], columns, matrix.mT).relu()
            hidden = hidden.reshape(count, number, *block.out_shape)
            result.append(hidden)
        return result

    def _split(self, weights: Tensor) -> Ready:
        sizes = [rows * columns for rows, columns in self.matrices]
        pieces = weights.split([*sizes, *self.biases], dim=1)
        matrices = [piece.unflatten(1, shape) for piece, shape in zip(pieces, self.matrices, strict=False)]
        return Ready(matrices, list(pieces[len(sizes) :]))

    def _vectors(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Left and right singular vector of every matrix, in turn."""
        return vectors.split([size for shape in self.matrices for size in shape], dim=1)


def conv_critics(spec: ImageSpec, width: int = WIDTH) -> Critics:
    """The discriminator of GS-WGAN, with as many blocks as bring an image down to 4 x 4: 3 for 28 x 28."""
    _check_width(width)
    number = max(1, math.ceil(math.log2(max(spec.height, spec.width) / LAST_SIDE)))
    blocks: list[ConvBlock] = []
    shape: tuple[int, ...] = (spec.height, spec.width, spec.channels)
    for level in range(number):
        blocks.append(ConvBlock(shape[0], shape[1], shape[2], width * min(2**level, WIDEST)))
        shape = blocks[-1].out_shape
    return Critics(spec, blocks)


def dense_critics(spec: ImageSpec, width: int) -> Critics:
    """Two dense blocks of `width` units: thousands of them train in the time of one convolutional critic."""
    _check_width(width)
    return Critics(spec, [DenseBlock((spec.height, spec.width, spec.channels), width), DenseBlock((width,), width)])


def _check_width(width: int) -> None:
    if width < 1:
        raise ConfigError("critics of width 1 or more", f"{width}", "Correct the option.")


def _uniform(count: int, size: int, inputs: int, generator: torch.Generator) -> Tensor:
    draw = torch.rand(count, size, generator=generator, device=generator.device)
    return (2 * draw - 1) * inputs**-0.5
