"""Fidelity and diversity apart: precision, recall, density and coverage from nearest neighbours among features.

Convention: precision and density ask whether *synthetic* images lie where real ones are, recall and coverage whether
*real* images are reached by synthetic ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.errors import DataError
from veilset.evaluate.distances import MAX_ENTRIES, distance_pieces, neighbour_radii

PRECISION_NEIGHBOURS = 3
"""Kynkäänniemi et al. 2019."""
DENSITY_NEIGHBOURS = 5
"""Naeem et al. 2020."""
MAX_IMAGES = 10_000
"""Of each set, as in Naeem et al. 2020; the four numbers depend on how many images are compared."""


@dataclass(frozen=True)
class Manifold:
    precision: float
    recall: float
    density: float
    coverage: float
    neighbours: tuple[int, int]
    """For precision and recall; for density and coverage."""
    num_synthetic: int
    num_real: int


def manifold(
    synthetic: Tensor, real: Tensor, *, device: torch.device | str = "cpu", max_entries: int = MAX_ENTRIES
) -> Manifold:
    """All four numbers from one pass over the distances; see the class for the counts actually used."""
    fewest = min(len(synthetic), len(real))
    if fewest < 2:
        raise DataError("at least 2 images in either set", f"{fewest}", "Sample or read more images.")
    near, wide = (min(k, fewest - 1) for k in (PRECISION_NEIGHBOURS, DENSITY_NEIGHBOURS))
    real = real.to(device, torch.float64)
    centre = real.mean(0)  # distances do not change, rounding shrinks
    real, synthetic = real - centre, synthetic.to(device, torch.float64) - centre
    radii = neighbour_radii(real, wide, max_entries=max_entries)
    real_near, real_wide = radii[:, near - 1], radii[:, wide - 1]
    own_near = neighbour_radii(synthetic, near, max_entries=max_entries)[:, near - 1]
    inside = balls = 0
    reached = torch.zeros(len(real), dtype=torch.bool, device=device)
    covered = torch.zeros_like(reached)
    for part, squared in distance_pieces(synthetic, real, max_entries=max_entries):
        inside += int((squared <= real_near).any(1).sum())
        within = squared <= real_wide
        balls += int(within.sum())
        covered |= within.any(0)
        reached |= (squared <= own_near[part, None]).any(0)
    return Manifold(
        precision=inside / len(synthetic),
        recall=float(reached.double().mean()),
        density=balls / (wide * len(synthetic)),
        coverage=float(covered.double().mean()),
        neighbours=(near, wide),
        num_synthetic=len(synthetic),
        num_real=len(real),
    )


def at_most(features: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """All rows, or `count` of them drawn without replacement."""
    if len(features) <= count:
        return features
    return features[torch.randperm(len(features), generator=generator)[:count]]
