"""Streaming sums: every record counts once, in its own class, whatever the batch it falls into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from contract.cases import make_images
from torch import Tensor

from veilset.data import LazyImages, stream
from veilset.data.spec import Images, ImageSet, to_unit_range
from veilset.engines import feature_sums
from veilset.engines.feature_sums import BATCH, first_rows_of_each_user, sum_by_label
from veilset.errors import ConfigError, DataError
from veilset.privacy.bounds import Adjacency, Bounded, GroupedSum, Unit, clip_rows


def rows_of(batch: Tensor) -> Bounded:
    return clip_rows(batch.flatten(1), 1.0)


def summed(images: Images, unit: Unit = Unit.RECORD, rows_per_user: int | None = None) -> GroupedSum:
    return sum_by_label(
        images,
        rows_of,
        unit=unit,
        rows_per_user=rows_per_user,
        device=torch.device("cpu"),
        progress=lambda done, of: None,
    )


def grid(images: Images, **options: object) -> Tensor:
    total = summed(images, **options).grid_total  # type: ignore[arg-type]
    assert total is not None
    return total


@pytest.mark.parametrize("size", [1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH + 1])
def test_a_sum_equals_the_sum_over_single_records(size: int) -> None:
    images = make_images(counts=(size - size // 3, size // 3))
    rows = clip_rows(to_unit_range(images.pixels).flatten(1), 1.0).grid_rows
    expected = torch.stack([rows[images.labels == label].sum(dim=0) for label in range(2)])
    assert torch.equal(grid(images), expected)


def test_order_and_batch_size_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images(counts=(30, 20))
    total = grid(images)
    shuffled = images.subset(torch.randperm(50, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(grid(shuffled), total)
    monkeypatch.setattr(feature_sums, "BATCH", 7)
    assert torch.equal(grid(images), total)


def test_null_records_and_padding_add_nothing() -> None:
    images = make_images(counts=(6, 4), null_rows=(0, 3, 9))
    assert torch.equal(grid(images), grid(images.subset(images.valid)))
    nothing = make_images(counts=(2, 1), null_rows=(0, 1, 2))
    assert not grid(nothing).any()


def test_pixels_of_a_null_record_do_not_matter() -> None:
    images = make_images(null_rows=(4,))
    pixels = images.pixels.clone()
    pixels[4] = 255 - pixels[4]
    changed = ImageSet(spec=images.spec, pixels=pixels, labels=images.labels, valid=images.valid)
    assert torch.equal(grid(changed), grid(images))


def test_every_batch_has_the_same_shape_whatever_the_number_of_records() -> None:
    shapes = set()

    def watching(batch: Tensor) -> Bounded:
        shapes.add(tuple(batch.shape))
        return rows_of(batch)

    for counts in ((0,), (1,), (501,)):
        images = make_images(counts=counts)
        sum_by_label(
            images,
            watching,
            unit=Unit.RECORD,
            rows_per_user=None,
            device=torch.device("cpu"),
            progress=lambda *_: None,
        )
    assert shapes == {(BATCH, 1, 8, 8)}


def test_an_empty_collection_has_a_sum_of_zero_of_the_usual_shape() -> None:
    total = grid(make_images(counts=(0, 0, 0)))
    assert total.shape == (3, 64)
    assert not total.any()


def test_progress_counts_records_up_to_all_of_them() -> None:
    seen = []
    sum_by_label(
        make_images(counts=(BATCH, 1)),
        rows_of,
        unit=Unit.RECORD,
        rows_per_user=None,
        device=torch.device("cpu"),
        progress=lambda done, of: seen.append((done, of)),
    )
    assert seen == [(500, 501), (501, 501)]


def test_users_beyond_their_cap_lose_their_later_images_only() -> None:
    images = make_images(counts=(10,), per_user=4)  # users of 4, 4 and 2 images
    assert first_rows_of_each_user(images, 3).nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6, 8, 9]
    assert torch.equal(
        grid(images, unit=Unit.USER, rows_per_user=3), grid(images.subset(torch.tensor([0, 1, 2, 4, 5, 6, 8, 9])))
    )


def test_a_users_cap_multiplies_the_sensitivity() -> None:
    images = make_images(counts=(10,), per_user=4)
    one = summed(images)
    capped = summed(images, unit=Unit.USER, rows_per_user=3)
    for adjacency in Adjacency:
        assert capped.sensitivity(adjacency) == 3 * one.sensitivity(adjacency)


def test_whether_a_row_stays_depends_on_its_own_user_only() -> None:
    images = make_images(counts=(12,), per_user=4)
    kept = set(first_rows_of_each_user(images, 2).nonzero().flatten().tolist())
    without_first = images.subset(torch.arange(4, 12))
    shifted = {row + 4 for row in first_rows_of_each_user(without_first, 2).nonzero().flatten().tolist()}
    assert shifted == {row for row in kept if row >= 4}


@pytest.mark.parametrize(("per_user", "cap"), [(None, 2), (4, None), (4, 0), (4, -1)])
def test_user_level_needs_users_and_a_cap(per_user: int | None, cap: int | None) -> None:
    with pytest.raises(ConfigError, match="cap"):
        first_rows_of_each_user(make_images(per_user=per_user), cap)


def lazily(images: ImageSet, folder: Path) -> LazyImages:
    """The same records, read from an archive."""
    users = {} if images.users is None else {"user": np.array(images.users)}
    np.savez(folder / "a.npz", x=images.pixels.numpy(), y=images.labels.numpy(), **users)
    found = stream(folder / "a.npz", in_memory=0, class_names=images.spec.class_names)
    assert isinstance(found, LazyImages)
    return found


@pytest.mark.parametrize("unit", [{}, {"unit": Unit.USER, "rows_per_user": 3}], ids=["record", "user"])
def test_images_on_disk_have_the_same_sum_as_in_memory(tmp_path: Path, unit: dict[str, object]) -> None:
    images = make_images(counts=(BATCH, 120), per_user=7)
    assert torch.equal(grid(lazily(images, tmp_path), **unit), grid(images, **unit))


def test_images_that_changed_on_disk_have_no_sum(tmp_path: Path) -> None:
    images = lazily(make_images(counts=(20, 10)), tmp_path)
    summed(images)
    lazily(make_images(counts=(20, 11)), tmp_path)
    with pytest.raises(DataError, match="changed"):
        summed(images)
