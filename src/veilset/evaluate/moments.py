"""Distances between the feature distributions of two image sets: FID and KID. Pure functions of feature arrays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.errors import DataError

KID_SUBSET = 1000
KID_SUBSETS = 100
_PIECE = 8192


def frechet_distance(mean_a: Tensor, covariance_a: Tensor, mean_b: Tensor, covariance_b: Tensor) -> float:
    """Squared Fréchet distance of two Gaussians: |a - b|^2 + tr(A + B - 2 (A B)^(1/2)).

    The eigenvalues of A B are those of the symmetric A^(1/2) B A^(1/2): real, and negative only by rounding. So there
    is no matrix square root that can fail and no imaginary part to drop.
    """
    values, vectors = torch.linalg.eigh(covariance_a)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    product = root @ covariance_b @ root
    overlap = torch.linalg.eigvalsh((product + product.T) / 2).clamp_min(0).sqrt().sum()
    spread = covariance_a.trace() + covariance_b.trace() - 2 * overlap
    return max(0.0, float((mean_a - mean_b).square().sum() + spread))


def mean_and_covariance(features: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """In double precision, with n - 1 in the denominator, as every published FID uses it."""
    _check_count(features, "the covariance")
    pieces = features.split(_PIECE)
    mean = sum((p.to(device, torch.float64).sum(0) for p in pieces), torch.zeros((), device=device)) / len(features)
    products = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64, device=device)
    for piece in pieces:
        centred = piece.to(device, torch.float64) - mean
        products.addmm_(centred.T, centred)
    return mean, products / (len(features) - 1)


def fid(synthetic: Tensor, real: Tensor, *, device: torch.device | str = "cpu") -> float:
    """Fréchet distance of the Gaussians with the features' means and covariances (Heusel et al. 2017)."""
    return frechet_distance(*mean_and_covariance(synthetic, device), *mean_and_covariance(real, device))


@dataclass(frozen=True)
class Kid:
    mean: float
    subset_sd: float | None
    """Spread over the subsets; None where there is but one."""
    subset_size: int
    num_subsets: int


def kid(
    synthetic: Tensor,
    real: Tensor,
    generator: torch.Generator,
    *,
    subset_size: int = KID_SUBSET,
    num_subsets: int = KID_SUBSETS,
    device: torch.device | str = "cpu",
) -> Kid:
    """Unbiased squared MMD with the kernel (x y / dim + 1)^3, averaged over subsets (Bińkowski et al. 2018).

    Unbiased: for equal distributions the expectation is 0 at every sample size, so that values may be negative.
    """
    for features in (synthetic, real):
        _check_count(features, "KID")
    size = min(subset_size, len(synthetic), len(real))
    if size == len(synthetic) == len(real):
        num_subsets = 1
    values = []
    for _ in range(num_subsets):
        picked = [
            rows[torch.randperm(len(rows), generator=generator)[:size]].to(device, torch.float64)
            for rows in (synthetic, real)
        ]
        values.append(squared_mmd(*picked))
    spread = torch.tensor(values, dtype=torch.float64)
    sd = float(spread.std()) if num_subsets > 1 else None
    return Kid(float(spread.mean()), sd, size, num_subsets)


def squared_mmd(a: Tensor, b: Tensor) -> float:
    """The unbiased estimate from two float64 samples, which may differ in size."""

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.T / x.shape[1] + 1) ** 3

    def without_diagonal(x: Tensor) -> Tensor:
        values = kernel(x, x)
        return (values.sum() - values.trace()) / (len(x) * (len(x) - 1))

    return float(without_diagonal(a) + without_diagonal(b) - 2 * kernel(a, b).mean())


def _check_count(features: Tensor, what: str) -> None:
    if len(features) < 2:
        raise DataError(f"at least 2 images for {what}", f"{len(features)}", "Sample or read more images.")
