"""DP-MERF's features are exact: no record's row can change with its place in the batch, not by one bit."""

from __future__ import annotations

import pytest
import torch
from contract.cases import make_images

from veilset.data.spec import ImageSpec, to_unit_range
from veilset.engines.feature_sums import sum_by_label
from veilset.methods.dp_merf import DpMerfConfig, FourierFeatures
from veilset.privacy.bounds import Unit, normalise_rows
from veilset.randomness import named_generator

DIGITS = ImageSpec(height=28, width=28, channels=1, class_names=tuple(map(str, range(10))))


def pictures(count: int) -> torch.Tensor:
    draw = torch.randint(0, 256, (count, *DIGITS.shape), generator=named_generator(0, "pictures"), dtype=torch.int64)
    return draw.to(torch.uint8)


@pytest.mark.parametrize("frequencies", [3, 5, 333, 499, 501])
@pytest.mark.parametrize("width", [1e-9, 0.134])
def test_the_place_in_a_batch_cannot_change_a_row_by_one_bit(frequencies: int, width: float) -> None:
    """With ordinary float64 products one column of odd matrices differs between even and odd places on some CPUs."""
    features = FourierFeatures(DpMerfConfig(frequencies=frequencies, width_per_value=width), DIGITS)
    images = to_unit_range(pictures(64))
    whole = features.exact(images)
    for shift in (1, 2, 7):
        assert torch.equal(features.exact(images.roll(shift, dims=0)), whole.roll(shift, dims=0))


def test_removing_the_first_record_moves_no_other_row_on_the_grid() -> None:
    config = DpMerfConfig(frequencies=501, width_per_value=1e-6)
    images = make_images(height=28, width=28, counts=(700,))
    features = FourierFeatures(config, images.spec)

    def total(rows: torch.Tensor) -> torch.Tensor:
        summed = sum_by_label(
            images.subset(rows), lambda batch: normalise_rows(features.exact(batch)), unit=Unit.RECORD,
            rows_per_user=None, device=torch.device("cpu"), progress=lambda *_: None,
        )  # fmt: skip
        assert summed.grid_total is not None
        return summed.grid_total

    every = torch.arange(700)
    assert torch.equal(total(every) - total(every[1:]), total(every[:1]))


def test_products_of_levels_and_frequencies_are_exact_integers_on_one_grid() -> None:
    frequencies = FourierFeatures(DpMerfConfig(frequencies=7, width_per_value=1e-9), DIGITS).frequencies
    step = torch.ldexp(
        torch.tensor(1.0, dtype=torch.float64), torch.frexp(frequencies.abs().sum(0).max() * 255)[1] - 52
    )
    units = frequencies / step
    assert torch.equal(units, units.round())
    assert float((255 * units.abs()).sum(dim=0).max()) < 2**53
