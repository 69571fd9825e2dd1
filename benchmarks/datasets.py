"""The benchmark data sets by name. All are public, so runs on them need no budget and their scores may be printed.

`mnist` is part of the package and `fashion-mnist` is found by `veilset.load`. The others are read from `$VEILSET_DATA`:

| name              | file                 | arrays                                                          |
| ----------------- | -------------------- | --------------------------------------------------------------- |
| cifar10           | `cifar10.npz`        | x_train, y_train, x_test, y_test: uint8, (n, 32, 32, 3)         |
| celeba10k-gender  | `celeba10k_32.npz`   | x_*, y_* (1 = male), id_* (person) for train and test           |
| celeba10k-hair    | `celeba10k_32.npz`   | x_*, attr_* (0 or 1, 40 columns), attr_names, id_*              |
| pneumonia         | `pneumoniamnist.npz` | x_train, y_train, x_test, y_test: uint8, (n, 28, 28)            |
| chinese-mnist     | `chinese_mnist.npz`  | x28, y, writer (1 to 100): no split, the last 20 writers test   |

CelebA is cut by person and Chinese MNIST by writer, so nobody is in both parts. In `celeba10k-hair` an image counts if
exactly one of black, blond and brown is set. Chinese MNIST was shrunk from thin lines, which left them a dark grey: its
images are stretched until the brightest pixel of each is white.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import veilset
from veilset.data.spec import ImageSet
from veilset.errors import DataError

HAIR = {"black": "Black_Hair", "blond": "Blond_Hair", "brown": "Brown_Hair"}
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CHINESE = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "100", "1000", "10000", "100000000")
TEST_WRITERS_FROM = 81
Columns = tuple[np.ndarray, np.ndarray, tuple[str, ...], np.ndarray | None]
"""Pixels, labels, class names and, where known, the person behind each image."""


def _split_arrays(file: Any, split: str, names: tuple[str, ...]) -> Columns:
    return file[f"x_{split}"], file[f"y_{split}"], names, None


def _gender(file: Any, split: str) -> Columns:
    return file[f"x_{split}"], file[f"y_{split}"], ("female", "male"), file[f"id_{split}"]


def _hair(file: Any, split: str) -> Columns:
    listed = [str(name) for name in file["attr_names"]]
    chosen = file[f"attr_{split}"][:, [listed.index(name) for name in HAIR.values()]]
    rows = chosen.sum(axis=1) == 1
    return file[f"x_{split}"][rows], chosen[rows].argmax(axis=1), tuple(HAIR), file[f"id_{split}"][rows]


def _chinese(file: Any, split: str) -> Columns:
    rows = (file["writer"] >= TEST_WRITERS_FROM) == (split == "test")
    pixels = file["x28"][rows]
    brightest = np.maximum(pixels.max(axis=(1, 2), keepdims=True), 1)
    full = np.round(pixels * (255 / brightest)).astype(np.uint8)
    return full, file["y"][rows], CHINESE, file["writer"][rows]


FILES: dict[str, tuple[str, Callable[[Any, str], Columns]]] = {
    "cifar10": ("cifar10.npz", lambda file, split: _split_arrays(file, split, CIFAR10)),
    "celeba10k-gender": ("celeba10k_32.npz", _gender),
    "celeba10k-hair": ("celeba10k_32.npz", _hair),
    "pneumonia": ("pneumoniamnist.npz", lambda file, split: _split_arrays(file, split, ("normal", "pneumonia"))),
    "chinese-mnist": ("chinese_mnist.npz", _chinese),
}
NAMES = ("mnist", "fashion-mnist", *FILES)


def load(name: str, split: str) -> ImageSet:
    """One part, "train" or "test", of a benchmark data set.

    Raises: DataError where it is not on this machine.
    """
    if name not in FILES:
        return veilset.load(name, split=split)
    file_name, read = FILES[name]
    path = Path(os.environ.get("VEILSET_DATA", "")) / file_name
    if "VEILSET_DATA" not in os.environ or not path.is_file():
        raise DataError(
            f"{file_name} in $VEILSET_DATA", "it is not there", "benchmarks/datasets.py says which arrays it holds."
        )
    with np.load(path, allow_pickle=False) as file:
        pixels, labels, names, users = read(file, split)
    people = None if users is None else [str(user) for user in users]
    labels = np.asarray(labels).astype(np.int64).reshape(-1)
    return veilset.load(pixels, labels, class_names=names, users=people, benchmark=name)
