"""Low frequencies: an orthonormal basis, so that projecting adds no length and the way back is the transpose."""

from __future__ import annotations

import pytest
import torch
from plain_critics import spec_of

from veilset.nets.frequencies import LowFrequencies, cosines
from veilset.randomness import named_generator


def images(*shape: int) -> torch.Tensor:
    return torch.randn(4, *shape, generator=named_generator(0, "images"))


@pytest.mark.parametrize(("side", "number"), [(28, 12), (9, 9), (1, 1)])
def test_cosines_are_orthonormal(side: int, number: int) -> None:
    rows = cosines(side, number)
    torch.testing.assert_close(rows @ rows.T, torch.eye(number))


def test_the_first_number_is_the_mean_brightness() -> None:
    basis = LowFrequencies(spec_of(8, 8, 1), 1, torch.device("cpu"))
    values = images(1, 8, 8)
    torch.testing.assert_close(basis.of(values)[:, 0], values.mean((1, 2, 3)) * 8)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 13)])
def test_projecting_never_makes_an_image_longer_and_is_done_after_the_first_time(shape: tuple[int, int, int]) -> None:
    channels, height, width = shape
    basis = LowFrequencies(spec_of(height, width, channels), 5, torch.device("cpu"))
    coarse = basis.of(images(*shape))
    assert coarse.shape == (4, basis.count) == (4, channels * 25)
    assert (coarse.norm(dim=1) <= images(*shape).flatten(1).norm(dim=1)).all()
    torch.testing.assert_close(basis.of(basis.images(coarse)), coarse)


def test_all_frequencies_hold_the_whole_image() -> None:
    basis = LowFrequencies(spec_of(8, 9, 3), 100, torch.device("cpu"))
    torch.testing.assert_close(basis.images(basis.of(images(3, 8, 9))), images(3, 8, 9))


def test_the_way_back_is_the_transpose_so_that_a_gradient_in_few_numbers_is_one_in_pixels() -> None:
    basis = LowFrequencies(spec_of(8, 10, 1), 3, torch.device("cpu"))
    values = torch.randn(4, basis.count, generator=named_generator(0, "values"))
    torch.testing.assert_close(
        (basis.of(images(1, 8, 10)) * values).sum(), (images(1, 8, 10) * basis.images(values)).sum()
    )
