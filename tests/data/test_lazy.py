"""Images on disk: the same records as in memory, in every pass, and never all of them at a time."""

from __future__ import annotations

import tracemalloc
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veilset.data import LazyImages, files, lazy, load, stream
from veilset.data.fitting import Target
from veilset.data.listing import Entry
from veilset.data.pipeline import WORKERS
from veilset.data.spec import ImageSet
from veilset.errors import DataError

from .helpers import class_folder, image_bytes, pattern, small_images, write_idx_pair, write_image


def opened(source: Any, **options: Any) -> LazyImages:
    images = stream(source, in_memory=0, **options)
    assert isinstance(images, LazyImages)
    return images


def assert_same_records(images: LazyImages, expected: ImageSet, size: int = 3) -> None:
    batches = list(images.batches(size))
    assert [len(labels) for _, labels, _ in batches[:-1]] == [size] * (len(batches) - 1)
    pixels, labels, valid = (torch.cat(column) for column in zip(*batches, strict=True))
    assert torch.equal(pixels, expected.pixels)
    assert torch.equal(labels, expected.labels)
    assert torch.equal(valid, expected.valid)
    assert (labels.dtype, len(images)) == (torch.int64, len(expected))
    assert (images.spec, images.source) == (expected.spec, expected.source)


def untidy_folder(root: Path) -> Path:
    """Nested, of several sizes and kinds, with files that break at the header and in the pixels."""
    class_folder(root, 4, ("dog", "cat", "ant"))
    write_image(root / "cat" / "deep-er" / "1.png", pattern(12, 9))
    write_image(root / "cat" / "deep" / "2.jpg", pattern(10, 14, channels=3), "JPEG")
    (root / "ant" / "0.png").write_bytes(b"no picture")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    (root / "dog" / "2.png").write_bytes(image_bytes(noise)[:-40])
    (root / "dog" / "notes.txt").write_text("x")
    return root


@pytest.mark.parametrize(
    "options",
    [{"size": (9, 8), "fit": "crop", "color": "grey"}, {"size": (8, 8), "fit": "stretch", "color": "rgb"}],
    ids=str,
)
def test_a_folder_on_disk_has_the_records_of_the_folder_in_memory(tmp_path: Path, options: dict[str, Any]) -> None:
    options["class_names"] = ["dog", "none", "cat", "ant"]
    images, expected = opened(untidy_folder(tmp_path), **options), load(tmp_path, **options)
    for size in (3, 1, 100, 3):
        assert_same_records(images, expected, size)
    assert set(images.warnings) == set(expected.warnings)
    assert len(expected.warnings) == 3


def test_images_on_disk_can_still_be_read_into_memory(tmp_path: Path) -> None:
    images = opened(class_folder(tmp_path, 3))
    assert_same_records(images, images.in_memory())
    assert images.in_memory().ids == load(tmp_path).ids


def test_a_manifest_on_disk_has_the_records_of_the_manifest_in_memory(tmp_path: Path) -> None:
    class_folder(tmp_path, 3)
    rows = [f"{kind}/{n}.png,{kind},{kind[0]}{n % 2}" for n in (2, 0, 1) for kind in ("dog", "cat")]
    (tmp_path / "m.csv").write_text("\n".join(["path,label,user", *rows]))
    images, expected = opened(tmp_path / "m.csv"), load(tmp_path / "m.csv")
    assert_same_records(images, expected)
    assert expected.users == ("d0", "c0", "d0", "c0", "d1", "c1")
    users, in_memory = images.user_numbers(), expected.user_numbers()
    assert users is not None
    assert in_memory is not None
    assert users.tolist() == in_memory.tolist() == [0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=lambda save: save.__name__)
@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_an_archive_on_disk_has_the_records_of_the_archive_in_memory(tmp_path: Path, save: Any, kind: str) -> None:
    pixels = small_images(10, channels=3)
    pixels = pixels if kind == "uint8" else (pixels / 255).astype(np.float32)
    save(tmp_path / "a.npz", x=pixels, y=np.arange(10) % 3, user=np.array(list("aabbccddaa")))
    for options in ({}, {"size": (9, 12), "fit": "crop", "color": "grey"}):
        images, expected = opened(tmp_path / "a.npz", **options), load(tmp_path / "a.npz", **options)
        assert_same_records(images, expected)
        assert_same_records(images, expected, 4)
        assert expected.users == tuple("aabbccddaa")
        users = images.user_numbers()
        assert users is not None
        assert users.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]


def test_what_cannot_be_read_in_pieces_is_loaded(tmp_path: Path) -> None:
    folder = write_idx_pair(tmp_path / "idx", small_images(4), np.array([0, 1, 0, 1], np.uint8))
    np.savez(tmp_path / "columns.npz", x=np.asfortranarray(small_images(4)), y=np.arange(4))
    pairs = [(pattern(), 0), (pattern(shift=1), 1)]
    for source in (folder, tmp_path / "columns.npz", pairs, "mnist"):
        assert isinstance(stream(source, in_memory=0), ImageSet)
    assert isinstance(stream(small_images(4), labels=[0, 1, 0, 1], in_memory=0), ImageSet)


def test_small_collections_are_loaded(tmp_path: Path) -> None:
    class_folder(tmp_path, 2)
    assert isinstance(stream(tmp_path), ImageSet)
    assert isinstance(stream(tmp_path, in_memory=4 * 64), ImageSet)
    assert isinstance(stream(tmp_path, in_memory=4 * 64 - 1), LazyImages)


@pytest.mark.parametrize("change", ["add", "remove", "rewrite"])
def test_a_folder_that_changes_between_passes_is_an_error_before_the_pass_ends(tmp_path: Path, change: str) -> None:
    images = opened(class_folder(tmp_path, 3))
    list(images.batches(2))
    if change == "add":
        write_image(tmp_path / "cat" / "new.png")
    elif change == "remove":
        (tmp_path / "dog" / "1.png").unlink()
    else:
        write_image(tmp_path / "dog" / "1.png", pattern(9, 9))
    with pytest.raises(DataError, match="changed while it was being read"):
        list(images.batches(2))
    with pytest.raises(DataError, match="changed while it was being read"):
        images.in_memory()


def test_an_archive_that_changes_between_passes_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=small_images(6), y=np.arange(6))
    images = opened(tmp_path / "a.npz")
    list(images.batches(2))
    np.savez(tmp_path / "a.npz", x=small_images(7), y=np.arange(7))
    with pytest.raises(DataError, match="changed while it was being read"):
        list(images.batches(2))


def test_a_damaged_archive_is_an_error_before_the_pass_ends(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.arange(6), x=small_images(6))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    place = data.index(small_images(6).tobytes())
    data[place + 100] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DataError, match="CRC"):
        list(opened(tmp_path / "a.npz").batches(2))


def test_strict_reading_stops_at_a_broken_file_and_images_of_which_none_decodes_are_an_error(tmp_path: Path) -> None:
    class_folder(tmp_path, 1, ("only",))
    (tmp_path / "only" / "0.png").write_bytes(image_bytes(pattern())[:-30])
    with pytest.raises(DataError, match="readable"):
        list(opened(tmp_path).batches(2))
    write_image(tmp_path / "only" / "1.png")
    assert [valid.tolist() for _, _, valid in opened(tmp_path).batches(2)] == [[False, True]]
    with pytest.raises(DataError, match=r"0\.png"):
        list(opened(tmp_path, strict=True).batches(2))


def test_images_and_names_are_let_go_as_soon_as_they_were_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folder(tmp_path, 30)
    pictures: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    entries: weakref.WeakSet[Entry] = weakref.WeakSet()
    decoded = files._decoded

    def watched(group: list[Entry], target: Target) -> Any:
        result = decoded(group, target)
        entries.update(group)
        pictures.add(result[1])
        return result

    monkeypatch.setattr(files, "_decoded", watched)
    alive = [(len(pictures), len(entries)) for _ in opened(tmp_path).batches(2)]
    assert len(alive) == 30
    assert 1 <= max(batches for batches, _ in alive) <= WORKERS + 2
    assert 2 <= max(names for _, names in alive) <= 2 * (WORKERS + 2) + 1


def test_a_pass_over_an_archive_takes_the_memory_of_a_batch_whatever_its_size(tmp_path: Path) -> None:
    peaks = []
    for records in (500, 5000):
        np.savez(tmp_path / "a.npz", x=np.zeros((records, 16, 16), np.uint8), y=np.zeros(records, np.uint8))
        images = opened(tmp_path / "a.npz")
        tracemalloc.start()
        assert sum(len(labels) for _, labels, _ in images.batches(50)) == records
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 50 * 256, "5000 images are 1.3 MB"


def test_the_number_of_records_is_not_printed(tmp_path: Path) -> None:
    assert repr(opened(class_folder(tmp_path, 17))) == "LazyImages(8x8x1, 2 classes)"


def test_only_the_first_warnings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "MAX_NOTES", 3)
    class_folder(tmp_path, 2)
    for number in range(5):
        (tmp_path / "cat" / f"broken {number}.png").write_bytes(b"")
    found = opened(tmp_path).warnings
    assert len(found) == 4
    assert found[-1].startswith("and more")


def test_reading_leaves_the_filters_of_warnings_as_they_were(tmp_path: Path) -> None:
    before = list(warnings.filters)
    list(opened(class_folder(tmp_path, 5)).batches(2))
    assert warnings.filters == before
