"""How bright an image is where: what networks with a norm after every convolution cannot see."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.nets.feature_bank import Bank

GRID = 7
"""Cells a side."""
STEP = 32
TONES = tuple(range(0, 257, STEP))
"""Grey levels whose shares are measured; a level between two of them counts for both in proportion."""
FINE = 64.0


class ToneBank(Bank):
    """For each of 7x7 cells, each channel and each of nine tones, the share of that tone in the cell."""

    def __init__(self, channels: int, centre: Tensor | None = None) -> None:
        super().__init__(1, GRID * GRID * len(TONES) * channels, centre)
        self.channels = channels

    def seen_from(self, centre: Tensor) -> Self:
        return type(self)(self.channels, centre)

    def whole(self, images: Tensor, which: Tensor) -> Tensor:
        return (_shares(images) * FINE).round()

    def smooth(self, images: Tensor, which: Tensor) -> Tensor:
        return _shares(images.float() * 255)


def _shares(levels: Tensor) -> Tensor:
    """(n, channels, height, width) -> (n, 1, length), in units of a whole STEP."""
    tones = torch.tensor(TONES, device=levels.device, dtype=levels.dtype).reshape(1, 1, -1, 1, 1)
    near = (STEP - (levels[:, :, None] - tones).abs()).clamp(min=0)
    return F.adaptive_avg_pool2d(near.flatten(1, 2), GRID).reshape(len(levels), 1, -1)
