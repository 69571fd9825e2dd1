from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from veilset.data import inspect, known, load
from veilset.errors import DataError

from .helpers import idx_bytes, small_images, write_idx_pair

Y = np.array([0, 1, 2, 0, 1, 9], dtype=np.uint8)

# MD5 of the original files, as published with MNIST and recorded in our data notes.
MNIST_MD5 = {
    ("train", "images"): "6bbc9ace898e44ae57da46a324031adb",
    ("train", "labels"): "a25bea736e30d166cdddb491f175f624",
    ("test", "images"): "2646ac647ad5339dbf082846283269ea",
    ("test", "labels"): "27ae3e4e09519cfbb04c329615203637",
}


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any data set besides the bundled one."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("VEILSET_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    real = known.search_places
    monkeypatch.setattr(
        known, "search_places", lambda name: [p for p in real(name) if not str(p).startswith("/usr/share")]
    )
    return tmp_path


@pytest.fixture
def tiny_fashion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepts the six test images as if they were Fashion-MNIST."""
    digest = hashlib.sha256(small_images().tobytes() + Y.tobytes()).hexdigest()
    entry = replace(known.KNOWN["fashion-mnist"], fingerprints={"train": digest, "test": digest})
    monkeypatch.setitem(known.KNOWN, "fashion-mnist", entry)


@pytest.mark.parametrize("split", ["train", "test"])
def test_bundled_mnist_is_the_original_byte_for_byte(empty_home: Path, split: str) -> None:
    images = load("mnist", split=split)  # type: ignore[arg-type]
    assert len(images) == {"train": 60000, "test": 10000}[split]
    pixels, labels = images.pixels[:, 0].numpy(), images.labels.numpy().astype(np.uint8)
    assert hashlib.md5(idx_bytes(pixels)).hexdigest() == MNIST_MD5[split, "images"]
    assert hashlib.md5(idx_bytes(labels)).hexdigest() == MNIST_MD5[split, "labels"]
    assert images.source.benchmark == "mnist"
    assert images.spec.class_names == tuple("0123456789")


def test_bundle_is_small_and_licensed() -> None:
    folder = Path(known.__file__).parent / "mnist"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 12e6
    assert "CC BY-SA 3.0" in (folder / "LICENSE").read_text()


def test_inspect_knows_mnist(empty_home: Path) -> None:
    spec, declared = inspect("mnist")
    assert spec.shape == (1, 28, 28)
    assert declared == 60000


def test_missing_fashion_mnist_lists_the_places_and_the_remedy(empty_home: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("fashion-mnist")
    assert ".keras" in caught.value.found
    assert "FashionMNIST/raw" in caught.value.found
    assert "apt install" in caught.value.todo


@pytest.mark.parametrize(
    "place",
    [
        "own/fashion-mnist",
        "own/fashion_mnist",
        "own/FashionMNIST/raw",
        "data/FashionMNIST/raw",
        "home/data/FashionMNIST/raw",
    ],
)
def test_idx_files_of_other_tools_are_found(
    empty_home: Path, tiny_fashion: None, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("VEILSET_DATA", str(empty_home / "own"))
    write_idx_pair(empty_home / place, small_images(), Y)
    images = load("fashion-mnist")
    assert images.source.benchmark == "fashion-mnist"
    assert images.source.path is None
    assert images.spec.class_names[0] == "t-shirt"
    assert len(images) == 6


def test_keras_cache_is_found(empty_home: Path, tiny_fashion: None) -> None:
    folder = empty_home / "home" / ".keras" / "datasets" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, array in (("train-images-idx3", small_images()), ("train-labels-idx1", Y)):
        (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(array)))
    assert len(load("fashion-mnist")) == 6


def test_npz_in_veilset_data_is_found(empty_home: Path, tiny_fashion: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILSET_DATA", str(empty_home))
    np.savez(empty_home / "fashion_mnist.npz", x_train=small_images(), y_train=Y)
    assert len(load("fashion-mnist", size=(16, 16), fit="crop")) == 6


def test_debian_package_is_looked_for() -> None:
    assert Path("/usr/share/datasets/fashion-mnist") in known.search_places("fashion-mnist")


def test_private_images_under_a_public_name_are_refused(
    empty_home: Path, tiny_fashion: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEILSET_DATA", str(empty_home))
    changed = small_images()
    changed[0, 0, 0] ^= 1
    np.savez(empty_home / "fashion-mnist.npz", x_train=changed, y_train=Y)
    with pytest.raises(DataError, match="published"):
        load("fashion-mnist")
    np.savez(empty_home / "fashion-mnist.npz", x_train=small_images(), y_train=Y[::-1])
    with pytest.raises(DataError, match="published"):
        load("fashion-mnist")


def test_class_names_have_one_per_label() -> None:
    assert all(len(entry.class_names) == 10 for entry in known.KNOWN.values())
