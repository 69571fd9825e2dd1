from __future__ import annotations

import numpy as np
import pytest
import torch

from veilset.data import ImageSet, assign_shards, load, record_ids
from veilset.errors import ConfigError
from veilset.privacy.bounds import Unit

from .helpers import small_images

KEY = bytes(range(32))


def collection(records: int = 200, **columns: object) -> ImageSet:
    pixels = np.random.default_rng(1).integers(0, 256, (records, 8, 8), dtype=np.uint8)
    return load(pixels, np.arange(records) % 3, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [{}, {"ids": [f"r{index}" for index in range(200)]}], ids=["content", "ids"])
def test_removing_one_record_moves_no_other(columns: dict[str, object]) -> None:
    images = collection(**columns)
    shards = assign_shards(images, 16, KEY, Unit.RECORD)
    for removed in (0, 77, 199):
        rest = torch.tensor([row for row in range(200) if row != removed])
        assert (assign_shards(images.subset(rest), 16, KEY, Unit.RECORD) == shards[rest]).all()


def test_order_does_not_matter() -> None:
    images = collection()
    order = torch.arange(199, -1, -1)
    shuffled = assign_shards(images.subset(order), 16, KEY, Unit.RECORD)
    assert (shuffled == assign_shards(images, 16, KEY, Unit.RECORD)[order]).all()


def test_shards_are_balanced_and_depend_on_the_key() -> None:
    images = collection(ids=range(200))
    shards = assign_shards(images, 4, KEY, Unit.RECORD)
    counts = torch.bincount(shards, minlength=4)
    assert shards.dtype == torch.int64
    assert counts.sum() == 200
    # binomial(200, 1/4): six standard deviations are 37
    assert ((counts - 50).abs() < 37).all()
    assert (assign_shards(images, 4, KEY[::-1], Unit.RECORD) != shards).any()


def test_a_user_stays_in_one_shard_whatever_else_changes() -> None:
    images = collection(users=[f"u{index % 20}" for index in range(200)])
    shards = assign_shards(images, 8, KEY, Unit.USER)
    for user in range(20):
        assert len(set(shards[user::20].tolist())) == 1
    without = torch.tensor([row for row in range(200) if row % 20 != 3])
    assert (assign_shards(images.subset(without), 8, KEY, Unit.USER) == shards[without]).all()


def test_user_level_needs_users() -> None:
    with pytest.raises(ConfigError, match="user column"):
        assign_shards(collection(), 4, KEY, Unit.USER)


@pytest.mark.parametrize("num_shards", [0, -1, 1.5, True, "4"])
def test_number_of_shards_is_checked(num_shards: object) -> None:
    with pytest.raises(ConfigError, match="shards"):
        assign_shards(collection(3), num_shards, KEY, Unit.RECORD)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [b"", b"short", bytes(65), "text", None])
def test_key_is_checked_and_not_shown(key: object) -> None:
    with pytest.raises(ConfigError, match="16 to 64 bytes") as caught:
        assign_shards(collection(3), 4, key, Unit.RECORD)  # type: ignore[arg-type]
    assert "short" not in str(caught.value)


def test_unit_is_checked() -> None:
    with pytest.raises(ConfigError, match="unit"):
        assign_shards(collection(3), 4, KEY, "image")  # type: ignore[arg-type]


def test_ids_given_are_kept_and_content_ids_follow_the_content() -> None:
    assert record_ids(load(small_images(2), [0, 1], ids=["a", "b"]), KEY) == ("a", "b")
    images = small_images(3)
    images[2] = images[0]
    ids = record_ids(load(images, [0, 0, 0]), KEY)
    assert ids[0] == ids[2] != ids[1]
    assert record_ids(load(images, [1, 0, 0]), KEY)[0] != ids[0]
    assert record_ids(load(images, [0, 0, 0]), KEY[::-1])[0] != ids[0]


def test_one_shard_and_odd_file_names_work() -> None:
    images = collection(2, ids=["caf\udce9.png", "café.png"])
    assert assign_shards(images, 1, KEY, Unit.RECORD).tolist() == [0, 0]
    assert len(set(assign_shards(images, 2**31 - 1, KEY, Unit.RECORD).tolist())) == 2
