"""Strided convolutions of many networks at once as matrix products: an image's windows side by side, and back.

Grouped convolutions of CUDA's libraries are slow for many groups of few images; batched matrix products are not. The
two maps here are each other's transpose, so each is the other's derivative, to any order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.compilation import fused_on_cuda

KERNEL, STRIDE, MARGIN = 5, 2, 2


def halved(side: int) -> int:
    """Windows along a side: half of it, rounded up."""
    return -(-side // STRIDE)


def patches(maps: Tensor) -> Tensor:
    """(stacks, images, height, width, channels) -> (stacks, images x windows, 25 x channels)."""
    result: Tensor = _Patches.apply(maps)
    return result


def folded(columns: Tensor, height: int, width: int, channels: int) -> Tensor:
    """The transpose of `patches`: every window's values added where they came from."""
    result: Tensor = _Folded.apply(columns, height, width, channels)
    return result


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        ctx.shape = maps.shape[2:]
        padded = F.pad(maps, (0, 0, MARGIN, MARGIN, MARGIN, MARGIN))
        windows = padded.unfold(2, KERNEL, STRIDE).unfold(3, KERNEL, STRIDE)
        return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(maps), -1, KERNEL * KERNEL * maps.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return folded(gradients[0], *ctx.shape)


class _Folded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, height: int, width: int, channels: int) -> Tensor:
        return _added_up(columns, height, width, channels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return patches(gradients[0]), None, None, None


@fused_on_cuda
def _added_up(columns: Tensor, height: int, width: int, channels: int) -> Tensor:
    """One sum a pixel in a fixed order and at least float32: atomic additions do not repeat to the last bit."""
    down, across = halved(height), halved(width)
    windows = columns.reshape(len(columns), -1, down, across, KERNEL, KERNEL, channels)
    size = (height + 2 * MARGIN, width + 2 * MARGIN)
    wide = torch.promote_types(columns.dtype, torch.float32)
    total = torch.zeros(*windows.shape[:2], *size, channels, dtype=wide, device=columns.device)
    for row in range(KERNEL):
        for column in range(KERNEL):
            rows, places = slice(row, row + STRIDE * down, STRIDE), slice(column, column + STRIDE * across, STRIDE)
            total[:, :, rows, places] += windows[:, :, :, :, row, column]
    return total[:, :, MARGIN : MARGIN + height, MARGIN : MARGIN + width].to(columns.dtype)
