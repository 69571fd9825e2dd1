"""Prototypes are found where synthetic images crowd."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from veilset.engines.prototypes import k_means, kinds_among
from veilset.randomness import named_generator


def crowds(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows around three directions, and which one each belongs to."""
    draws = named_generator(0, "crowds")
    which = torch.arange(number) % 3
    return F.normalize(5 * torch.eye(8)[which] + torch.randn(number, 8, generator=draws), dim=1), which


def test_each_crowd_has_a_prototype() -> None:
    rows, which = crowds(90)
    centres = k_means(rows, 3, named_generator(0, "k-means"))
    nearest = torch.cdist(rows, centres).argmin(1)
    assert sorted(int(nearest[which == crowd].mode().values) for crowd in range(3)) == [0, 1, 2]
    assert (nearest == nearest[which].gather(0, which)).float().mean() > 0.9


def test_more_prototypes_than_different_images_are_no_error() -> None:
    centres = k_means(torch.ones(2, 4) / 2, 5, named_generator(0, "k-means"))
    assert centres.shape == (5, 4)
    assert bool(centres.isfinite().all())


def test_every_class_has_prototypes_of_its_own() -> None:
    rows, which = crowds(90)
    kinds = kinds_among(rows, which, 3, 2, named_generator(0, "k-means"))
    assert kinds.prototypes.shape == (3, 2, 8)
    assert torch.equal(kinds.prototypes.float().argmax(2), torch.arange(3)[:, None].expand(3, 2))
