"""Banks of measurements of an image, above all small networks, that are the same to the last bit everywhere.

A network is blocks of 3x3 convolution, per-image channel norm, ReLU and 2x2 average pool; its feature is the last map,
at most 3x3 of `width` channels, scaled to length 1. Nothing in a network depends on private images: weights are drawn
from a public seed, or trained on synthetic images only.

Weights are integers of 6 bits and activations integers of 8, so every sum of a convolution is an integer below 2^24:
float32 holds it exactly, in any order of summation and in any batch. A trial shows whether a library only adds and
multiplies. Sums for the norms are integers below 2^53 in float64. Hence a record's feature cannot change in its last
bit with its place in the batch, and removing one record, which moves all others by a place, moves a sum of features by
exactly that record's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.compilation import fused_on_cuda
from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets.half_precision import half_precision
from veilset.nets.pooling import average_of_fours
from veilset.randomness import named_generator

MAP = 3
"""Side of the last map: 9 x width numbers a network, whatever the image size."""
WEIGHT_TOP = 31
DEVIATION = 10.0
"""Of random weights, in steps of the integer grid."""
LEVEL = 32.0
"""Activation of one standard deviation."""
TOP = 255.0
SHRINK = 64.0
"""Sums after the first block are divided by this and rounded, so that their squares add up below 2^53 at any size."""
FLAT = 4.0
"""Added to the variance of a channel: a flat one stays flat instead of showing its rounding."""
UNIT = 2.0**20
"""Grid of unit vectors before their centre is subtracted, so that those differences are exact too."""
WIDEST = 224
"""9 x 224 x 255 x 31 is below 2^24."""
WORKSPACE = {"cpu": 1 << 20, "cuda": 1 << 28}
"""Activations of the first block that are alive at once; on a CPU they should stay in its cache."""


class Bank(nn.Module):
    """`count` measurements of an image, each a vector of `length` numbers of length 1."""

    values_per_pixel = 1
    """Of the work on one measurement of one image: sizes the pieces of a batch."""

    def __init__(self, count: int, length: int) -> None:
        super().__init__()
        self.count, self.length = count, length

    def whole(self, images: Tensor, which: Tensor) -> Tensor:
        """(n, channels, height, width) in whole grey levels -> (n, len(which), length): integers, exact everywhere."""
        raise NotImplementedError

    def smooth(self, images: Tensor, which: Tensor) -> Tensor:
        """The same for images in [0, 1] without the rounding, so that it has gradients; at any scale."""
        raise NotImplementedError

    @torch.no_grad()
    def exact(self, images: Tensor) -> Tensor:
        """(n, channels, height, width) in [0, 1] -> (n, count, length) float64: unit vectors.

        Guarantee: an image's vectors depend on its own pixels alone, to the last bit. A vector may be zero, and
          that of an image that is not a number is none: bound them before use.
        """
        levels = (images.double() * 255).round().float()
        fitting = max(1, WORKSPACE[images.device.type] // (math.prod(images.shape[2:]) * self.values_per_pixel))
        size = min(fitting, max(1, len(levels)))
        # All pieces have one shape, so that all images go through the same kernels.
        levels = F.pad(levels, (0, 0, 0, 0, 0, 0, 0, -len(levels) % size))
        which = torch.arange(self.count, device=images.device).split(max(1, fitting // size))
        pieces = [torch.cat([self._exact(piece, some) for some in which], dim=1) for piece in levels.split(size)]
        return torch.cat(pieces)[: len(images)]

    def _exact(self, levels: Tensor, which: Tensor) -> Tensor:
        return _scaled_to_one(self.whole(levels, which).double())

    def soft(self, images: Tensor, which: Tensor) -> Tensor:
        """Vectors of the measurements numbered `which`, without the rounding, so that they have gradients."""
        return F.normalize(self.smooth(images, which), dim=-1)


class CentredBank(Bank):
    """Measurements that are seen from a centre of their own.

    Networks look at all images from far away: nine tenths of their vectors are the same for every image. Seen from the
    mean vector of images like them (synthetic ones), what differs between images fills the whole length.
    """

    def __init__(self, count: int, length: int, centre: Tensor | None) -> None:
        super().__init__(count, length)
        self.register_buffer("centre", torch.zeros(count, length) if centre is None else centre.float())
        self.centre: Tensor

    def _exact(self, levels: Tensor, which: Tensor) -> Tensor:
        centre = (self.centre[which].double() * UNIT).round()
        return _scaled_to_one((super()._exact(levels, which) * UNIT).round() - centre)

    def soft(self, images: Tensor, which: Tensor) -> Tensor:
        return F.normalize(super().soft(images, which) - self.centre[which], dim=-1)

    def seen_from(self, centre: Tensor) -> Self:
        """The same measurements with other centres."""
        raise NotImplementedError


class FeatureBank(CentredBank):
    """`count` networks as stacked integer weights, and for each the centre its vectors are seen from."""

    def __init__(self, weights: Sequence[Tensor], centre: Tensor | None = None) -> None:
        count, width = weights[0].shape[:2]
        super().__init__(count, MAP * MAP * width, centre)
        self.width = self.values_per_pixel = width
        self.blocks = len(weights)
        for block, weight in enumerate(weights):
            whole = weight.nan_to_num(0.0) if weight.is_floating_point() else weight
            self.register_buffer(f"weight_{block}", whole.clamp(-WEIGHT_TOP, WEIGHT_TOP).to(torch.int8))

    @classmethod
    def draw(cls, spec: ImageSpec, count: int, width: int, generator: torch.Generator) -> FeatureBank:
        """Random networks; the same on every machine for the same generator."""
        draws = [torch.randn(shape, generator=generator) for shape in shapes(spec, count, width)]
        return cls([(draw * DEVIATION).round().clamp(-WEIGHT_TOP, WEIGHT_TOP) for draw in draws])

    @classmethod
    def quantised(cls, weights: Sequence[Tensor]) -> FeatureBank:
        """Trained networks on the integer grid: the norm after a convolution ignores the scale of its channels."""
        return cls([in_range(weight.detach()).round() for weight in weights])

    @property
    def weights(self) -> list[Tensor]:
        return [getattr(self, f"weight_{block}") for block in range(self.blocks)]

    def seen_from(self, centre: Tensor) -> Self:
        return type(self)(self.weights, centre)

    def whole(self, images: Tensor, which: Tensor) -> Tensor:
        weights = [weight[which].float() for weight in self.weights]
        maps = (_fast_maps if _library_is_exact(images, weights) else _sure_maps)(images - 128, weights)
        return maps.reshape(len(images), len(which), self.length)

    def smooth(self, images: Tensor, which: Tensor) -> Tensor:
        return soft_features(images, [weight[which].float() for weight in self.weights])


def _maps(levels: Tensor, weights: Sequence[Tensor], convolve: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
    """Last maps in whole sixteenths, from whole grey levels."""
    hidden = levels
    for block, weight in enumerate(weights):
        sums = convolve(hidden.round(), weight, block)
        hidden = _halved(_normed(sums if block == 0 else sums.div_(SHRINK).round_()).round_())
    return (_last_map(hidden) * 16).round()


@fused_on_cuda
def _fast_maps(levels: Tensor, weights: Sequence[Tensor]) -> Tensor:
    return _maps(levels, weights, _grouped)


def _sure_maps(levels: Tensor, weights: Sequence[Tensor]) -> Tensor:
    return _maps(levels, weights, _summed)


_TRUSTED: dict[tuple[object, ...], bool] = {}


def _library_is_exact(images: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether this library's convolutions multiply and add and do nothing else, for images and networks of this shape.

    Some go through a transform (Winograd, FFT): their sums are off by a little and depend on the batch. They are off
    the most for kernels of one sign and images of black and white, so those are tried; they are public.
    """
    library = (torch.get_num_threads(), torch.backends.mkldnn.enabled)
    shape = (images.device, images.shape, len(weights), weights[0].shape, *library)
    if shape not in _TRUSTED:
        draws = named_generator(0, "kernels of one sign")
        trial = (torch.rand(images.shape, generator=draws) < 0.5).to(images) * 255 - 128
        signs = [torch.randint(0, 2, weight.shape[:2], generator=draws) * 2 - 1 for weight in weights]
        kernels = [
            sign.to(weight)[..., None, None, None].expand_as(weight).contiguous() * WEIGHT_TOP
            for sign, weight in zip(signs, weights, strict=True)
        ]
        _TRUSTED[shape] = torch.equal(_fast_maps(trial, kernels), _sure_maps(trial, kernels))
    return _TRUSTED[shape]


@fused_on_cuda
def soft_features(images: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """(n, channels, height, width) in [0, 1] -> (n, networks, length), differentiable in images and weights."""
    with half_precision(images.device):
        hidden = images * 255 - 128
        if images.is_cuda:
            # With fewer than eight channels CUDA's libraries leave the tensor cores and the layout they need.
            hidden, weights = _with_channels(hidden, 1, 8), [_with_channels(weights[0], 2, 8), *weights[1:]]
            hidden = hidden.contiguous(memory_format=torch.channels_last)
        for block, weight in enumerate(weights):
            sums = _grouped(hidden, weight if block == 0 else weight / SHRINK, block)
            hidden = average_of_fours(_soft_normed(sums))
    return _last_map(hidden).float().reshape(len(images), len(weights[0]), -1)


def _with_channels(values: Tensor, dim: int, count: int) -> Tensor:
    """Channels of zeros added up to `count`: they change no sum."""
    missing = [0, 0] * (values.dim() - 1 - dim) + [0, max(0, count - values.shape[dim])]
    return F.pad(values, missing)


def in_range(weight: Tensor) -> Tensor:
    """Trained weights in the range of a bank's integers, which the constant in its norm is made for."""
    largest = weight.detach().flatten(2).abs().amax(dim=2).clamp(min=1e-12)
    return weight / largest[..., None, None, None] * WEIGHT_TOP


def shapes(spec: ImageSpec, count: int, width: int) -> list[tuple[int, ...]]:
    """Shapes of the stacked weights, block by block."""
    if not (1 <= width <= WIDEST and count >= 1):
        raise ConfigError(f"at least one network, of width 1 to {WIDEST}", f"{count} of {width}", "Correct the option.")
    inputs = [spec.channels, *[width] * (num_blocks(spec) - 1)]
    return [(count, width, before, 3, 3) for before in inputs]


def num_blocks(spec: ImageSpec) -> int:
    """As many halvings as leave a map of at least 3x3."""
    return max(1, math.floor(math.log2(min(spec.height, spec.width) / MAP)))


def _summed(hidden: Tensor, weight: Tensor, block: int) -> Tensor:
    """The same as matrix products, which multiply and add in some order: exact for sums that float32 holds."""
    height, across = hidden.shape[2:]
    columns = F.unfold(hidden, 3, padding=1).transpose(1, 2).chunk(1 if block == 0 else len(weight), dim=2)
    parts = [columns[place if block else 0] @ kernel.flatten(1).T for place, kernel in enumerate(weight)]
    return torch.cat(parts, dim=2).transpose(1, 2).reshape(len(hidden), -1, height, across)


def _grouped(hidden: Tensor, weight: Tensor, block: int) -> Tensor:
    """One convolution for all networks side by side; the first block sees the same image for all."""
    return F.conv2d(hidden, weight.flatten(0, 1), padding=1, groups=1 if block == 0 else len(weight))


def _normed(sums: Tensor) -> Tensor:
    """Per image and channel: mean 0 and deviation LEVEL, then the positive part up to TOP. Overwrites its argument."""
    count = sums.shape[-1] * sums.shape[-2]
    wide = sums.to(torch.float64, copy=True)
    mean = wide.sum((2, 3), keepdim=True) / count
    square = wide.square_().sum((2, 3), keepdim=True) / count
    scale = LEVEL / (square - mean * mean).clamp(min=0).add(FLAT).sqrt()
    return sums.sub_(mean.float()).mul_(scale.float()).clamp_(0, TOP)


def _soft_normed(sums: Tensor) -> Tensor:
    """The same by kernels that are fast in both directions, also on a CPU."""
    return F.hardtanh(F.group_norm(sums, sums.shape[1], eps=FLAT) * LEVEL, 0, TOP)


def _halved(maps: Tensor) -> Tensor:
    """Means of 2x2 pixels; the sum of four integers is exact in any order. A last odd row or column is left out."""
    height, width = maps.shape[2] // 2 * 2, maps.shape[3] // 2 * 2
    rows = maps[:, :, :height:2, :width] + maps[:, :, 1:height:2, :width]
    return (rows[..., ::2] + rows[..., 1::2]) / 4


def _last_map(hidden: Tensor) -> Tensor:
    return hidden if hidden.shape[-2:] == (MAP, MAP) else F.adaptive_avg_pool2d(hidden, MAP)


def _scaled_to_one(vectors: Tensor) -> Tensor:
    """Exact for integer vectors: their squares add up below 2^53, of mixtures by the norm of their matrix.

    A zero vector stays one.
    """
    length = vectors.square().sum(-1, keepdim=True).sqrt()
    return torch.where(length == 0, vectors, vectors / length)
