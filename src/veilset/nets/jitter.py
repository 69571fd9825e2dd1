"""Small random changes of shape that leave the meaning of an image alone: a public prior, never fitted to data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.errors import ConfigError


@dataclass(frozen=True)
class Jitter:
    """Largest change of each kind; every image draws its own, uniformly."""

    degrees: float = 0.0
    shift: float = 0.0
    """Share of the side."""
    stretch: float = 0.0
    """Logarithm of the factor, of each axis on its own."""
    shear: float = 0.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Each image moved by a draw of its own."""
        return moved(images, self.moves(len(images), generator))

    def moves(self, count: int, generator: torch.Generator) -> Tensor | None:
        """(count, 2, 3): where a place of a moved image comes from, shifts in shares of half a side. None: still."""
        if self == STILL:
            return None
        draw = torch.rand(6, count, generator=generator, device=generator.device) * 2 - 1
        angle, shear = draw[0] * math.radians(self.degrees), draw[3] * self.shear
        across, down = (draw[1] * self.stretch).exp(), (draw[2] * self.stretch).exp()
        cosine, sine = angle.cos(), angle.sin()
        first = torch.stack([cosine * across, (shear * cosine - sine) * down, draw[4] * 2 * self.shift], 1)
        second = torch.stack([sine * across, (shear * sine + cosine) * down, draw[5] * 2 * self.shift], 1)
        return torch.stack([first, second], 1)


def moved(maps: Tensor, moves: Tensor | None) -> Tensor:
    """Images, or maps that images are made of, in other places. Differentiable; from outside the border is repeated."""
    if moves is None:
        return maps
    height, width = maps.shape[-2:]
    # In pixels from the middle, because a turn is none in shares of two different sides.
    down = (torch.arange(height, device=maps.device) - (height - 1) / 2)[:, None]
    across = torch.arange(width, device=maps.device) - (width - 1) / 2
    places = [
        (row[:, 0] * across + row[:, 1] * down) * (2 / side) + row[:, 2]
        for row, side in zip(moves[..., None, None].unbind(1), (width, height), strict=True)
    ]
    grid = torch.stack(places, -1)
    return F.grid_sample(maps.float(), grid, align_corners=False, padding_mode="border").to(maps.dtype)


STILL = Jitter()
KINDS = {
    "none": STILL,
    "handwriting": Jitter(degrees=15, shift=0.06, stretch=0.12, shear=0.1),
    "objects": Jitter(degrees=4, shift=0.03, stretch=0.06, shear=0.03),
}
"""What the owner may declare about the kind of images. The amounts are guesses at what leaves their meaning alone."""


def jitter_of(kind: str) -> Jitter:
    if kind not in KINDS:
        raise ConfigError(f"jitter {', '.join(KINDS)}", f"{kind!r}", "Declare the kind of images, or none.")
    return KINDS[kind]
