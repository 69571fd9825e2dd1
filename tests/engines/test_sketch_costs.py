"""Forecasts of a sketch: what is done is counted, and nothing else."""

from __future__ import annotations

import pytest

from veilset.data.spec import ImageSpec
from veilset.engines.contexts import PublicFacts
from veilset.engines.feature_sums import BATCH
from veilset.engines.sketch_costs import ROW_VALUES, forecast_of_measuring, rows_at_once, training_seconds
from veilset.engines.sketch_settings import SketchConfig
from veilset.privacy.bounds import Adjacency, Unit
from veilset.sketch_file import Layout

SPEC = ImageSpec(height=28, width=28, channels=1, class_names=("a", "b"))
FACTS = PublicFacts(spec=SPEC, declared_size=60_000, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)


def layout(networks: int, *later: tuple[int, int, int]) -> Layout:
    return Layout(networks=networks, width=32, network_seed=0, total_weight=0.15, tone_share=0.1, later=later)


def test_a_generator_is_trained_briefly_after_every_round_but_the_last() -> None:
    def brief(rounds: int) -> float:
        few, many = (SketchConfig(rounds=rounds, first_steps=steps) for steps in (1, 1001))
        return training_seconds(many, SPEC) - training_seconds(few, SPEC)

    assert brief(1) == 0
    assert brief(3) == pytest.approx(2 * brief(2))


def test_rounds_are_measured_one_after_the_other_and_each_can_be_measured_alone() -> None:
    both, first = layout(4, (6, 32, 3)), layout(4)
    whole, one, other = (
        forecast_of_measuring(which, FACTS, 1.0, start=start) for which, start in ((both, 0), (first, 0), (both, 1))
    )
    assert whole.seconds - 10 == pytest.approx(one.seconds - 10 + other.seconds - 10)
    assert (other.seconds - 10) / (one.seconds - 10) == pytest.approx(6 / 4)
    assert max(one.megabytes, other.megabytes) < whole.megabytes < one.megabytes + other.megabytes
    assert whole.released.startswith(
        "per class a noisy sum of measurements of length 1 and a count, then 1 more for each"
    )


@pytest.mark.parametrize(("networks", "rows"), [(4, BATCH * (4 * 288 + 1225)), (1000, ROW_VALUES)])
def test_a_pass_holds_the_rows_of_a_batch_and_never_too_many(networks: int, rows: int) -> None:
    row = networks * 288 + 1225
    assert row * rows_at_once(row) == pytest.approx(rows, rel=0.02)
    found = forecast_of_measuring(layout(networks), FACTS, 1.0).megabytes
    assert found == pytest.approx(400 + 1e-6 * 60_000 * 784 + 64e-6 * rows + 16e-6 * 2 * row, rel=0.02)
