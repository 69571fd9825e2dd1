"""How many images of each class a sample holds: a running estimate from noisy counts. Open side: costs no privacy."""

from __future__ import annotations

import torch
from torch import Tensor

from veilset.engines.clipped_gradients import GradientTerms
from veilset.engines.contexts import FitContext
from veilset.engines.targets import usable_counts

UNEVEN = 0.5
"""How far shares of groups are expected to be from even, of an even share; and all images from those expected."""


class NoisyCounts:
    """How many images of each group are in a batch, by all counts that were released so far.

    A single count can be far off. So even shares of all images count as much as batches whose counts are, together, as
    uncertain as these shares are: the more noise, the more batches. How many images there are in all is found likewise,
    and sooner, as their number is larger: from the expected batch and the counts. At user level a batch is of users, of
    whom each brings from one image up to the cap: the middle is expected.

    Args:
        sums: (groups,), in which they are added up; whoever resumes puts the sums of earlier batches there.
        noise_std: of the noise in a count.
    """

    def __init__(self, sums: Tensor, expected_batch: int, noise_std: float, rows_per_user: int | None = None) -> None:
        self.sums, cap = sums, rows_per_user or 1
        each = (1 + cap) / 2
        self.expected = expected_batch * each
        even, noise = self.expected / len(sums), noise_std**2
        # A Poisson sample holds so many images of a group with a variance of their number, times what each unit brings.
        self.first_seen = (noise + even * each) / (UNEVEN * even) ** 2
        unsure = max(UNEVEN, (cap - 1) / (cap + 1)) * self.expected
        self.total_first_seen = (len(sums) * noise + self.expected * each) / unsure**2

    @classmethod
    def of(cls, terms: GradientTerms, context: FitContext, num_groups: int) -> NoisyCounts:
        """Of the counts that a fit releases on these terms."""
        noise_std = context.noise_drawn * context.facts.sensitivity(terms.row_norm) / terms.total_weight
        sums = torch.zeros(num_groups, dtype=torch.float64, device=context.device)
        return cls(sums, terms.expected_batch, noise_std, terms.rows_per_user)

    def after(self, counts: Tensor, batches: int) -> Tensor:
        """With these counts of one more batch, of which there are then so many."""
        self.sums += counts
        total = (self.sums.sum() + self.total_first_seen * self.expected) / (self.total_first_seen + batches)
        even = usable_counts(total, self.expected) / len(self.sums)
        return usable_counts((self.sums + self.first_seen * even) / (self.first_seen + batches), even)

    def shares_after(self, counts: Tensor, batches: int) -> Tensor:
        """The same as shares, of an even one each: 1 where groups are even."""
        counts = self.after(counts, batches)
        return counts / counts.mean()
