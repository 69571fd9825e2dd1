from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from veilset.data.fitting import Header, Target, fit_image, resolve_target
from veilset.data.options import ReadOptions
from veilset.errors import DataError

from .helpers import pattern

SMALL, WIDE, COLOUR = ("a", Header(8, 8, 1)), ("b", Header(8, 16, 1)), ("c", Header(8, 8, 3))


def test_common_shape_needs_no_options() -> None:
    assert resolve_target([SMALL, SMALL], ReadOptions()) == Target(8, 8, 1, None)
    assert resolve_target([], ReadOptions()) is None


def test_other_size_is_named_and_the_remedy_given() -> None:
    with pytest.raises(DataError, match=r"b is 8x16[\s\S]*size=") as caught:
        resolve_target([SMALL, WIDE], ReadOptions())
    assert "a is 8x8" in caught.value.expected


def test_size_without_fit_is_enough_only_if_all_have_it() -> None:
    assert resolve_target([SMALL], ReadOptions(size=(8, 8))) == Target(8, 8, 1, None)
    with pytest.raises(DataError, match="fit="):
        resolve_target([SMALL, WIDE], ReadOptions(size=(8, 8)))
    assert resolve_target([SMALL, WIDE], ReadOptions(size=(8, 8), fit="crop")) == Target(8, 8, 1, "crop")


def test_mixed_colour_needs_a_choice() -> None:
    with pytest.raises(DataError, match="c is rgb"):
        resolve_target([SMALL, COLOUR], ReadOptions())
    assert resolve_target([SMALL, COLOUR], ReadOptions(color="rgb")) == Target(8, 8, 3, None)
    assert resolve_target([COLOUR], ReadOptions(color="grey")) == Target(8, 8, 1, None)


def test_crop_keeps_the_centre_and_the_aspect_ratio() -> None:
    wide = np.zeros((8, 24), dtype=np.uint8)
    wide[:, 8:16] = pattern()
    assert (fit_image(Image.fromarray(wide), Target(8, 8, 1, "crop"))[0] == pattern()).all()
    tall = np.ascontiguousarray(wide.T)
    assert (fit_image(Image.fromarray(tall), Target(8, 8, 1, "crop"))[0] == pattern().T).all()


def test_stretch_keeps_the_borders() -> None:
    wide = np.zeros((16, 32), dtype=np.uint8)
    wide[:, :16] = 200
    stretched = fit_image(Image.fromarray(wide), Target(8, 8, 1, "stretch"))[0]
    assert (stretched[:, 0] == 200).all()
    assert (stretched[:, 7] == 0).all()


@pytest.mark.parametrize("shape", [(9, 511), (511, 9), (8, 8), (300, 301)])
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_any_shape_fits_any_target(shape: tuple[int, int], fit: str) -> None:
    image = Image.fromarray(np.full(shape, 77, dtype=np.uint8))
    for target in (Target(8, 8, 1, fit), Target(33, 17, 3, fit)):  # type: ignore[arg-type]
        fitted = fit_image(image, target)
        assert fitted.shape == (target.channels, target.height, target.width)
        assert (fitted == 77).all()


def test_grey_to_rgb_repeats_and_rgb_to_grey_is_luma() -> None:
    rgb = fit_image(Image.fromarray(pattern()), Target(8, 8, 3, None))
    assert (rgb == pattern()).all()
    green = np.zeros((8, 8, 3), dtype=np.uint8)
    green[..., 1] = 255
    assert abs(int(fit_image(Image.fromarray(green), Target(8, 8, 1, None))[0, 0, 0]) - 150) <= 1
