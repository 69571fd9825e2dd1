"""The coarse part of images in few numbers: a fixed, public, orthonormal basis of low frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from veilset.data.spec import ImageSpec


class LowFrequencies:
    """The first `number` cosines along each side of an image, or as many as the side has pixels.

    What a critic wants changed is spread over all pixels, and so is the noise that hides it; few coarse numbers hold
    most of the one and little of the other. Projecting never makes an image longer, and needs no data.
    """

    def __init__(self, spec: ImageSpec, number: int, device: torch.device) -> None:
        self.spec = spec
        self.down, self.across = (cosines(side, min(number, side)).to(device) for side in (spec.height, spec.width))

    @property
    def count(self) -> int:
        """Numbers of an image."""
        return self.spec.channels * len(self.down) * len(self.across)

    def of(self, images: Tensor) -> Tensor:
        """(..., channels, height, width) -> (..., count)."""
        return (self.down @ images @ self.across.T).flatten(-3)

    def images(self, values: Tensor) -> Tensor:
        """(..., count) -> the images (..., channels, height, width) that have these numbers and no others."""
        grid = values.unflatten(-1, (self.spec.channels, len(self.down), len(self.across)))
        return self.down.T @ grid @ self.across


def cosines(side: int, number: int) -> Tensor:
    """(number, side): orthonormal rows, the discrete cosine transform of type 2."""
    waves = torch.arange(number, dtype=torch.float64)[:, None]
    places = torch.arange(side, dtype=torch.float64) + 0.5
    rows = torch.cos(math.pi * places * waves / side) * math.sqrt(2 / side)
    rows[0] /= math.sqrt(2)
    return rows.float()
