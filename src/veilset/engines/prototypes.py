"""Prototypes of the kinds of a class, by k-means of synthetic images. Open side."""

from __future__ import annotations

import torch
from torch import Tensor

from veilset.nets.kinds import Kinds

ITERATIONS = 20


def kinds_among(rows: Tensor, labels: Tensor, num_classes: int, per_class: int, draws: torch.Generator) -> Kinds:
    """`per_class` prototypes of each class.

    Args:
        rows: of synthetic images, length 1 each, some of every class.
    """
    return Kinds.near(torch.stack([k_means(rows[labels == label], per_class, draws) for label in range(num_classes)]))


def k_means(rows: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """(n, d) -> (count, d): Lloyd's iterations from rows that are far apart (k-means++)."""
    centres = rows[torch.randint(len(rows), (1,), generator=draws, device=rows.device)]
    for _ in range(count - 1):
        far = torch.cdist(rows, centres).amin(1).square() + 1e-12  # where all rows are alike, any will do
        centres = torch.cat([centres, rows[torch.multinomial(far, 1, generator=draws)]])
    for _ in range(ITERATIONS):
        nearest = torch.cdist(rows, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=count)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres
