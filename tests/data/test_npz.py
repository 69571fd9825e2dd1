from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from veilset.data import inspect, load, npz
from veilset.errors import DataError

from .helpers import small_images

Y = np.array([0, 1, 2, 0, 1, 2])


def saved(path: Path, **arrays: object) -> Path:
    np.savez(path / "set.npz", **arrays)  # type: ignore[arg-type]
    return path / "set.npz"


@pytest.mark.parametrize(
    "keys", [("x", "y"), ("images", "labels"), ("x_train", "y_train"), ("train_images", "train_labels")]
)
def test_known_key_pairs(tmp_path: Path, keys: tuple[str, str]) -> None:
    images = load(saved(tmp_path, **{keys[0]: small_images(), keys[1]: Y}))
    assert (images.pixels[:, 0].numpy() == small_images()).all()
    assert images.labels.tolist() == Y.tolist()
    assert images.spec.class_names == ("0", "1", "2")
    assert images.ids is None


def test_split_picks_the_test_arrays(tmp_path: Path) -> None:
    path = saved(tmp_path, x_train=small_images(), y_train=Y, x_test=small_images(2), y_test=Y[:2])
    assert len(load(path, split="test")) == 2


def test_an_archive_without_splits_is_read_whole_whatever_the_split(tmp_path: Path) -> None:
    path = saved(tmp_path, x=small_images(), y=Y)
    assert len(load(path, split="test")) == len(load(path))


def test_a_split_that_is_not_in_the_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="x_test"):
        load(saved(tmp_path, x_train=small_images(), y_train=Y), split="test")


def test_optional_columns_are_read(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        x_train=small_images(channels=3),
        y_train=Y,
        id_train=np.arange(6) + 100,
        user=np.array(list("aabbcc")),
        class_names=np.array(["ant", "bee", "cow", "dog"]),
    )
    images = load(path)
    assert images.spec.shape == (3, 8, 8)
    assert images.ids == ("100", "101", "102", "103", "104", "105")
    assert images.users == tuple("aabbcc")
    assert images.spec.class_names == ("ant", "bee", "cow", "dog")


def test_given_columns_replace_stored_ones(tmp_path: Path) -> None:
    path = saved(tmp_path, x=small_images(), y=Y, id=np.arange(6))
    images = load(path, ids=list("uvwxyz"), users=[1, 1, 2, 2, 3, 3], class_names=["p", "q", "r"])
    assert images.ids == tuple("uvwxyz")
    assert images.users == ("1", "1", "2", "2", "3", "3")
    assert images.spec.class_names == ("p", "q", "r")


def test_fortran_order_is_respected(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.asfortranarray(small_images()), y=Y)
    assert (load(path).pixels[:, 0].numpy() == small_images()).all()


def test_text_labels_are_names(tmp_path: Path) -> None:
    images = load(saved(tmp_path, x=small_images(2), y=np.array(["dog", "cat"])))
    assert images.spec.class_names == ("cat", "dog")
    assert images.labels.tolist() == [1, 0]


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    for arrays in ({"x": np.array([object()]), "y": Y}, {"x": small_images(), "y": np.array([None] * 6)}):
        with pytest.raises(DataError, match="pickle"):
            load(saved(tmp_path, **arrays))


def test_zip_that_is_not_npz_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.txt", "hello")
        archive.writestr("y.npy", "hello")
    with pytest.raises(DataError, match="arrays named"):
        load(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", "hello")
    with pytest.raises(DataError, match="npz"):
        load(path)
    path.write_bytes(b"hello")
    with pytest.raises(DataError, match="npz"):
        load(path)


def test_header_that_asks_for_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 8, 8)})
    labels = io.BytesIO()
    np.save(labels, Y)
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", labels.getvalue())
    with pytest.raises(DataError):
        load(path)


def test_archive_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilset.data.untrusted.FREE_EXPANSION", 1000)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((4000, 16, 16), np.uint8), y=np.arange(4000) % 3)
    with pytest.raises(DataError, match="unpack"):
        load(tmp_path / "a.npz")


def test_inspect_does_not_read_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = npz.read_array
    read: list[str] = []
    monkeypatch.setattr(npz, "read_array", lambda path, name: (read.append(name), real(path, name))[1])
    spec, declared = inspect(saved(tmp_path, x=small_images(), y=Y))
    assert spec.num_classes == 3
    assert declared == 10
    assert read == ["y"]
