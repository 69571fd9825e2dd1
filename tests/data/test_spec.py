from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from veilset.data import ImageSet, ImageSpec, load, to_unit_range
from veilset.errors import ConfigError, DataError

from .helpers import small_images

SPEC = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b"))


def test_spec_survives_json() -> None:
    assert ImageSpec.from_json(SPEC.to_json()) == SPEC
    assert SPEC.num_values == 64


def test_a_spec_names_its_colour_as_readers_do() -> None:
    for spec in (SPEC, replace(SPEC, channels=3)):
        shape = (2, spec.channels, spec.height, spec.width)
        assert load(torch.zeros(shape, dtype=torch.uint8), [0, 1], color=spec.color).spec.channels == spec.channels


@pytest.mark.parametrize(
    "change", [{"channels": 2}, {"height": 7}, {"width": 513}, {"class_names": ()}, {"class_names": ("a", "a")}]
)
def test_unusable_specs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ImageSpec(**{"height": 8, "width": 8, "channels": 1, "class_names": ("a",), **change})  # type: ignore[arg-type]


def test_repr_does_not_show_the_number_of_records() -> None:
    assert "6" not in repr(load(small_images(6), [0, 1, 0, 1, 0, 1]))


def test_subset_takes_rows_and_masks() -> None:
    images = load(small_images(4), [0, 1, 0, 1], ids=list("wxyz"), users=list("ppqq"))
    rows, mask = torch.tensor([1, 3]), torch.tensor([False, True, False, True])
    for picked in (images.subset(rows), images.subset(mask)):
        assert picked.ids == ("x", "z")
        assert picked.users == ("p", "q")
        assert (picked.pixels == images.pixels[rows]).all()


def test_what_is_readable_is_the_set_without_its_null_records() -> None:
    whole = load(small_images(4), [0, 1, 0, 1], ids=list("wxyz"))
    assert whole.readable() is whole
    holed = replace(whole, valid=torch.tensor([True, False, True, True]))
    assert (holed.readable().ids, bool(holed.readable().valid.all())) == (("w", "y", "z"), True)
    assert len(replace(whole, valid=torch.zeros(4, dtype=torch.bool)).readable()) == 0


def test_valid_must_match_the_records() -> None:
    images = load(small_images(4), [0, 1, 0, 1])
    with pytest.raises(DataError, match="valid"):
        ImageSet(spec=SPEC, pixels=images.pixels, labels=images.labels, valid=torch.ones(3, dtype=torch.bool))


def test_batches_cover_everything_in_order() -> None:
    images = load(small_images(5), [0, 1, 0, 1, 0])
    batches = list(images.batches(2))
    assert [len(labels) for _, labels, _ in batches] == [2, 2, 1]
    assert torch.equal(torch.cat([pixels for pixels, _, _ in batches]), images.pixels)
    assert to_unit_range(images.pixels).max() <= 1


def test_classes_are_taken_out_and_numbered_anew_in_the_order_given() -> None:
    images = load(small_images(6), [0, 1, 2, 0, 1, 2], ids=list("uvwxyz"), class_names=["a", "b", "c"])
    picked = images.of_classes(["c", "a"])
    assert picked.spec.class_names == ("c", "a")
    assert picked.ids == ("u", "w", "x", "z")
    assert picked.labels.tolist() == [1, 0, 1, 0]
    assert (picked.pixels == images.pixels[[0, 2, 3, 5]]).all()
    with pytest.raises(ConfigError, match="d"):
        images.of_classes(["a", "d"])
