"""Means of features of the groups of a batch, of each class or of all images together, as DPAF's critic judges them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.engines.targets import usable_counts

FIRST_SEEN = 10.0
"""Batches that count as seen, with even classes, before the first: a single noisy count can be far off."""


@dataclass(frozen=True)
class GroupMeans:
    """Means of real features: released, or of public images."""

    values: Tensor
    """(groups, maps, height, width)"""
    noise_std: Tensor
    """(groups,): of the noise in them."""
    weights: Tensor
    """(groups,): the images of a batch for each image of a group, by which its gradient counts."""


class NoisyCounts:
    """How many images of each group are in a batch, by all counts that were released so far.

    Args:
        sums: (groups,), in which they are added up; whoever resumes puts the sums of earlier batches there.
    """

    def __init__(self, sums: Tensor, expected_batch: int) -> None:
        self.sums, self.even = sums, expected_batch / len(sums)

    def after(self, counts: Tensor, batches: int) -> Tensor:
        """With these counts of one more batch, of which there are then so many."""
        self.sums += counts
        return usable_counts((self.sums + FIRST_SEEN * self.even) / (FIRST_SEEN + batches), self.even)


def mean_of_groups(features: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """(groups, ...) means of the features of images, and how many images there are of each; without any, zeros."""
    members = F.one_hot(groups, num_groups).to(features.dtype).T
    counts = members.sum(dim=1).clamp(min=1)
    means = members @ features.flatten(1) / counts[:, None]
    return means.reshape(num_groups, *features.shape[1:]), counts


def with_noise(means: Tensor, noise_std: Tensor, draws: torch.Generator) -> Tensor:
    """From public draws."""
    return means + per_group(noise_std, means) * torch.randn(means.shape, generator=draws, device=means.device)


def per_group(factors: Tensor, values: Tensor) -> Tensor:
    """A number for each group, in a shape that multiplies values of groups."""
    return factors.reshape(-1, *[1] * (values.ndim - 1))
