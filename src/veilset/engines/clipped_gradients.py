"""Noisy sums over secret batches of private records: of gradients, as in DP-SGD, or of other rows, class by class.

One release is one Poisson sample, one gradient for each record in it, one clip over all parameters together, one exact
sum, and one Gaussian noise on that sum; it is divided by the expected batch, because the size of the sample is secret.
At user level the sample is one of users, and brings all of their images up to the declared cap.
Reference: Abadi et al. 2016, "Deep Learning with Differential Privacy", algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from veilset.data.spec import ImageSet, to_unit_range
from veilset.engines.feature_sums import first_rows_of_each_user
from veilset.errors import ConfigError
from veilset.privacy.bounds import Adjacency, GroupedSum, clip_rows, sum_sensitivity, with_total
from veilset.privacy.events import Composed, Event, Gaussian, PoissonSampled
from veilset.privacy.release import Door
from veilset.privacy.sampling import Draw, poisson_draw

ASSUMPTIONS = (
    "batches are Poisson samples that stay secret, unless every record is in them",
    "a record's gradient or features depend neither on the other records of its batch nor on its place among them",
)
"""Of the claim of every method that releases sums over samples; the sensitivity search tests the second."""

RECORDS_AT_ONCE = {"cpu": 8, "cuda": 512}
"""At most. Their activations and gradients fit the cache of a CPU; a GPU takes most samples whole, as it waits for the
host between two batches."""
WIDTH_STEP = 16
"""Networks have a multiple of this many channels. A record's numbers then lie on whole vectors of a CPU at every place
of its batch; at other widths, last bits of its gradient changed with its place."""
ROWS_AT_ONCE = {"cpu": 4, "cuda": 512}
"""That are clipped together: as above, and without effect on the result."""


Rows = Callable[[Tensor, Tensor], Tensor]
"""(inputs, labels) -> one row for each record, from that record alone."""


class Gradients(Protocol):
    """Rows that are gradients: `PerSampleGradients`, or what was made of them row by row."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor: ...

    def shaped(self, row: Tensor) -> list[Tensor]:
        """A row in the shapes of the parameters."""


@dataclass(frozen=True, kw_only=True)
class GradientTerms:
    """The public side of a release: a plan is made from this alone."""

    declared_size: int
    expected_batch: int
    clip_norm: float
    rows_per_user: int | None = None
    """The cap at user level, None at record level."""
    total_weight: float = 0.0
    """Of a record count that goes with every row, for its class; none where it is 0."""
    option: str = "expected_batch"
    """By which the user sets the batch, for errors."""
    option_times: int = 1
    """The batch is so many times that option."""

    def __post_init__(self) -> None:
        if not 1 <= self.expected_batch <= self.declared_size:
            most, name = self.declared_size // self.option_times, f"--{self.option.replace('_', '-')}"
            given = f" ({self.option_times:,} times {name} {self.expected_batch // self.option_times:,})"
            # A larger sample saves little: nearly everybody is in it.
            smaller = f"Use {name} from 1 to {most}, for example {name} {max(1, most // 3)}."
            raise ConfigError(
                f"a sample of 1 to {self.declared_size:,} images on average, as the declared size is "
                f"{self.declared_size:,}",
                f"{self.expected_batch:,}{given if self.option_times > 1 else ''}",
                smaller if most else "Declare more images, or use another method.",
            )

    @property
    def rate(self) -> float:
        return self.expected_batch / self.declared_size

    @property
    def row_norm(self) -> float:
        """At most, of a row with its count."""
        return math.hypot(self.clip_norm, self.total_weight)

    @property
    def large_sample(self) -> int:
        """Records of a sample that few samples exceed (four deviations, where nobody has more than one), in eights."""
        expected = self.expected_batch * (self.rows_per_user or 1)
        return 8 * math.ceil((expected + 4 * math.sqrt(expected)) / 8)

    def event(self, noise_multiplier: float, adjacency: Adjacency, *others: float) -> Event:
        """What one release is charged as; with the noise of `others`, so many releases on one sample."""
        first = Gaussian(noise_multiplier)
        releases = Composed((first, *map(Gaussian, others))) if others else first
        return PoissonSampled(self.rate, releases, 1 / sum_sensitivity(1.0, adjacency))


class ClippedGradients:
    """Releases mean gradients of private images, or other sums of rows, each from a fresh sample.

    Args:
        records_at_once: how many records a forward pass takes; changes rounding and memory, and nothing else.
    """

    def __init__(
        self, images: ImageSet, terms: GradientTerms, *, device: torch.device, records_at_once: int | None = None
    ) -> None:
        self.terms, self.device, self.num_classes = terms, device, images.spec.num_classes
        self.records_at_once = records_at_once or min(RECORDS_AT_ONCE[device.type], terms.large_sample)
        valid, self._users, self._num_units = images.valid, None, len(images)
        if terms.rows_per_user is not None:
            valid = valid & first_rows_of_each_user(images, terms.rows_per_user)
            self._users = torch.as_tensor(images.user_numbers(), dtype=torch.int64, device=device)
            self._num_units = int(self._users.max()) + 1 if len(images) else 0
        self._pixels, self._labels, self._valid = (
            column.to(device) for column in (images.pixels, images.labels, valid)
        )
        self._all_valid = bool(valid.all())

    def release(self, gradients: Gradients, door: Door, noise_multiplier: float) -> list[Tensor]:
        """A noisy mean gradient over a fresh sample, in the shapes of the parameters; it costs `terms.event`."""
        return gradients.shaped(self.release_mean(gradients, self.draw(door), door, noise_multiplier))

    def release_with_counts(
        self, gradients: Gradients, door: Door, noise_multiplier: float
    ) -> tuple[list[Tensor], Tensor]:
        """The same, and with it a noisy count of the sample's records of each class: one sum, one noise, one price."""
        row = self.release_mean(gradients, self.draw(door), door, noise_multiplier)
        numbers = len(row) - self.num_classes
        counts = row[numbers:] * (self.terms.expected_batch / self.terms.total_weight)
        return gradients.shaped(row[:numbers]), counts

    def release_by_class(self, rows_of: Rows, draw: Draw, door: Door, noise_multiplier: float) -> Tensor:
        """Noisy sums of the clipped rows of each class, (classes, numbers). The cost is the same: a record has one."""
        total = self.clipped_sum(rows_of, self.records(draw), num_groups=self.num_classes)
        return door.release_sum(total, noise_multiplier, draw=draw)

    def draw(self, door: Door, *noise_multipliers: float) -> Draw:
        """A fresh sample for one release; or for several, with these noises in this order, all charged with the first.

        An empty sample feeds a release like any other: noise alone.
        """
        feeds = tuple(map(Gaussian, noise_multipliers))
        return poisson_draw(self._num_units, self.terms.rate, door.noise, feeds, self.device)

    def release_mean(
        self, rows_of: Rows, draw: Draw, door: Door, noise_multiplier: float, clip_norm: float | None = None
    ) -> Tensor:
        """The noisy sum of clipped rows over the records of a draw, divided by the expected batch; behind it, where
        there are counts, those of each class."""
        total = self.clipped_sum(rows_of, self.records(draw), clip_norm=clip_norm)
        return door.release_sum(total, noise_multiplier, draw=draw)[0] / self.terms.expected_batch

    def records(self, draw: Draw) -> Tensor:
        """Places of the records of the units drawn: private."""
        units = draw.indices
        return units if self._users is None else torch.isin(self._users, units).nonzero().flatten()

    def batch(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Images and labels of the records drawn: private, and for constructions without a proof."""
        places = self.records(draw).to(self.device)
        places = places[self._valid[places]]
        return to_unit_range(self._pixels[places]), self._labels[places]

    def class_counts(self) -> Tensor:
        """Records of each class: private, and for constructions without a proof."""
        return self._labels[self._valid].bincount(minlength=self.num_classes)

    def clipped_sum(
        self,
        rows_of: Rows,
        sample: Tensor,
        num_groups: int = 1,
        clip_norm: float | None = None,
        total: GroupedSum | None = None,
    ) -> GroupedSum:
        """The exact sum of the clipped rows of the records at `sample`: private until the door adds its noise.

        A record whose row is not finite adds nothing, and neither does a null record. With several groups a record is
        added to that of its label; with one, its count, where there are counts, stands behind its row in the place of
        its label.

        Args:
            clip_norm: where rows of another bound than that of the terms are released on the same sample.
            total: a sum to go on with.
        """
        total = total or GroupedSum(num_groups, rows_per_unit=self.terms.rows_per_user, device=self.device)
        at_once, by_class = ROWS_AT_ONCE[self.device.type], num_groups > 1
        for places in sample.to(self.device).split(self.records_at_once):
            labels, rows = self._labels[places], self._rows(rows_of, places)
            for some, theirs in zip(rows.split(at_once), labels.split(at_once), strict=True):
                bounded = clip_rows(some, clip_norm or self.terms.clip_norm, dtype=torch.float32)
                if weight := self.terms.total_weight:
                    bounded = with_total(bounded, weight, None if by_class else theirs, self.num_classes)
                total.add(bounded, theirs if by_class else torch.zeros_like(theirs))
        return total

    def _rows(self, rows_of: Rows, places: Tensor) -> Tensor:
        """Batches have a fixed shape, so that a record's row cannot depend on how many others there are through the
        choice of a numerical kernel. Places beyond the sample hold black images, whose rows are left out."""
        number = len(places)
        inputs = torch.zeros(self.records_at_once, *self._pixels.shape[1:], device=self.device)
        labels = torch.zeros(self.records_at_once, dtype=torch.int64, device=self.device)
        inputs[:number], labels[:number] = to_unit_range(self._pixels[places]), self._labels[places]
        rows = rows_of(inputs, labels)[:number]
        if self._all_valid:  # a GPU would wait for the host to find none
            return rows
        null_records = (~self._valid[places]).nonzero().flatten()
        return rows.index_fill_(0, null_records, 0)


def clipped_mean(rows_of: Rows, inputs: Tensor, labels: Tensor, clip_norm: float) -> Tensor:
    """The mean of rows of public images that are clipped as those of private ones are."""
    at_once, total = RECORDS_AT_ONCE[inputs.device.type], GroupedSum(1, device=inputs.device)
    for some, their_labels in zip(inputs.split(at_once), labels.split(at_once), strict=True):
        total.add(clip_rows(rows_of(some, their_labels), clip_norm, dtype=torch.float32), their_labels)
    assert total.grid_total is not None
    return total.grid_total[0] * (total.grid_step / len(inputs))


def check_width(width: int) -> None:
    """Raises: ConfigError for a network whose gradients would depend on a record's place."""
    if width < 1 or width % WIDTH_STEP:
        raise ConfigError(
            f"a width of networks that is a multiple of {WIDTH_STEP}", f"{width}", "Correct --width (or --dense-width)."
        )
