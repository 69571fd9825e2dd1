"""What a generator has to match: released sums, read as mean features of every class. Open side: costs no privacy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from veilset.engines.matching import Target
from veilset.sketch_file import Round


def targets_of(
    rounds: Sequence[Round], weights: Sequence[float], total_weight: float, declared_size: int, device: torch.device
) -> list[Target]:
    """Released sums as mean features of each class: divided by the noisy count of the first round."""
    first = rounds[0].sums
    counts = usable_counts(first[:, -1:] / total_weight, declared_size / len(first))
    by_round = [
        [
            Target(bank.to(device), means.to(device), weight * share)
            for (bank, share), means in zip(part.bank.parts, part.bank.means(part.sums, counts), strict=True)
        ]
        for weight, part in zip(weights, rounds, strict=False)
    ]
    networks, tones = zip(*by_round, strict=True)
    return [*networks, _together(tones)]


def usable_counts(counts: Tensor, even: float) -> Tensor:
    """Noisy counts to divide sums by: a class whose count is near or below zero is treated as if it had a tenth of its
    even share."""
    return counts.clamp(min=0.1 * even)


def _together(targets: Sequence[Target]) -> Target:
    """One measurement that was made in every round: the mean of its results, weighted by 1 / noise variance."""
    weight = sum(target.weight for target in targets)
    means = torch.stack([target.means * (target.weight / weight) for target in targets]).sum(0)
    return Target(targets[0].bank, means, weight)
