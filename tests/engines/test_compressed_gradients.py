"""What is left of a gradient is decided by that gradient alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from veilset.engines.compressed_gradients import LargestShare, LargestSigns, smallest
from veilset.randomness import named_generator


class Given:
    """Rows as they are, whatever the inputs."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.rows.clone()

    def shaped(self, row: Tensor) -> list[Tensor]:
        return [row]


NONE = torch.zeros(0)
ROWS = torch.randn(4, 50, generator=named_generator(0, "rows"))


@pytest.mark.parametrize(("share", "kept"), [(0.9, 45), (0.5, 25), (0.02, 1), (1.0, 50)])
def test_the_largest_share_of_a_gradient_is_kept_as_it_is(share: float, kept: int) -> None:
    found = LargestShare(Given(ROWS), share)(NONE, NONE)
    for row, original in zip(found, ROWS, strict=True):
        largest = original.abs().topk(kept).indices
        assert int((row != 0).sum()) == kept
        assert torch.equal(row[largest], original[largest])


@pytest.mark.parametrize("place", [1, 2, 6, 7, 50])
def test_the_entry_at_a_place_is_the_one_torch_finds_also_among_equals_and_what_is_no_number(place: int) -> None:
    rows = ROWS.abs()
    rows[0, 20:26] = 0
    rows[1, 10:30] = 0.5
    rows[2, 3:5] = torch.nan
    rows[3, :9] = torch.inf
    expected = rows.kthvalue(place, dim=1, keepdim=True).values
    torch.testing.assert_close(smallest(rows, place), expected, rtol=0, atol=0, equal_nan=True)


def test_signs_of_the_largest_entries_have_the_length_of_the_clip_and_nothing_else_is_left() -> None:
    chances = torch.rand(50, generator=named_generator(1, "chances"))
    found = LargestSigns(Given(ROWS), 9, 3.0, chances)(NONE, NONE)
    assert torch.allclose(found.norm(dim=1), torch.full((4,), 3.0))
    assert found.unique().tolist() == [-1.0, 0.0, 1.0]
    for row, original in zip(found, ROWS, strict=True):
        assert set(row.nonzero().flatten().tolist()) == set(original.abs().topk(9).indices.tolist())


def test_a_sign_is_right_on_average_in_proportion_to_its_entry() -> None:
    """Wang et al. 2021: +1 with chance 1/2 + x / 2b."""
    row = torch.tensor([[2.0, -1.0, 0.5, 0.0]])
    draws = named_generator(2, "chances")
    signs = [LargestSigns(Given(row), 4, 2.0, torch.rand(4, generator=draws))(NONE, NONE)[0] for _ in range(4000)]
    assert torch.stack(signs).mean(dim=0).tolist() == pytest.approx([1.0, -0.5, 0.25, 0.0], abs=0.06)


@pytest.mark.parametrize("make", [lambda rows: LargestShare(Given(rows), 0.6),
                                  lambda rows: LargestSigns(Given(rows), 5, 1.0, torch.full((50,), 0.4))])  # fmt: skip
def test_a_row_depends_on_no_other_row_and_a_zero_row_stays_zero(make) -> None:
    whole = make(ROWS)(NONE, NONE)
    changed = ROWS.clone()
    changed[1:] = 0
    found = make(changed)(NONE, NONE)
    assert torch.equal(found[0], whole[0])
    assert not bool(found[1:].any())
