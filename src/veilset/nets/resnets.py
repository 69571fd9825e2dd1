"""Residual classifiers for small images, with the 3x3 stem of CIFAR networks; any image of 8 pixels a side or more.

Images in [-1, 1] to logits. They follow the networks by which DPImageBench (Gong et al. 2025) judges synthetic images.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets.classifiers import draw_weights, masks_of


def _he_normal(module: nn.Module, generator: torch.Generator) -> None:
    """Convolutions as in He et al. 2015 (fan out), norms at 1 and 0, the last dense layer as torch draws it."""
    draw_weights(module, generator)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.weight.shape[0] * layer.weight[0, 0].numel()
            with torch.no_grad():
                layer.weight.normal_(0, (2 / fan_out) ** 0.5, generator=generator)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)


class _ConvNorm(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = _conv(inputs, outputs, kernel, stride, groups)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.conv(images))


class _Residual(nn.Module):
    """A chain of convolutions, each normalised, with ReLU between them and after the sum with the shortcut."""

    def __init__(self, *chain: _ConvNorm, shortcut: _ConvNorm | None) -> None:
        super().__init__()
        self.chain, self.shortcut = nn.ModuleList(chain), shortcut

    def forward(self, images: Tensor) -> Tensor:
        hidden = images
        for place, layer in enumerate(self.chain):
            hidden = layer(hidden if place == 0 else F.relu(hidden, inplace=True))
        return F.relu(hidden + (images if self.shortcut is None else self.shortcut(images)), inplace=True)


def _stages(widths: tuple[int, int, int], blocks: int) -> list[tuple[int, int]]:
    """(width, stride) of every block: three stages, the second and the third at half the size of the one before."""
    return [(width, 2 if stage and not block else 1) for stage, width in enumerate(widths) for block in range(blocks)]


class _PlainResNet(nn.Module):
    """A stem, residual blocks one after the other, and a dense layer on the mean of each map; without dropout."""

    stem: _ConvNorm
    blocks: nn.ModuleList
    dense: nn.Linear

    def forward(self, images: Tensor, dropout_generator: torch.Generator | None = None) -> Tensor:
        hidden = F.relu(self.stem(images), inplace=True)
        for block in self.blocks:
            hidden = block(hidden)
        return self.dense(hidden.mean((2, 3)))


class ResNet(_PlainResNet):
    """Basic blocks of 16, 32 and 64 channels with projection shortcuts; depth 6n + 2.

    Depth 110 has 1,730,714 parameters for RGB and ten classes, 2,752 of them in projections and their norms.
    Reference: He et al. 2015, section 4.2.
    """

    def __init__(self, spec: ImageSpec, generator: torch.Generator, *, depth: int) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ConfigError("a depth of 8, 14, 20, ... (6n + 2)", f"{depth}", "Choose such a depth.")
        with torch.device("meta"):
            self.stem = _ConvNorm(spec.channels, 16, 3)
            self.blocks = nn.ModuleList()
            before = 16
            for width, stride in _stages((16, 32, 64), (depth - 2) // 6):
                shortcut = _ConvNorm(before, width, 1, stride) if before != width else None
                chain = _ConvNorm(before, width, 3, stride), _ConvNorm(width, width, 3)
                self.blocks.append(_Residual(*chain, shortcut=shortcut))
                before = width
            self.dense = nn.Linear(before, spec.num_classes)
        _he_normal(self, generator)


class ResNeXt(_PlainResNet):
    """29 layers, 8 groups of 64 channels in the first stage (34.4 M parameters). Reference: Xie et al. 2017, CIFAR."""

    GROUPS = 8

    def __init__(self, spec: ImageSpec, generator: torch.Generator) -> None:
        super().__init__()
        with torch.device("meta"):
            self.stem = _ConvNorm(spec.channels, 64, 3)
            self.blocks = nn.ModuleList()
            before = 64
            for width, stride in _stages((256, 512, 1024), 3):
                inner = 2 * width
                shortcut = _ConvNorm(before, width, 1, stride) if before != width else None
                grouped = _ConvNorm(inner, inner, 3, stride, self.GROUPS)
                chain = _ConvNorm(before, inner, 1), grouped, _ConvNorm(inner, width, 1)
                self.blocks.append(_Residual(*chain, shortcut=shortcut))
                before = width
            self.dense = nn.Linear(before, spec.num_classes)
        _he_normal(self, generator)
        with torch.no_grad():
            self.dense.weight.normal_(0, (2 / self.dense.in_features) ** 0.5, generator=generator)
            self.dense.bias.zero_()


class _WideBlock(nn.Module):
    """Norm and ReLU come before each convolution; dropout lies between the two."""

    DROPOUT = 0.3

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), _conv(before, width, 3, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), _conv(width, width, 3)
        self.shortcut = _conv(before, width, 1, stride) if before != width else None

    def forward(self, images: Tensor, draws: Tensor | None) -> Tensor:
        """``draws`` in [0, 1) say what dropout keeps; they are made outside, so that a block can be compiled."""
        active = F.relu(self.norm1(images), inplace=True)
        hidden = F.relu(self.norm2(self.conv1(active)), inplace=True)
        if draws is not None:
            hidden = hidden * ((draws >= self.DROPOUT) / (1 - self.DROPOUT)).to(hidden.dtype)
        return self.conv2(hidden) + (images if self.shortcut is None else self.shortcut(active))


def _draws(images: Tensor, width: int, stride: int, generator: torch.Generator) -> Tensor:
    """One number in [0, 1) for each hidden value of a block, in the layout of channels-last maps."""
    height, across = ((side - 1) // stride + 1 for side in images.shape[2:])
    draws = torch.rand(len(images), height, across, width, generator=generator, device=images.device)
    return draws.permute(0, 3, 1, 2)


class WideResNet(nn.Module):
    """WRN-40-4 with dropout 0.3 (8.9 M parameters). Reference: Zagoruyko and Komodakis 2016."""

    STAGES = _stages((64, 128, 256), 6)

    def __init__(self, spec: ImageSpec, generator: torch.Generator) -> None:
        super().__init__()
        with torch.device("meta"):
            self.stem = _conv(spec.channels, 16, 3)
            self.blocks = nn.ModuleList()
            before = 16
            for width, stride in self.STAGES:
                self.blocks.append(_WideBlock(before, width, stride))
                before = width
            self.norm = nn.BatchNorm2d(before)
            self.dense = nn.Linear(before, spec.num_classes)
        _he_normal(self, generator)
        with torch.no_grad():
            self.dense.bias.zero_()

    def forward(self, images: Tensor, dropout_generator: torch.Generator | None = None) -> Tensor:
        """In training mode the dropout masks are drawn from ``dropout_generator``."""
        masks = masks_of(self, dropout_generator)
        hidden = self.stem(images)
        for block, (width, stride) in zip(self.blocks, self.STAGES, strict=True):
            draws = None if masks is None else _draws(hidden, width, stride, masks)
            hidden = block(hidden, draws)
        return self.dense(F.relu(self.norm(hidden), inplace=True).mean((2, 3)))
