"""Two classes a small network tells apart at once: upright bars and level beams at random places."""

from __future__ import annotations

import torch

from veilset.data.spec import ImageSpec
from veilset.randomness import named_generator

SPEC = ImageSpec(height=12, width=12, channels=1, class_names=("bar", "beam"))


def bars(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws = named_generator(seed, "bars")
    labels = torch.arange(count) % 2
    places = torch.randint(2, 9, (count,), generator=draws)
    images = torch.zeros(count, 1, 12, 12)
    for image, label, place in zip(images, labels, places, strict=True):
        if label:
            image[:, place : place + 2] = 1
        else:
            image[:, :, place : place + 2] = 1
    return images, labels
