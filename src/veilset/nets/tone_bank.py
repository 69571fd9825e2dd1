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
STEPS = tuple(range(0, 256, STEP))
"""Where the steps of brightness begin that a grey level has climbed or not."""
TONES = tuple(range(0, 257, STEP))
"""Grey levels whose shares are measured; a level between two of them counts for both in proportion."""
PER_CELL = 2 * len(STEPS) + len(TONES)
EMPHASIS = 3
"""Of shares: without it the eight steps, of which an image is always full, would outweigh them."""
FINE = 64.0


class ToneBank(Bank):
    """For each of 7x7 cells and each channel: steps of brightness climbed and not climbed, and shares of nine tones.

    Shares alone say which tones there are, but a pixel far from all of them would not see which way to go; steps alone
    say which way, but take a grey for half black and half white.
    """

    def __init__(self, channels: int, centre: Tensor | None = None) -> None:
        super().__init__(1, GRID * GRID * PER_CELL * channels, centre)
        self.channels = channels

    def seen_from(self, centre: Tensor) -> Self:
        return type(self)(self.channels, centre)

    def whole(self, images: Tensor, which: Tensor) -> Tensor:
        return (_tones(images) * FINE).round()

    def smooth(self, images: Tensor, which: Tensor) -> Tensor:
        return _tones(images.float() * 255)


def _tones(levels: Tensor) -> Tensor:
    """(n, channels, height, width) -> (n, 1, length), in grey levels."""
    begin, tones = (
        torch.tensor(values, device=levels.device, dtype=levels.dtype).reshape(1, 1, -1, 1, 1)
        for values in (STEPS, TONES)
    )
    climbed = (levels[:, :, None] - begin).clamp(0, STEP)
    near = (STEP - (levels[:, :, None] - tones).abs()).clamp(min=0)
    both = torch.cat([climbed, STEP - climbed, EMPHASIS * near], dim=2)
    return F.adaptive_avg_pool2d(both.flatten(1, 2), GRID).reshape(len(levels), 1, -1)
