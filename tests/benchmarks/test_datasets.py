"""Readers of the benchmark files, on tiny files of the documented layout."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest

from veilset.errors import DataError

DRAWS = np.random.default_rng(0)


def pixels(count: int, *shape: int) -> np.ndarray:
    return DRAWS.integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VEILSET_DATA", str(tmp_path))
    return tmp_path


def test_celeba_is_read_by_gender_and_by_hair_with_its_people(folder: Path) -> None:
    attributes = np.array([[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 0, 0]], dtype=np.uint8)
    parts = {
        f"{name}_{split}": value
        for split in ("train", "test")
        for name, value in {
            "x": pixels(4, 32, 32, 3), "y": np.array([0, 1, 1, 0]), "attr": attributes, "id": np.arange(4),
        }.items()
    }  # fmt: skip
    names = np.array(["Black_Hair", "Blond_Hair", "Brown_Hair", "Smiling"])
    np.savez(folder / "celeba10k_32.npz", attr_names=names, **parts)
    gender, hair = datasets.load("celeba10k-gender", "train"), datasets.load("celeba10k-hair", "test")
    assert gender.spec.class_names == ("female", "male")
    assert gender.labels.tolist() == [0, 1, 1, 0]
    assert hair.spec.class_names == ("black", "blond", "brown")
    assert (hair.labels.tolist(), hair.users) == ([0, 1, 2], ("0", "1", "2"))
    assert hair.source.benchmark == "celeba10k-hair"


def test_dark_chinese_lines_become_white_on_black(folder: Path) -> None:
    grey = np.zeros((100, 28, 28), dtype=np.uint8)
    grey[1:, 3, 3:5] = 20, 40
    np.savez(folder / "chinese_mnist.npz", x28=grey, y=np.arange(100) % 15, writer=np.arange(1, 101))
    images = datasets.load("chinese-mnist", "train")
    assert images.pixels[1, 0, 3, 2:6].tolist() == [0, 128, 255, 0]
    assert not images.pixels[0].any()


def test_chinese_mnist_is_cut_by_writer(folder: Path) -> None:
    writer = np.repeat(np.arange(1, 101), 15)
    np.savez(folder / "chinese_mnist.npz", x28=pixels(1500, 28, 28), y=np.tile(np.arange(15), 100), writer=writer)
    train, test = (datasets.load("chinese-mnist", split) for split in ("train", "test"))
    assert (len(train), len(test), train.spec.num_classes) == (1200, 300, 15)
    assert not set(train.users or ()) & set(test.users or ())


@pytest.mark.parametrize(("name", "file", "shape", "classes"), [
    ("cifar10", "cifar10.npz", (32, 32, 3), 10), ("pneumonia", "pneumoniamnist.npz", (28, 28), 2),
])  # fmt: skip
def test_files_with_splits_are_read_as_they_are(
    folder: Path, name: str, file: str, shape: tuple[int, ...], classes: int
) -> None:
    labels = np.arange(20, dtype=np.uint8)[:, None] % classes
    np.savez(
        folder / file, x_train=pixels(20, *shape), y_train=labels, x_test=pixels(20, *shape), y_test=labels
    )  # fmt: skip
    images = datasets.load(name, "test")
    assert (len(images), images.spec.num_classes, images.source.benchmark) == (20, classes, name)


def test_a_missing_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"cifar10\.npz"):
        datasets.load("cifar10", "train")
    monkeypatch.delenv("VEILSET_DATA")
    with pytest.raises(DataError, match="VEILSET_DATA"):
        datasets.load("pneumonia", "train")


def test_every_name_of_the_table_is_documented() -> None:
    assert all(name in (datasets.__doc__ or "") for name in datasets.NAMES)
