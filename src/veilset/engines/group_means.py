"""Means of features of the groups of a batch, of each class or of all images together, as DPAF's critic judges them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.engines.targets import usable_counts

UNEVEN = 0.5
"""How far shares of groups are expected to be from even, of an even share."""


@dataclass(frozen=True)
class GroupMeans:
    """Means of features: of private images, released with noise, of public ones, or of generated ones."""

    values: Tensor
    """(groups, maps, height, width)"""
    noise_std: Tensor
    """(groups,): of the noise in them."""
    weights: Tensor
    """(groups,): the images of a batch for each image of a group, by which its gradient counts."""


class NoisyCounts:
    """How many images of each group are in a batch, by all counts that were released so far.

    A single count can be far off. So even shares count as much as batches whose counts are, together, as uncertain as
    these shares are: the more noise, the more batches. At user level a batch is of users, who may bring several records
    each, so that the first counts are rather too small.

    Args:
        sums: (groups,), in which they are added up; whoever resumes puts the sums of earlier batches there.
        noise_std: of the noise in a count.
    """

    def __init__(self, sums: Tensor, expected_batch: int, noise_std: float) -> None:
        self.sums, self.even = sums, expected_batch / len(sums)
        drawn = self.even  # the variance of the number that a Poisson sample holds
        self.first_seen = (noise_std**2 + drawn) / (UNEVEN * self.even) ** 2

    def after(self, counts: Tensor, batches: int) -> Tensor:
        """With these counts of one more batch, of which there are then so many."""
        self.sums += counts
        return usable_counts((self.sums + self.first_seen * self.even) / (self.first_seen + batches), self.even)


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
