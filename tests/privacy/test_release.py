import math
from pathlib import Path

import pytest
import torch
from account_checks import check_charge_precedes_noise
from checks import (
    ADD,
    REPLACE,
    check_matched_filter,
    check_released_noise,
    check_released_rows_noise,
    check_released_sensitivity,
    check_test_noise_is_refused,
    make_door,
    open_ledger,
)

from veilset.errors import BudgetExceeded, LedgerError, NotBounded, UnsupportedEvent
from veilset.privacy.bounds import Bounded, GroupedSum, Unit, clip_rows, normalise_rows, sum_rows
from veilset.privacy.events import Composed, Gaussian, PoissonSampled, Repeated, ShardTouched
from veilset.privacy.noise import NoiseSource, NoNoise, SeededNoise
from veilset.privacy.release import Door
from veilset.privacy.sampling import poisson_draw, shard_draw


def some_rows() -> Bounded:
    return clip_rows(torch.tensor([[3.0, 4.0], [0.1, 0.2]]), 1.0)


def test_the_charge_is_on_disk_before_noise_is_drawn(tmp_path: Path) -> None:
    check_charge_precedes_noise(tmp_path)


def test_released_noise_has_the_stated_scale_for_each_adjacency_and_lies_on_the_grid(tmp_path: Path) -> None:
    check_released_noise(tmp_path)


def test_rows_of_one_answer_are_noised_for_their_joint_sensitivity(tmp_path: Path) -> None:
    check_released_rows_noise(tmp_path)


def test_the_best_attack_on_the_door_gains_what_was_charged(tmp_path: Path) -> None:
    check_matched_filter(tmp_path)


def test_without_noise_a_hostile_record_moves_the_release_by_at_most_the_sensitivity(tmp_path: Path) -> None:
    check_released_sensitivity(tmp_path)


def test_test_noise_is_refused_where_privacy_is_claimed(tmp_path: Path) -> None:
    check_test_noise_is_refused(tmp_path)


def test_a_release_without_noise_is_the_sum_itself(tmp_path: Path) -> None:
    rows = some_rows()
    found = make_door(tmp_path, NoNoise(), Gaussian(1.0)).release_sum(sum_rows(rows), 1.0)
    assert torch.equal(found[0], rows.grid_rows.sum(dim=0).double() * rows.grid_step)
    assert found.dtype == torch.float64


@pytest.mark.parametrize("value", [torch.ones(3), GroupedSum(2), None], ids=["a tensor", "an empty sum", "nothing"])
def test_a_sum_without_bounds_is_refused_and_not_charged(value: object, tmp_path: Path) -> None:
    door = make_door(tmp_path, NoNoise(), Gaussian(1.0))
    with pytest.raises(NotBounded):
        door.release_sum(value, 1.0)
    assert not door.ledger.charged


def test_rows_without_bounds_are_refused_and_not_charged(tmp_path: Path) -> None:
    door = make_door(tmp_path, NoNoise(), Gaussian(1.0))
    for value in (torch.ones(3, 3), sum_rows(some_rows())):
        with pytest.raises(NotBounded):
            door.release_rows(value, 1.0)
    assert not door.ledger.charged


def test_at_user_level_a_sum_needs_its_cap(tmp_path: Path) -> None:
    door = make_door(tmp_path, SeededNoise(0), Gaussian(1.0), unit=Unit.USER)
    with pytest.raises(NotBounded):
        door.release_sum(sum_rows(some_rows()), 1.0)
    total = GroupedSum(1, rows_per_unit=3)
    total.add(some_rows(), torch.zeros(2, dtype=torch.int64))
    door.release_sum(total, 1.0)


def test_at_user_level_noise_grows_with_the_cap(tmp_path: Path) -> None:
    spread = []
    for cap in (1, 4):
        total = GroupedSum(1, rows_per_unit=cap)
        total.add(clip_rows(torch.zeros(1, 1000), 1.0), torch.zeros(1, dtype=torch.int64))
        spread.append(make_door(tmp_path, SeededNoise(1), Gaussian(1.0), unit=Unit.USER).release_sum(total, 1.0))
    assert torch.allclose(spread[1], 4 * spread[0], atol=1e-5)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf])
def test_impossible_noise_is_refused_before_anything_is_drawn(multiplier: float, tmp_path: Path) -> None:
    with pytest.raises(LedgerError):
        make_door(tmp_path, NoNoise(), Gaussian(1.0)).release_sum(sum_rows(some_rows()), multiplier)


def test_a_release_outside_the_plan_is_refused(tmp_path: Path) -> None:
    door = make_door(tmp_path, NoNoise(), Gaussian(1.0))
    with pytest.raises(BudgetExceeded):
        door.release_sum(sum_rows(some_rows()), 2.0)


@pytest.mark.parametrize(
    ("adjacency", "nonnegative", "absence"),
    [(ADD, False, 1.0), (ADD, True, 1.0), (REPLACE, False, 0.5), (REPLACE, True, 1 / math.sqrt(2))],
)
def test_a_sampled_sum_is_charged_with_its_absence(adjacency, nonnegative, absence, tmp_path: Path) -> None:
    event = PoissonSampled(0.25, Gaussian(2.0), absence)
    door = make_door(tmp_path, SeededNoise(0), event, adjacency)
    rows = clip_rows(torch.ones(8, 2), 0.3, nonnegative=nonnegative)
    door.release_sum(sum_rows(rows), 2.0, draw=poisson_draw(8, 0.25, door.noise))
    assert door.ledger.charged[event] == 1


def test_a_draw_that_was_not_paid_for_feeds_no_second_release(tmp_path: Path) -> None:
    feeds = (Gaussian(1.0), Gaussian(1.0))
    door = make_door(tmp_path, SeededNoise(0), PoissonSampled(0.25, Composed(feeds), 1.0))
    total = sum_rows(some_rows())
    for draw in [poisson_draw(8, 0.25, door.noise, feeds)]:
        door.release_sum(total, 1.0, draw=draw)
        door.release_sum(total, 1.0, draw=draw)
    unpaid = poisson_draw(8, 0.25, door.noise, feeds)
    with pytest.raises(BudgetExceeded):
        door.release_sum(total, 1.0, draw=unpaid)
    with pytest.raises(UnsupportedEvent):
        door.release_sum(total, 1.0, draw=unpaid)


def test_rows_of_a_black_box_are_charged_with_full_absence(tmp_path: Path) -> None:
    event = PoissonSampled(0.25, Gaussian(2.0), 1.0)
    door = make_door(tmp_path, SeededNoise(0), event, REPLACE)
    door.release_rows(some_rows(), 2.0, draw=poisson_draw(8, 0.25, door.noise))
    assert door.ledger.charged[event] == 1


def test_rows_of_a_shard_are_charged_as_one_touch(tmp_path: Path) -> None:
    event = ShardTouched(10, "uniform", Gaussian(2.0))
    door = make_door(tmp_path, SeededNoise(0), event)
    door.release_rows(some_rows(), 2.0, draw=shard_draw(0, 10, "uniform", door.noise))
    assert door.ledger.charged[event] == 1


def test_two_releases_of_one_sum_carry_different_noise(tmp_path: Path) -> None:
    door = Door(open_ledger(tmp_path / "ledger.jsonl", Repeated(2, Gaussian(1.0))), NoiseSource())
    total = sum_rows(some_rows())
    assert not torch.equal(door.release_sum(total, 1.0), door.release_sum(total, 1.0))


def test_a_second_release_on_one_draw_is_refused_before_its_charge(tmp_path: Path) -> None:
    event = ShardTouched(10, "uniform", Gaussian(2.0))
    door = make_door(tmp_path, SeededNoise(0), Repeated(2, event))
    draw = shard_draw(0, 10, "uniform", door.noise)
    door.release_rows(some_rows(), 2.0, draw=draw)
    lines = door.ledger.lines()
    with pytest.raises(Exception, match="the releases foreseen for a draw"):
        door.release_rows(some_rows(), 2.0, draw=draw)
    assert door.ledger.lines() == lines


@pytest.mark.parametrize("cap", [10**12, 2**62])
def test_noise_that_integers_cannot_hold_is_refused_before_it_is_charged(tmp_path: Path, cap: int) -> None:
    """Saturated noise is a constant: the exact sum would have been released under a proven epsilon."""
    door = Door(open_ledger(tmp_path / "ledger.jsonl", Gaussian(3.7), unit=Unit.USER), NoiseSource())
    total = GroupedSum(1, rows_per_unit=cap)
    total.add(normalise_rows(torch.ones(1, 4)), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(NotBounded, match="64-bit"):
        door.release_sum(total, 3.7)
    assert not door.ledger.charged


def test_two_releases_on_one_draw_are_charged_once_and_as_one_before_the_first(tmp_path: Path) -> None:
    both = (Gaussian(1.0), Gaussian(2.0))
    event = PoissonSampled(0.5, Composed(both))
    door = make_door(tmp_path, NoNoise(), event)
    draw = poisson_draw(10, 0.5, door.noise, both)
    door.release_sum(sum_rows(some_rows()), 1.0, draw=draw)
    assert door.ledger.charged == {event: 1}
    door.release_sum(sum_rows(some_rows()), 2.0, draw=draw)
    assert door.ledger.charged == {event: 1}
    with pytest.raises(UnsupportedEvent):
        door.release_sum(sum_rows(some_rows()), 2.0, draw=draw)


def test_a_second_release_that_only_the_price_of_the_first_covers_is_refused(tmp_path: Path) -> None:
    door = make_door(tmp_path, NoNoise(), PoissonSampled(0.5, Gaussian(1.0)))
    draw = poisson_draw(10, 0.5, door.noise, (Gaussian(1.0), Gaussian(2.0)))
    with pytest.raises(BudgetExceeded):
        door.release_sum(sum_rows(some_rows()), 1.0, draw=draw)
    assert not door.ledger.charged
