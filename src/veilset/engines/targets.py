"""What a generator has to match: released sums, read as mean features of every class. Open side: costs no privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.engines.matching import Target
from veilset.sketch_file import Round


@dataclass(frozen=True)
class Released:
    """All rounds of a sketch, and what is needed to read their sums as means."""

    rounds: Sequence[Round]
    weights: Sequence[float]
    """Of the rounds, in proportion to 1 / noise variance."""
    total_weight: float
    declared_size: int

    @property
    def kinds(self) -> int:
        """Of a class in the last round."""
        return self.rounds[-1].bank.kinds_per_class

    def kind_shares(self) -> Tensor:
        """(classes, kinds): how many images of a class are of which kind, by the noisy counts."""
        return self._counts(self.rounds[-1].sums).reshape(-1, self.kinds)

    def of_kinds(self, device: torch.device) -> list[Target]:
        """Mean features of each kind of a class, by the last round alone: others know no kinds, and have more noise."""
        last = self.rounds[-1]
        return self._targets(last, last.sums, 1.0, device)

    def of_classes(self, device: torch.device) -> list[Target]:
        """Mean features of each class, whatever its kinds, by all rounds."""
        by_round = [
            self._targets(part, part.sums.unflatten(0, (-1, part.bank.kinds_per_class)).sum(1), weight, device)
            for weight, part in zip(self.weights, self.rounds, strict=False)
        ]
        networks, tones = zip(*by_round, strict=True)
        return [*networks, _together(tones)]

    def _targets(self, part: Round, sums: Tensor, weight: float, device: torch.device) -> list[Target]:
        means = part.bank.means(sums, self._counts(sums))
        banks = zip(part.bank.parts, means, strict=True)
        return [Target(bank.to(device), mean.to(device), weight * share) for (bank, share), mean in banks]

    def _counts(self, sums: Tensor) -> Tensor:
        return usable_counts(sums[:, -1:] / self.total_weight, self.declared_size / len(sums))


def usable_counts(counts: Tensor, even: float) -> Tensor:
    """Noisy counts to divide sums by: where one is near or below zero, a tenth of an even share takes its place."""
    return counts.clamp(min=0.1 * even)


def _together(targets: Sequence[Target]) -> Target:
    """One measurement that was made in every round: the mean of its results, weighted by 1 / noise variance."""
    weight = sum(target.weight for target in targets)
    means = torch.stack([target.means * (target.weight / weight) for target in targets]).sum(0)
    return Target(targets[0].bank, means, weight)
