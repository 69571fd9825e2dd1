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


def _added_up(columns: Tensor, height: int, width: int, channels: int) -> Tensor:
    """One sum a pixel in a fixed order and at least float32: atomic additions do not repeat to the last bit."""
    windows = columns.reshape(len(columns), -1, halved(height), halved(width), KERNEL, KERNEL, channels)
    return (by_pixels if columns.is_cuda else by_windows)(windows, height, width).to(columns.dtype)


def by_windows(windows: Tensor, height: int, width: int) -> Tensor:
    """Each place of the windows added as a whole: 25 passes over the memory, which a CPU's cache makes cheap."""
    down, across = STRIDE * windows.shape[2], STRIDE * windows.shape[3]
    size = (height + 2 * MARGIN, width + 2 * MARGIN)
    total = torch.zeros(*windows.shape[:2], *size, windows.shape[-1], dtype=_wide(windows), device=windows.device)
    for row in range(KERNEL):
        for column in range(KERNEL):
            part = windows[:, :, :, :, row, column]
            total[:, :, row : row + down : STRIDE, column : column + across : STRIDE] += part
    return total[:, :, MARGIN : MARGIN + height, MARGIN : MARGIN + width]


@fused_on_cuda
def by_pixels(windows: Tensor, height: int, width: int) -> Tensor:
    """The same, looked up pixel by pixel in the up to 3 x 3 windows it lies in: one pass when it is compiled."""
    rows, columns = _places(height, windows.device), _places(width, windows.device)
    total = torch.zeros((), dtype=_wide(windows), device=windows.device)
    for window, place, inside in rows:
        for other_window, other_place, other_inside in columns:
            part = windows[:, :, window[:, None], other_window, place[:, None], other_place]
            total = total + torch.where((inside[:, None] & other_inside)[:, :, None], part.to(total.dtype), 0.0)
    return total


def _places(side: int, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For every pixel of a side the windows it may lie in, from the last one: number, place in it, whether it does."""
    pixels = torch.arange(side, device=device) + MARGIN
    result = []
    for back in range(-(-KERNEL // STRIDE)):
        windows = pixels // STRIDE - back
        places = pixels - STRIDE * windows
        inside = (windows >= 0) & (windows < halved(side)) & (places < KERNEL)
        result.append((windows.clamp(0, halved(side) - 1), places.clamp(max=KERNEL - 1), inside))
    return result


def _wide(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)
