"""Means of features of the groups of a batch, of each class or of all images together, as DPAF's critic judges them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class GroupMeans:
    """Means of features: of private images, released with noise, of public ones, or of generated ones."""

    values: Tensor
    """(groups, maps, height, width)"""
    noise_std: Tensor
    """(groups,): of the noise in them."""
    weights: Tensor
    """(groups,): the images of a batch for each image of a group, by which its gradient counts."""


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
