"""Copies: among the synthetic images, and of real images. A memoriser and a latent space of few codes show here."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from veilset.data.spec import to_unit_range
from veilset.evaluate.distances import nearest

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95)
MAX_REFERENCES = 2000
"""Real images whose distance to the nearest other real image is measured, for comparison."""


def duplicate_counts(pixels: Tensor) -> dict[str, int]:
    """How many images repeat an earlier one, byte by byte, and how often the most frequent image occurs."""
    counts = Counter(_rows(pixels))
    return {
        "num_unique": len(counts),
        "num_duplicates": len(pixels) - len(counts),
        "largest_group": max(counts.values(), default=0),
    }


def exact_copies(synthetic: Tensor, real: Tensor) -> int:
    """How many synthetic images equal some real image, byte by byte."""
    known = set(_rows(real))
    return sum(row in known for row in _rows(synthetic))


def _rows(pixels: Tensor) -> list[bytes]:
    return [row.tobytes() for row in pixels.cpu().flatten(1).numpy()]


def nearest_real(synthetic: Tensor, real: Tensor, *, device: torch.device | str = "cpu") -> Tensor:
    """Euclidean distance of every synthetic image to its nearest real one, with pixels in [0, 1]."""
    return nearest(_vectors(synthetic, device), _vectors(real, device)).cpu()


def real_to_real(real: Tensor, generator: torch.Generator, *, device: torch.device | str = "cpu") -> Tensor:
    """The same distance from real images to the nearest *other* real one: what honest variety looks like."""
    picked = torch.randperm(len(real), generator=generator)[:MAX_REFERENCES]
    vectors = _vectors(real, device)
    picked = picked.to(vectors.device)
    return nearest(vectors[picked], vectors, skip=picked).cpu()


def _vectors(pixels: Tensor, device: torch.device | str) -> Tensor:
    return to_unit_range(pixels.to(device)).flatten(1).double()


def quantiles(distances: Tensor) -> dict[str, float]:
    """By the name of the quantile, as JSON wants it."""
    at = torch.quantile(distances.double(), torch.tensor(QUANTILES, dtype=torch.float64))
    return {str(share): float(value) for share, value in zip(QUANTILES, at, strict=True)}
