"""Counts of classes that go with a gradient in one release: what they are, what bounds them, and mistakes with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images
from contract.sensitivity import RecordingDoor, SameCoins, nulled, violations
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from veilset.data.spec import ImageSet
from veilset.engines.clipped_gradients import ClippedGradients, GradientTerms
from veilset.engines.per_sample_gradients import PerSampleGradients
from veilset.methods.base import FitContext, PublicFacts
from veilset.nets.classifiers import ConvNet
from veilset.privacy.bounds import GRID, Adjacency, GroupedSum, Unit, clip_rows, with_total
from veilset.privacy.events import NOTHING, Event
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import NoiseSource, SeededNoise
from veilset.randomness import named_generator

CPU = torch.device("cpu")
IMAGES = make_images((9, 4, 2), null_rows=(3,))
FACTS = PublicFacts(spec=IMAGES.spec, declared_size=15, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
TERMS = GradientTerms(declared_size=15, expected_batch=15, clip_norm=0.5, total_weight=0.2)
"""Everybody is in the sample."""


def door_for(folder: Path, noise: NoiseSource) -> RecordingDoor:
    ledger = PrivacyLedger.open_new(
        folder / "ledger.jsonl", planned=TERMS.event(1.0, FACTS.adjacency), reserve=NOTHING, adjacency=FACTS.adjacency,
        unit=FACTS.unit, delta=1e-5, not_private="test",
    )  # fmt: skip
    return RecordingDoor(ledger, noise)


def gradients_of(images: ImageSet) -> PerSampleGradients:
    return PerSampleGradients(ConvNet(images.spec, named_generator(0, "weights"), width=16))


class Zeros:
    """Rows without any length, of so many numbers."""

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.zeros(len(inputs), self.numbers)

    def shaped(self, row: Tensor) -> list[Tensor]:
        return [row]


def test_a_release_has_the_mean_gradient_of_all_classes_and_the_records_of_each(tmp_path: Path) -> None:
    gradients, door = gradients_of(IMAGES), door_for(tmp_path, SameCoins(0))
    found, counts = ClippedGradients(IMAGES, TERMS, device=CPU).release_with_counts(gradients, door, 1.0)
    (tmp_path / "alone").mkdir()
    alone = ClippedGradients(IMAGES, GradientTerms(declared_size=15, expected_batch=15, clip_norm=0.5), device=CPU)
    plain = alone.release(gradients, door_for(tmp_path / "alone", SameCoins(0)), 1.0)
    for mine, theirs in zip(found, plain, strict=True):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, atol=4 * GRID)
    expected = IMAGES.labels[IMAGES.valid].bincount(minlength=3)
    assert expected.sum() == 14, "a null record counts for no class"
    assert counts.tolist() == pytest.approx(expected.tolist(), abs=1e-3)


def test_gradient_and_counts_are_one_row_one_noise_and_one_charge(tmp_path: Path) -> None:
    door = door_for(tmp_path, SeededNoise(0))
    found, counts = ClippedGradients(IMAGES, TERMS, device=CPU).release_with_counts(Zeros(30_000), door, 1.0)
    ((event, times),) = door.ledger.charged.items()
    assert (event, times) == (TERMS.event(1.0, FACTS.adjacency), 1)
    (capture,) = door.captures
    assert capture.allowed == TERMS.row_norm == math.hypot(0.5, 0.2)
    # A deviation of 30,000 normal numbers is within 2 % of the true one but once in a million.
    assert float(found[0].std() * 15) == pytest.approx(TERMS.row_norm, rel=0.02)
    assert float(counts.abs().max()) < 6 * TERMS.row_norm / 0.2
    door.ledger.close()


def test_a_row_that_is_not_finite_is_counted_for_no_class() -> None:
    def broken(inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.where(labels[:, None] == 1, torch.nan, torch.ones(len(inputs), 4))

    total = ClippedGradients(IMAGES, TERMS, device=CPU).clipped_sum(broken, torch.arange(15)).grid_total
    assert total is not None
    counts = IMAGES.labels[IMAGES.valid].bincount(minlength=3)
    counts[1] = 0
    found = total[0, 4:] * TERMS.row_norm * GRID / TERMS.total_weight
    assert found.tolist() == pytest.approx(counts.tolist(), abs=1e-3)


ENTRIES = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, 1e-45, 3.4e38, -3.4e38, math.nan, math.inf]), st.floats(-1, 1, width=32)
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(ENTRIES, min_size=3, max_size=3), min_size=1, max_size=9),
    clip=st.sampled_from([1e-9, 0.1, 1e6]),
    share=st.sampled_from([1e-3, 0.15, 10.0]),
)
def test_any_row_with_its_count_is_within_the_bound_that_is_charged(
    rows: list[list[float]], clip: float, share: float
) -> None:
    labels = torch.arange(len(rows)) % 4
    bounded = with_total(clip_rows(torch.tensor(rows), clip, dtype=torch.float32), share * clip, labels, 4)
    assert bounded.bound == math.hypot(clip, share * clip)
    assert float(bounded.grid_rows.double().norm(dim=1).max()) <= 1 / GRID
    counts = bounded.grid_rows[:, 3:] * bounded.grid_step
    assert not bool(counts[torch.arange(4) != labels[:, None]].any())
    assert float(counts.max()) <= share * clip


@pytest.mark.parametrize("shift", [1, 5, 7])
def test_a_record_has_the_same_row_and_count_at_every_place(shift: int) -> None:
    rows = torch.randn(8, 3001, generator=named_generator(0, "rows"))
    labels = torch.arange(8) % 3
    straight, moved = (
        with_total(clip_rows(some, 0.1, dtype=torch.float32), 0.015, theirs, 3).grid_rows
        for some, theirs in ((rows, labels), (rows.roll(shift, 0), labels.roll(shift, 0)))
    )
    assert torch.equal(moved, straight.roll(shift, 0))


# --- mistakes: the search passes the engine, and finds a neighbour for the engine with each mistake ------------------


class Counting:
    """A release of gradients with counts, as the contract's sensitivity search wants its methods."""

    def __init__(self, engine: type[ClippedGradients]) -> None:
        self.engine = engine

    def events(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        return TERMS.event(noise_multiplier, facts.adjacency)

    def fit(self, config: Any, images: ImageSet, context: FitContext) -> None:
        self.engine(images, TERMS, device=CPU).release_with_counts(
            gradients_of(images), context.door, context.noise_multiplier
        )


class Uncharged(ClippedGradients):
    """Adds whole records to the sum of rows that were bounded without them."""

    def clipped_sum(self, rows_of: Any, sample: Tensor, *args: Any, **options: Any) -> GroupedSum:
        total = super().clipped_sum(rows_of, sample, *args, **options)
        assert total.grid_total is not None
        counts = self._labels[sample][self._valid[sample]].bincount(minlength=3)
        total.grid_total[0, -3:] = (counts / GRID).long()
        return total


class Shares(ClippedGradients):
    """Counts are shares of the sample, so that one record changes those of all classes, and the more the fewer."""

    def clipped_sum(self, rows_of: Any, sample: Tensor, *args: Any, **options: Any) -> GroupedSum:
        total = super().clipped_sum(rows_of, sample, *args, **options)
        assert total.grid_total is not None
        counts = total.grid_total[0, -3:]
        total.grid_total[0, -3:] = (counts / counts.sum().clamp(min=1) * 5 / GRID).long()
        return total


def found_by_search(engine: type[ClippedGradients], adjacency: Adjacency) -> list[str]:
    facts = PublicFacts(spec=IMAGES.spec, declared_size=15, adjacency=adjacency, unit=Unit.RECORD)
    return violations(Counting(engine), None, facts, (nulled(IMAGES, place) for place in range(15)))


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_record_moves_a_release_with_counts_beyond_its_bound(adjacency: Adjacency) -> None:
    assert found_by_search(ClippedGradients, adjacency) == []


@pytest.mark.parametrize("mistake", [Uncharged, Shares])
def test_a_mistake_with_counts_is_noticed(mistake: type[ClippedGradients]) -> None:
    assert found_by_search(mistake, Adjacency.ADD_REMOVE) != []


def test_a_record_that_changes_its_class_moves_a_release_by_no_more_than_two_rows() -> None:
    labels = IMAGES.labels.clone()
    labels[0] = (labels[0] + 1) % 3
    other = ImageSet(spec=IMAGES.spec, pixels=IMAGES.pixels, labels=labels, valid=IMAGES.valid)
    one, two = (
        ClippedGradients(images, TERMS, device=CPU).clipped_sum(gradients_of(images), torch.arange(15)).grid_total
        for images in (IMAGES, other)
    )
    assert one is not None
    assert two is not None
    assert (one - two)[0, -3:].sign().tolist() == [
        int(label == IMAGES.labels[0]) - int(label == labels[0]) for label in range(3)
    ]
    assert float((one - two).double().norm()) * GRID <= 2 * (1 + 1e-6)
