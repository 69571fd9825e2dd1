"""How bright an image is where: what networks with a norm after every convolution cannot see."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.compilation import fused_on_cuda
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

    def __init__(self, channels: int) -> None:
        super().__init__(1, GRID * GRID * PER_CELL * channels)
        # Not a part of any file. A buffer, because a CUDA graph cannot make a tensor out of numbers of the host.
        self.register_buffer("begin", torch.tensor(STEPS, dtype=torch.float32)[:, None, None], persistent=False)
        self.begin: Tensor

    def whole(self, images: Tensor, which: Tensor) -> Tensor:
        return (_tones(images, self.begin) * FINE).round()

    def smooth(self, images: Tensor, which: Tensor) -> Tensor:
        return _fast_tones(images.float() * 255, self.begin)


def _tones(levels: Tensor, begin: Tensor) -> Tensor:
    """(n, channels, height, width) -> (n, 1, length), in grey levels.

    A tone's share is the difference of the steps on both sides of it, so means over cells are taken of steps alone.
    """
    steps = (levels[:, :, None] - begin).clamp(0, STEP)
    climbed = F.adaptive_avg_pool2d(steps.flatten(1, 2), GRID).unflatten(1, steps.shape[1:3])
    all_, none = torch.full_like(climbed[:, :, :1], STEP), torch.zeros_like(climbed[:, :, :1])
    near = torch.cat([all_, climbed], dim=2) - torch.cat([climbed, none], dim=2)
    return torch.cat([climbed, STEP - climbed, EMPHASIS * near], dim=2).reshape(len(levels), 1, -1)


_fast_tones = fused_on_cuda(_tones)
