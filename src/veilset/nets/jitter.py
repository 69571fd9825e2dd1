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
        """Differentiable; pixels from outside repeat the border."""
        if self == STILL:
            return images
        height, width = images.shape[-2:]
        draw = torch.rand(6, len(images), generator=generator, device=images.device) * 2 - 1
        angle, shear = draw[0] * math.radians(self.degrees), draw[3] * self.shear
        across, down = (draw[1] * self.stretch).exp(), (draw[2] * self.stretch).exp()
        cosine, sine, ratio = angle.cos(), angle.sin(), height / width
        first = torch.stack([cosine * across, (shear * cosine - sine) * down * ratio, draw[4] * 2 * self.shift], 1)
        second = torch.stack([sine * across / ratio, (shear * sine + cosine) * down, draw[5] * 2 * self.shift], 1)
        grid = F.affine_grid(torch.stack([first, second], 1), list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False, padding_mode="border")


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
