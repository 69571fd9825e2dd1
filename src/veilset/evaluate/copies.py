"""Copies: among the synthetic images, and of real images. A memoriser and a latent space of few codes show here."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from veilset.data.fingerprints import image_digests
from veilset.data.spec import to_unit_range
from veilset.evaluate.distances import squared_distances

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95)
MAX_REFERENCES = 2000
"""Real images whose distance to the nearest other real image is measured, for comparison."""
CHUNK_VALUES = 1 << 24
"""Pixel values that are compared at once in double precision: 128 MB for each of the two sides."""


def duplicate_counts(pixels: Tensor) -> dict[str, int]:
    """How many images repeat an earlier one, byte by byte, and how often the most frequent image occurs."""
    counts = Counter(image_digests(pixels))
    return {
        "num_unique": len(counts),
        "num_duplicates": len(pixels) - len(counts),
        "largest_group": max(counts.values(), default=0),
    }


def exact_copies(synthetic: Tensor, real: Tensor) -> int:
    """How many synthetic images equal some real image, byte by byte."""
    known = set(image_digests(real))
    return sum(row in known for row in image_digests(synthetic))


def nearest_real(synthetic: Tensor, real: Tensor, *, device: torch.device | str = "cpu") -> Tensor:
    """Euclidean distance of every synthetic image to its nearest real one, with pixels in [0, 1]."""
    return _nearest(synthetic, real, torch.device(device))


def real_to_real(real: Tensor, generator: torch.Generator, *, device: torch.device | str = "cpu") -> Tensor:
    """The same distance from real images to the nearest *other* real one: what honest variety looks like."""
    picked = torch.randperm(len(real), generator=generator)[:MAX_REFERENCES]
    return _nearest(real[picked], real, torch.device(device), skip=picked)


def _nearest(rows: Tensor, columns: Tensor, device: torch.device, *, skip: Tensor | None = None) -> Tensor:
    """Distances to the nearest column; `skip[i]` is a column that row i may not use: itself.

    Both sides stay 8-bit but for one piece of each, so that memory does not grow with the number of large images.
    """
    size = max(1, min(CHUNK_VALUES // max(1, rows[0].numel()), 4096))
    found = []
    for start in range(0, len(rows), size):
        ours = _vectors(rows[start : start + size], device)
        least = torch.full((len(ours),), torch.inf, dtype=torch.float64, device=device)
        for first in range(0, len(columns), size):
            squared = squared_distances(ours, _vectors(columns[first : first + size], device))
            if skip is not None:
                own = skip[start : start + size].to(device) - first
                inside = ((own >= 0) & (own < squared.shape[1])).nonzero().flatten()
                squared[inside, own[inside]] = torch.inf
            least = torch.minimum(least, squared.min(dim=1).values)
        found.append(least.sqrt().cpu())
    return torch.cat(found)


def _vectors(pixels: Tensor, device: torch.device) -> Tensor:
    return to_unit_range(pixels.to(device)).flatten(1).double()


def quantiles(distances: Tensor) -> dict[str, float]:
    """By the name of the quantile, as JSON wants it."""
    at = torch.quantile(distances.double(), torch.tensor(QUANTILES, dtype=torch.float64))
    return {str(share): float(value) for share, value in zip(QUANTILES, at, strict=True)}
