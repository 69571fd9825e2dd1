from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from veilset.data import inspect, load
from veilset.errors import ConfigError, DataError

from .helpers import pattern, small_images


class Pairs(Dataset):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.mark.parametrize(
    "convert",
    [
        Image.fromarray,
        lambda array: array,
        lambda array: array[..., None],
        torch.from_numpy,
        lambda array: torch.from_numpy(array)[None],
        lambda array: torch.from_numpy(array)[None] / 255,
    ],
)
def test_every_kind_of_image_gives_the_same_pixels(convert: Any) -> None:
    images = load(Pairs([(convert(image), index % 2) for index, image in enumerate(small_images())]))
    assert (images.pixels[:, 0].numpy() == small_images()).all()
    assert images.labels.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("label", [1, "1", np.int64(1), torch.tensor(1), np.array(1)])
def test_every_kind_of_label_works(label: Any) -> None:
    assert load(Pairs([(pattern(), label)])).labels.tolist() == [1]


def test_a_plain_list_of_pairs_works_and_takes_ids_and_users() -> None:
    images = load([(pattern(), "cat"), (pattern(), "ant")], ids=["a", "b"], users=[1, 1])
    assert images.spec.class_names == ("ant", "cat")
    assert images.ids == ("a", "b")
    assert images.users == ("1", "1")


def test_mixed_sizes_need_a_size() -> None:
    pairs = Pairs([(Image.fromarray(pattern()), 0), (Image.fromarray(pattern(9, 9)), 0)])
    with pytest.raises(DataError, match="item 1 is 9x9"):
        load(pairs)
    assert load(pairs, size=(8, 8), fit="crop").spec.shape == (1, 8, 8)


@pytest.mark.parametrize(
    "item",
    [
        None,
        pattern(),
        (pattern(),),
        (pattern(), 0, 0),
        (pattern(), 0.5),
        (pattern(), None),
        (pattern(), torch.tensor([0, 1])),
        ("cat.png", 0),
        (np.zeros((4, 8, 8), np.uint8), 0),
        (np.full((8, 8), np.nan), 0),
        (Image.new("F", (8, 8)), 0),
    ],
)
def test_other_items_are_refused(item: Any) -> None:
    with pytest.raises(DataError, match=r"item 1|finite|channels"):
        load(Pairs([(pattern(), 0), item]))


def test_failing_data_set_is_reported_with_the_item() -> None:
    class Failing(Pairs):
        def __getitem__(self, index: int) -> Any:
            raise ZeroDivisionError("oops")

    with pytest.raises(DataError, match=r"item 0.*oops"):
        load(Failing([1]))


def test_empty_and_unsized_data_sets_are_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        load(Pairs([]))
    for wrong in (iter([]), {}, None, 3, b"bytes"):
        with pytest.raises(ConfigError):
            load(wrong)


def test_labels_beside_a_data_set_are_refused() -> None:
    with pytest.raises(ConfigError, match="labels"):
        load(Pairs([(pattern(), 0)]), [0])


def test_inspect_describes_a_data_set() -> None:
    assert inspect(Pairs([(pattern(), 0)] * 12))[1] == 10
