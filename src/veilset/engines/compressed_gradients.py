"""Gradients of single records with their smallest entries left out, before they are clipped. Vault side.

What is left out of a row is decided by that row alone, so a clipped sum of such rows has the bound of any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veilset.engines.clipped_gradients import Gradients


@dataclass(frozen=True)
class LargestShare:
    """Keeps this share of each row, by magnitude (gradient compression; Lin et al. 2018, per record as in DPAF)."""

    gradients: Gradients
    share: float

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        rows = self.gradients(inputs, labels)
        dropped = rows.shape[1] - round(self.share * rows.shape[1])
        if dropped == 0:
            return rows
        sizes = rows.abs()
        return rows.mul_(sizes > smallest(sizes, dropped))

    def shaped(self, row: Tensor) -> list[Tensor]:
        return self.gradients.shaped(row)


@dataclass(frozen=True)
class LargestSigns:
    """Of the `count` largest entries of each row only a sign, and rows of length `norm` (TOPAGG; Wang et al. 2021).

    An entry x of a row with largest entry b becomes +1 with chance 1/2 + x / 2b, by a coin for each parameter that is
    public and the same for all records: a coin for each record would make rows depend on their place in a batch.
    """

    gradients: Gradients
    count: int
    norm: float
    chances: Tensor
    """Uniform numbers, one for each parameter."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        rows = self.gradients(inputs, labels)
        count = min(self.count, rows.shape[1])
        largest = rows.abs().topk(count, dim=1)
        top = largest.values[:, :1]
        signs = torch.where(2 * self.chances < 1 + rows / torch.where(top > 0, top, 1), 1.0, -1.0)
        kept = torch.zeros_like(rows).scatter_(1, largest.indices, 1.0)
        return signs * kept * (self.norm / count**0.5) * (top > 0)

    def shaped(self, row: Tensor) -> list[Tensor]:
        return self.gradients.shaped(row)


def smallest(sizes: Tensor, place: int) -> Tensor:
    """The number at `place`, counted from 1, of each row of `sizes` in ascending order, (n, 1); NaN is the largest.

    A CPU finds it in NumPy in a fraction of the time that torch takes, save among many zeros, which padding makes.
    """
    if sizes.is_cuda:
        return sizes.kthvalue(place, dim=1, keepdim=True).values
    values = sizes.numpy()
    found = np.zeros((len(values), 1), dtype=values.dtype)
    for row in np.flatnonzero(np.count_nonzero(values, axis=1) > values.shape[1] - place):
        found[row] = np.partition(values[row], place - 1)[place - 1]
    return torch.from_numpy(found)
