"""Public benchmark data sets by name: MNIST is bundled, Fashion-MNIST is found where other tools keep it.

A known set is exempt from privacy budgets, so its contents are compared with a recorded fingerprint: private images put
under a public name are refused.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from veilset.data.arrays import ArrayCollection
from veilset.data.idx import has_idx, open_idx
from veilset.data.npz import open_npz
from veilset.data.options import ReadOptions
from veilset.data.spec import Source
from veilset.errors import DataError


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """Where to look for a public data set and how to recognise it."""

    class_names: tuple[str, ...]
    torchvision_folder: str
    fingerprints: dict[str, str]
    """SHA-256 of the images' bytes followed by the labels' bytes, per split."""
    todo: str
    bundled: bool = False


# Class names become folder names, hence no slash in "t-shirt".
KNOWN: dict[str, KnownSet] = {
    "mnist": KnownSet(
        class_names=tuple(str(digit) for digit in range(10)),
        torchvision_folder="MNIST",
        fingerprints={
            "train": "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
            "test": "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
        },
        todo="Reinstall veilset: this data set is part of it.",
        bundled=True,
    ),
    "fashion-mnist": KnownSet(
        class_names=(
            *("t-shirt", "trouser", "pullover", "dress", "coat"),
            *("sandal", "shirt", "sneaker", "bag", "ankle-boot"),
        ),
        torchvision_folder="FashionMNIST",
        fingerprints={
            "train": "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
            "test": "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
        },
        todo="Put fashion-mnist.npz or the four idx files into one of these places "
        "(on Debian: apt install dataset-fashion-mnist), or pass their path.",
    ),
}


def open_known(name: str, options: ReadOptions) -> ArrayCollection:
    """A public data set, from the first place that has it."""
    known = KNOWN[name]
    source = Source(benchmark=name, fit=options.fit, split=options.split)
    options = replace(options, source=source, class_names=options.class_names or known.class_names)
    places = search_places(name)
    for place in places:
        collection = _open_place(place, options)
        if collection is not None:
            return _verified(name, place, collection, options)
    listed = ", ".join(str(place) for place in places)
    raise DataError(f"the data set {name!r} on this machine", f"nothing in {listed}", known.todo)


def search_places(name: str) -> list[Path]:
    """Folders with idx files and npz files that may hold the data set, in the order they are tried."""
    known, places = KNOWN[name], []
    spellings = (name, name.replace("-", "_"))
    if own := os.environ.get("VEILSET_DATA"):
        places += [Path(own, f"{spelling}.npz") for spelling in spellings]
        places += [Path(own, spelling) for spelling in spellings]
        places.append(Path(own, known.torchvision_folder, "raw"))
    if known.bundled:
        places.append(Path(__file__).parent / name)
    places.append(Path("/usr/share/datasets", name))
    places += [Path(base, known.torchvision_folder, "raw") for base in (Path("data"), _home() / "data")]
    places += [_home() / ".keras" / "datasets" / item for item in (f"{name}.npz", name)]
    return list(dict.fromkeys(places))


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # an account without a home directory, as in some containers
        return Path("/nonexistent")


def _open_place(place: Path, options: ReadOptions) -> ArrayCollection | None:
    if place.suffix == ".npz":
        return open_npz(place, options) if os.path.isfile(place) else None
    return open_idx(place, options) if has_idx(place) else None


def _verified(name: str, place: Path, collection: ArrayCollection, options: ReadOptions) -> ArrayCollection:
    columns = collection.columns

    def read_checked() -> Any:
        images = columns.read_images()
        if _fingerprint(images, columns.labels) != KNOWN[name].fingerprints[options.split]:
            raise DataError(
                f"the published {name} data set",
                f"other images or labels in {place}",
                "Remove that file, or pass its path so that it is treated as private data.",
            )
        return images

    # Without chunks: images can only be compared with the fingerprint as a whole.
    return ArrayCollection(replace(columns, read_images=read_checked, chunks=None), options)


def _fingerprint(images: np.ndarray, labels: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(images).data)
    digest.update(np.ascontiguousarray(labels, dtype=np.uint8).data)
    return digest.hexdigest()
