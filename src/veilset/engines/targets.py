"""What a generator has to match: released sums, read as mean features of every class. Open side: costs no privacy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.engines.matching import Target
from veilset.sketch_file import Round

MOST_EVENED = 3.0
"""Times the noise of a class, at most: a class that is far too rare to be learned must not take the others with it."""


@dataclass(frozen=True)
class Released:
    """All rounds of a sketch, and what is needed to read their sums as means."""

    rounds: Sequence[Round]
    noises: Sequence[float]
    """Standard deviation of the noise in the sums of each round."""
    total_weight: float
    declared_size: int
    evening: Callable[[str], torch.Generator] | None = None
    """Streams, by name, that even the noise of classes out; None where there is no noise."""

    @property
    def kinds(self) -> int:
        """Of a class in the last round."""
        return self.rounds[-1].bank.kinds_per_class

    def kind_shares(self) -> Tensor:
        """(classes, kinds): how many images of a class are of which kind, by the noisy counts."""
        return self._counts(self.rounds[-1].sums).reshape(-1, self.kinds)

    def sums(self, number: int) -> Tensor:
        """Of a round, with more noise on large classes, as if all classes were as small as the smallest.

        Means of few images have more noise, and a generator turns noise into roughness. Where one class is rougher than
        the others, whoever learns from these images learns that, and takes real images of this class for others.
        """
        part = self.rounds[number]
        if self.evening is None:
            return part.sums
        kinds, draws = part.bank.kinds_per_class, self.evening(f"sketch evening {number}")
        images = self._counts(part.sums).reshape(-1, kinds).sum(1)
        times = (images / images.min()).clamp(max=MOST_EVENED).repeat_interleave(kinds)
        added = self.noises[number] * (times.square() - 1).sqrt()
        numbers = torch.randn(len(added), part.bank.numbers, generator=draws, device=draws.device).cpu()
        sums = part.sums.clone()
        sums[:, : part.bank.numbers] += added[:, None] * numbers
        return sums

    def of_kinds(self, device: torch.device) -> list[Target]:
        """Mean features of each kind of a class, by the last round alone: others know no kinds, and have more noise."""
        return self._targets(self.rounds[-1], self.sums(len(self.rounds) - 1), 1.0, device)

    def of_classes(self, device: torch.device) -> list[Target]:
        """Mean features of each class, whatever its kinds, by all rounds."""
        by_round = [
            self._targets(part, self.sums(number).unflatten(0, (-1, part.bank.kinds_per_class)).sum(1), weight, device)
            for number, (weight, part) in enumerate(zip(self._weights, self.rounds, strict=False))
        ]
        networks, tones = zip(*by_round, strict=True)
        return [*networks, _together(tones)]

    @property
    def _weights(self) -> list[float]:
        """Of the rounds: with Gaussian noise the likelihood weighs squared distances by 1 / noise variance."""
        precisions = [noise**-2 for noise in self.noises]
        return [precision / sum(precisions) for precision in precisions]

    def _targets(self, part: Round, sums: Tensor, weight: float, device: torch.device) -> list[Target]:
        means = part.bank.means(sums, self._counts(sums))
        banks = zip(part.bank.parts, means, strict=True)
        return [Target(bank.to(device), mean.to(device), weight * share) for (bank, share), mean in banks]

    def _counts(self, sums: Tensor) -> Tensor:
        return usable_counts(sums[:, -1:] / self.total_weight, self.declared_size / len(sums))


def usable_counts(counts: Tensor, even: float | Tensor) -> Tensor:
    """Noisy counts to divide sums by: where one is near or below zero, a tenth of an even share takes its place."""
    return counts.clamp(min=0.1 * even)


def _together(targets: Sequence[Target]) -> Target:
    """One measurement that was made in every round: the mean of its results, weighted by 1 / noise variance."""
    weight = sum(target.weight for target in targets)
    means = torch.stack([target.means * (target.weight / weight) for target in targets]).sum(0)
    return Target(targets[0].bank, means, weight)
