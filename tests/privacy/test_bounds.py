import itertools
import math

import pytest
import torch
from checks import (
    ADD,
    REPLACE,
    adversarial_rows,
    check_exact_sums,
    check_rows_alone,
    check_sensitivity,
    check_shard_sums,
)

from veilset.errors import ConfigError, NotBounded
from veilset.privacy.bounds import (
    GRID,
    Bounded,
    GroupedSum,
    clip_rows,
    normalise_rows,
    sum_rows,
    sum_sensitivity,
    sum_shards,
    with_total,
)
from veilset.randomness import named_generator


@pytest.mark.parametrize("bound", [1e-12, 1.0, 7.3, 1e9])
def test_no_hostile_neighbour_moves_a_sum_by_more_than_its_sensitivity(bound: float) -> None:
    check_sensitivity(bound)


def test_no_shard_that_turns_moves_a_sum_over_shards_by_more_than_its_sensitivity() -> None:
    check_shard_sums()


def test_opposite_rows_reach_the_replace_sensitivity() -> None:
    rows = normalise_rows(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
    moved = (rows.grid_rows[0] - rows.grid_rows[1]).double().norm() * rows.grid_step
    assert float(moved) == pytest.approx(sum_sensitivity(1.0, REPLACE), rel=1e-5)
    right_angle = (rows.grid_rows[0] - rows.grid_rows[2]).double().norm() * rows.grid_step
    assert float(right_angle) == pytest.approx(sum_sensitivity(1.0, REPLACE, nonnegative=True), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8])
def test_every_input_type_is_bounded_alike(dtype: torch.dtype) -> None:
    rows = (torch.rand(50, 9, generator=named_generator(0, "types")) * 200).to(dtype)
    found, wide = clip_rows(rows, 1.0), clip_rows(rows.double(), 1.0)
    assert torch.equal(found.grid_rows, wide.grid_rows)


@pytest.mark.parametrize("bound", [1e-60, 1e-12, 0.1, 7.3, 1e60])
@pytest.mark.parametrize("width", [1, 33, 40_001])
def test_rows_bounded_in_float32_are_no_longer_and_differ_by_rounding_only(bound: float, width: int) -> None:
    hostile = torch.tensor([1e-45, 1e-38, 1e-20, 1.0, 1e20, 3.4e38, math.nan, math.inf])
    rows = torch.randn(8, width, generator=named_generator(0, "float32")).clamp(-1, 1) * hostile[:, None]
    found, wide = clip_rows(rows, bound, dtype=torch.float32), clip_rows(rows, bound)
    assert (found.grid_rows.double().norm(dim=1) <= 1 / GRID).all()
    assert (found.grid_rows - wide.grid_rows).abs().max() <= 2
    alone = [clip_rows(row[None], bound, dtype=torch.float32).grid_rows for row in rows]
    assert torch.equal(torch.cat(alone), found.grid_rows)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [clip_rows, normalise_rows])
def test_a_row_with_a_non_finite_entry_becomes_the_zero_row_and_spares_the_others(make, bad: float) -> None:
    rows = torch.ones(3, 4)
    rows[1, 2] = bad
    found = make(rows, 1.0).grid_rows
    assert not found[1].any()
    assert torch.equal(found[[0, 2]], make(torch.ones(2, 4), 1.0).grid_rows)


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-160, 1.0, 1e160, 1.7e308])
def test_normalising_keeps_the_direction_of_tiny_and_huge_rows(scale: float) -> None:
    found = normalise_rows(torch.tensor([[0.0, scale, -scale]], dtype=torch.float64))
    assert (found.grid_rows[0].double() * GRID).tolist() == pytest.approx([0, 0.5**0.5, -(0.5**0.5)], abs=1e-5)


def test_clipping_leaves_short_rows_as_they_are() -> None:
    rows = torch.randn(100, 6, generator=named_generator(0, "short")).double() * 0.1
    found = clip_rows(rows, 1.0).grid_rows.double() * GRID
    assert (found - rows).abs().max() < 2 * GRID


def test_nonnegative_rows_hold_no_negative_entry() -> None:
    for make, rows in itertools.product((clip_rows, normalise_rows), (adversarial_rows(), -torch.eye(3))):
        found = make(rows, 1.0, nonnegative=True)
        assert (found.grid_rows >= 0).all()
        assert found.nonnegative


def test_a_row_depends_neither_on_its_batch_nor_on_its_place_nor_on_memory_layout() -> None:
    check_rows_alone()


def test_sums_are_exact_integers_in_any_order() -> None:
    check_exact_sums()


def test_shapes_survive_and_norms_run_over_the_whole_row() -> None:
    found = clip_rows(torch.ones(2, 3, 4, 5), 1.0)
    assert found.grid_rows.shape == (2, 3, 4, 5)
    assert float(found.grid_rows[0].double().norm() * GRID) <= 1.0
    assert len(clip_rows(torch.zeros(0, 3), 1.0)) == 0


def test_a_total_counts_present_rows_only() -> None:
    rows = normalise_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0], [math.nan, 1.0]]))
    totalled = with_total(rows, 2.0)
    assert totalled.bound == pytest.approx(math.sqrt(5))
    weights = totalled.grid_rows[:, -1].double() * totalled.grid_step
    assert weights.tolist() == pytest.approx([2.0, 0.0, 0.0], abs=1e-4)


def test_totals_of_several_places_count_present_rows_where_each_belongs() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.3, 0.4], [1.0, 0.0]])
    total = sum_rows(with_total(clip_rows(rows, 1.0), 0.5, torch.tensor([2, 1, 0, 2]), 3))
    assert total.bound == math.hypot(1.0, 0.5)
    assert total.grid_total is not None
    assert (total.grid_total[0, 2:] * total.grid_step).tolist() == pytest.approx([0.5, 0.0, 1.0], abs=1e-5)


def test_a_row_without_a_place_among_the_totals_is_refused() -> None:
    with pytest.raises(IndexError):
        with_total(clip_rows(torch.ones(1, 2), 1.0), 0.5, torch.tensor([3]), 3)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_a_total_needs_a_usable_weight(weight: float) -> None:
    with pytest.raises(ConfigError):
        with_total(clip_rows(torch.ones(1, 2), 1.0), weight)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, 1e-320])
def test_a_bound_must_be_usable(bound: float) -> None:
    with pytest.raises(ConfigError):
        clip_rows(torch.ones(1, 2), bound)


def test_a_hand_made_bounded_is_refused() -> None:
    with pytest.raises(NotBounded):
        Bounded(torch.full((1, 1), 10**9), 1.0, False, object())


def test_rows_of_different_bounds_do_not_add() -> None:
    total = sum_rows(clip_rows(torch.ones(1, 2), 1.0))
    for other in (clip_rows(torch.ones(1, 2), 2.0), clip_rows(torch.ones(1, 2), 1.0, nonnegative=True)):
        with pytest.raises(NotBounded):
            total.add(other, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("number", [2**11 - 1, 2**11, 2**12 + 1])
def test_the_sum_of_many_equal_rows_does_not_overflow(number: int) -> None:
    rows = normalise_rows(torch.ones(number, 1))
    assert int(sum_rows(rows).grid_total) == number * int(rows.grid_rows[0])


def test_groups_keep_their_rows_apart() -> None:
    rows = clip_rows(torch.eye(3), 1.0)
    total = GroupedSum(4)
    total.add(rows, torch.tensor([2, 0, 2]))
    assert torch.equal(total.grid_total[2], (rows.grid_rows[0] + rows.grid_rows[2]).long())
    assert not total.grid_total[1].any()


def test_a_user_with_several_rows_moves_the_sum_by_at_most_its_cap() -> None:
    total = GroupedSum(2, rows_per_unit=5)
    rows = normalise_rows(torch.ones(5, 3), nonnegative=True)
    total.add(rows, torch.tensor([0, 1, 0, 0, 1]))
    moved = float(total.grid_total.double().norm()) * total.grid_step
    assert moved <= total.sensitivity(ADD) == pytest.approx(5.0)
    assert total.sensitivity(REPLACE) == pytest.approx(5.0 * math.sqrt(2))


@pytest.mark.parametrize("bound", [0.25, 1.0])
def test_a_shard_counts_as_two_rows_because_its_row_may_turn_and_as_four_if_a_unit_may_change_shards(
    bound: float,
) -> None:
    rows = clip_rows(torch.tensor([[3.0, 0.0], [0.0, -3.0], [0.0, 0.0]]), bound)
    total = sum_shards(rows)
    assert torch.equal(total.grid_total, rows.grid_rows.sum(0, keepdim=True))
    assert total.sensitivity(ADD) == 2 * bound
    assert total.sensitivity(REPLACE) == 4 * bound


@pytest.mark.parametrize("cap", [0, -1, 0.5])
def test_a_cap_below_one_row_is_refused(cap: float) -> None:
    with pytest.raises(ConfigError):
        GroupedSum(1, rows_per_unit=cap)


@pytest.mark.parametrize("bound", [0.1, 0.3, 1.0, 7.7])
def test_absence_is_the_same_number_for_every_bound(bound: float) -> None:
    # The event of a release must equal the planned one bit for bit.
    total = sum_rows(clip_rows(torch.ones(1, 2), bound, nonnegative=True))
    assert total.absence(REPLACE) == 1 / math.sqrt(2)
    assert sum_rows(clip_rows(torch.ones(1, 2), bound)).absence(REPLACE) == 0.5
    assert total.absence(ADD) == 1.0
