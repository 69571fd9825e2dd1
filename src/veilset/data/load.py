"""The front door: any source of labelled images to an `ImageSet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from veilset.data.arrays import open_arrays
from veilset.data.dataset import DatasetCollection
from veilset.data.declared import suggest_declared_size
from veilset.data.folder import open_folder
from veilset.data.idx import has_idx, open_idx
from veilset.data.known import KNOWN, open_known
from veilset.data.lazy import LazyImages
from veilset.data.manifest import is_manifest, open_manifest
from veilset.data.npz import open_npz
from veilset.data.options import Fit, ImageProgress, ReadOptions, Split
from veilset.data.spec import Color, ImageSet, ImageSpec, Source
from veilset.data.untrusted import untrusted
from veilset.errors import ConfigError, DataError

IN_MEMORY = 256 * 2**20
"""Bytes of pixels up to which a collection is held in memory, where it is read from disk only once."""


class Collection(Protocol):
    """What every reader returns: enough to describe the images, and the images on demand."""

    def __len__(self) -> int: ...

    def spec(self) -> ImageSpec: ...

    def read(self) -> ImageSet: ...

    def stream(self) -> LazyImages | None:
        """The images on disk, or None if they can only be read as a whole."""


def load(
    source: Any,
    labels: Any = None,
    *,
    size: tuple[int, int] | None = None,
    fit: Fit | None = None,
    color: Color | None = None,
    split: Split = "train",
    class_names: Sequence[str] | None = None,
    ids: Any = None,
    users: Any = None,
    strict: bool = False,
    benchmark: str | None = None,
    progress: ImageProgress | None = None,
) -> ImageSet:
    """Reads a labelled image collection into memory.

    Args:
        source: a folder with one folder per class, an ``.npz`` file, a folder of idx files, a ``.csv`` or ``.jsonl``
            manifest, the name "mnist" or "fashion-mnist" (write "./mnist" for a folder of that name), a numpy array or
            torch tensor, or a map-style data set of (image, label).
        labels: one per image; only with an array or a tensor.
        size: (height, width) to bring the images to; without it they must all have one size.
        fit: "crop" (scale the shorter side, cut the centre) or "stretch"; needed if an image has another size.
        color: "grey" or "rgb"; without it the images must all be of one kind.
        split: "train" or "test", where the source has both; a source without splits is read whole.
        class_names: public names in label order; by default folder names, text labels or "0", "1", ...
        ids: stable record ids; only with arrays and data sets. Files have their relative path as id.
        users: the person each image belongs to, for privacy per user; only with arrays and data sets.
        strict: raise on a file that cannot be decoded instead of keeping an empty record in its place.
        benchmark: name of the public benchmark these images are. It exempts them from privacy budgets.
        progress: called with (done, total).

    Raises:
        DataError: the images cannot be read as asked.
        ConfigError: an argument is not usable.
    """
    return _collection(
        source, labels, size=size, fit=fit, color=color, split=split, class_names=class_names, ids=ids, users=users,
        strict=strict, benchmark=benchmark, progress=progress,
    ).read()  # fmt: skip


def stream(source: Any, *, in_memory: int = IN_MEMORY, **options: Any) -> ImageSet | LazyImages:
    """Opens a labelled image collection for methods that only pass over it; takes the arguments of `load`.

    A folder, a manifest or an ``.npz`` file of more than ``in_memory`` bytes of pixels stays on disk and is read batch
    by batch; whatever is smaller, or can only be read whole, is loaded. The records and their order are the same.
    """
    collection = _collection(source, **options)
    images = collection.stream()
    if images is not None and len(images) * images.spec.num_values > in_memory:
        if (progress := options.get("progress")) is not None:
            progress(len(images), len(images))  # no pixels are read now
        return images
    return collection.read()


def inspect(source: Any, labels: Any = None, **options: Any) -> tuple[ImageSpec, int]:
    """The public shape of a collection and a suggestion for its declared size; takes the arguments of `load`.

    Only names, headers and labels are read, no pixels. A data set of pairs has no headers, so it is read in full.
    """
    collection = _collection(source, labels, **options)
    return collection.spec(), suggest_declared_size(len(collection))


def _collection(source: Any, labels: Any = None, *, benchmark: Any = None, **options: Any) -> Collection:
    described = _described(source, benchmark, options.get("fit"), options.get("split", "train"))
    return _opened(source, labels, ReadOptions(source=described, **options))


def _described(source: Any, benchmark: Any, fit: Fit | None, split: Split) -> Source:
    if benchmark is not None and not (isinstance(benchmark, str) and benchmark.strip()):
        raise ConfigError("the name of a public benchmark, or None", f"{benchmark!r}", "Leave it out for private data.")
    path = str(source) if isinstance(source, str | Path) else None
    return Source(path=path, benchmark=benchmark, fit=fit, split=split)


def _opened(source: Any, labels: Any, options: ReadOptions) -> Collection:
    if isinstance(source, np.ndarray | Tensor):
        return open_arrays(source, labels, options)
    if labels is not None:
        raise ConfigError(
            "labels only beside an array of images",
            f"labels beside a {type(source).__name__}",
            "Leave them out: they come from the folders, the file or the data set.",
        )
    if isinstance(source, str) and source in KNOWN:
        return open_known(source, options)
    if isinstance(source, str | Path) and source != "":  # Path("") would be the current folder
        return _opened_path(Path(source), options)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping | bytes | str):
        return DatasetCollection(source, options)
    raise ConfigError(
        "a path, a known name, an array, a tensor or a map-style data set",
        f"a {type(source).__name__}",
        "Convert the images to one of these.",
    )


def _opened_path(path: Path, options: ReadOptions) -> Collection:
    with untrusted("a readable path", f"{str(path)!r}"[:300], "Check the path."):
        is_folder, is_file = path.is_dir(), path.is_file()
    if is_folder and has_idx(path):
        return open_idx(path, options)
    if is_file and path.suffix.lower() == ".npz":
        return open_npz(path, options)
    if is_folder or is_manifest(path):
        _refuse_columns(path, options)
        return open_folder(path, options) if is_folder else open_manifest(path, options)
    raise DataError(
        "a folder of images, an .npz file, a folder of idx files, a .csv or .jsonl manifest, "
        f"or one of the names {', '.join(KNOWN)}",
        f"{path}, {'which is none of them' if is_file else 'which does not exist'}",
        "Check the path; unpack archives first.",
    )


def _refuse_columns(path: Path, options: ReadOptions) -> None:
    """Files have no order the caller can see, so a list of ids beside them could only match by luck."""
    if options.ids is not None or options.users is not None:
        raise ConfigError(
            "ids and users only beside arrays or data sets",
            f"them beside {path}",
            "Write a manifest with the columns path, label, id and user.",
        )
