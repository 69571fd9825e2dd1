"""Inception-v3 as the FID uses it (the graph of December 2015), without its classifier: images to 2048 features.

Every convolution was followed by a batch normalisation; here the latter is folded into weight and bias. The graph
differs from other Inception-v3 ports: average pooling leaves the padding out, the last block pools by maximum, and
epsilon is 1e-3. Blocks and branches stand in the order of the published weights, which the conversion relies on.
Reference: Szegedy et al. 2016, "Rethinking the Inception architecture"; Heusel et al. 2017 for the use in FID.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 299
FEATURES = 2048
Kernel = int | tuple[int, int]


class ConvRelu(nn.Conv2d):
    """A convolution with its normalisation folded in, then ReLU. Padding keeps the size unless `valid`."""

    def __init__(self, inside: int, outside: int, kernel: Kernel, *, stride: int = 1, valid: bool = False) -> None:
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        same = (sides[0] // 2, sides[1] // 2)
        super().__init__(inside, outside, sides, stride=stride, padding=(0, 0) if valid or stride > 1 else same)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(super().forward(images), inplace=not torch.is_grad_enabled())


class Branches(nn.Module):
    """Runs all branches on the same input and stacks their channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.branches], dim=1)


def chain(inside: int, *steps: tuple[int, Kernel], last_stride: int = 1) -> nn.Sequential:
    """Convolutions one after another, each given as (channels, kernel)."""
    layers = []
    for number, (outside, kernel) in enumerate(steps, start=1):
        layers.append(ConvRelu(inside, outside, kernel, stride=last_stride if number == len(steps) else 1))
        inside = outside
    return nn.Sequential(*layers)


def average_pool() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)


def block_35(inside: int, pooled: int) -> Branches:
    """35x35 maps ("figure 5")."""
    return Branches(
        chain(inside, (64, 1)),
        chain(inside, (48, 1), (64, 5)),
        chain(inside, (64, 1), (96, 3), (96, 3)),
        nn.Sequential(average_pool(), ConvRelu(inside, pooled, 1)),
    )


def shrink_to_17(inside: int) -> Branches:
    return Branches(
        chain(inside, (384, 3), last_stride=2),
        chain(inside, (64, 1), (96, 3), (96, 3), last_stride=2),
        nn.MaxPool2d(3, stride=2),
    )


def block_17(inside: int, width: int) -> Branches:
    """17x17 maps with 7x7 convolutions in two halves ("figure 6")."""
    row, column = (1, 7), (7, 1)
    return Branches(
        chain(inside, (192, 1)),
        chain(inside, (width, 1), (width, row), (192, column)),
        chain(inside, (width, 1), (width, column), (width, row), (width, column), (192, row)),
        nn.Sequential(average_pool(), ConvRelu(inside, 192, 1)),
    )


def shrink_to_8(inside: int) -> Branches:
    return Branches(
        chain(inside, (192, 1), (320, 3), last_stride=2),
        chain(inside, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), last_stride=2),
        nn.MaxPool2d(3, stride=2),
    )


def block_8(inside: int, pool: nn.Module) -> Branches:
    """8x8 maps whose branches fan out ("figure 7")."""

    def fan() -> Branches:
        return Branches(ConvRelu(384, 384, (1, 3)), ConvRelu(384, 384, (3, 1)))

    return Branches(
        chain(inside, (320, 1)),
        nn.Sequential(ConvRelu(inside, 384, 1), fan()),
        nn.Sequential(ConvRelu(inside, 448, 1), ConvRelu(448, 384, 3), fan()),
        nn.Sequential(pool, ConvRelu(inside, 192, 1)),
    )


class FidInception(nn.Module):
    """94 convolutions with 21,768,352 weights and biases. Built on the "meta" device: it draws no random weights.

    Fill it with `load_state_dict(tensors, assign=True)`.
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.stem = nn.Sequential(
                ConvRelu(3, 32, 3, stride=2),
                ConvRelu(32, 32, 3, valid=True),
                ConvRelu(32, 64, 3),
                nn.MaxPool2d(3, stride=2),
                ConvRelu(64, 80, 1),
                ConvRelu(80, 192, 3, valid=True),
                nn.MaxPool2d(3, stride=2),
            )
            self.mixed = nn.Sequential(
                block_35(192, 32), block_35(256, 64), block_35(288, 64), shrink_to_17(288),
                block_17(768, 128), block_17(768, 160), block_17(768, 160), block_17(768, 192), shrink_to_8(768),
                block_8(1280, average_pool()), block_8(2048, nn.MaxPool2d(3, stride=1, padding=1)),
            )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, 299, 299) in about [-1, 1] to (n, 2048)."""
        return self.mixed(self.stem(images)).mean(dim=(2, 3))


def inception_input(pixels: Tensor) -> Tensor:
    """uint8 images of any size, grey or RGB, to what the network reads: 299x299 RGB, (x - 128) / 128."""
    resized = resize_tf1(pixels.to(torch.float32), SIDE)
    return ((resized - 128) / 128).expand(-1, 3, -1, -1)


def resize_tf1(images: Tensor, side: int) -> Tensor:
    """Bilinear resize by the rule of TensorFlow 1: source position = i * size / side.

    No half-pixel shift and no antialiasing, unlike `torch.nn.functional.interpolate`. By lookup and not by a matrix
    product, which a GPU may round to TF32.
    """
    for axis in (2, 3):
        size = images.shape[axis]
        position = torch.arange(side, device=images.device, dtype=torch.float32) * (size / side)
        low = position.long().clamp_max(size - 1)
        high = (low + 1).clamp_max(size - 1)
        share = (position - low).reshape((-1, 1) if axis == 2 else (-1,))
        first = images.index_select(axis, low)
        images = torch.lerp(first, images.index_select(axis, high), share.expand_as(first))
    return images
