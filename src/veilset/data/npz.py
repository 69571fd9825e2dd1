"""Reader for ``.npz`` archives. Pickled arrays are refused, and sizes are checked before anything is unpacked."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from veilset.data.arrays import ArrayCollection, ArrayColumns, Chunks
from veilset.data.lazy import changed
from veilset.data.listing import FilesState
from veilset.data.options import SPLITS, ReadOptions
from veilset.data.untrusted import check_expansion, untrusted
from veilset.errors import DataError

T = TypeVar("T")

_PLAIN_KEYS = (("x", "y"), ("images", "labels"))
_SPLIT_KEYS = (("x_{}", "y_{}"), ("{}_images", "{}_labels"))


def open_npz(path: Path, options: ReadOptions) -> ArrayCollection:
    """Images and labels under x/y, images/labels or x_train/y_train (x_test/y_test), optionally id, user, class_names.

    Only the header of the images is read here.
    """
    names = _array_names(path)
    images, labels = _image_keys(path, names, options.split)
    ids, users = (_column(names, name, options.split) for name in ("id", "user"))
    shape, fortran_order, _ = _with_member(path, images, lambda file, _: _read_header(file))
    columns = ArrayColumns(
        shape=shape,
        read_images=partial(read_array, path, images),
        labels=read_array(path, labels),
        read_ids=partial(read_array, path, ids) if ids else None,
        read_users=partial(read_array, path, users) if users else None,
        class_names=_class_names(path, names),
        chunks=None if fortran_order else _chunks(path, images, ids, users),
    )
    return ArrayCollection(columns, options)


def _chunks(path: Path, images: str, ids: str | None, users: str | None) -> Chunks:
    opened = FilesState.of([path])

    def check_unchanged() -> None:
        if FilesState.of([path]) != opened:
            raise changed(str(path))

    return Chunks(
        images=partial(read_pieces, path, images),
        ids=partial(read_pieces, path, ids) if ids else None,
        users=partial(read_pieces, path, users) if users else None,
        check_unchanged=check_unchanged,
    )


def read_array(path: Path, name: str) -> np.ndarray:
    """One array of the archive."""
    return _with_member(path, name, _read_member)


def read_pieces(path: Path, name: str, rows: int) -> Iterator[np.ndarray]:
    """One array of the archive, `rows` rows at a time, packed or not. The last piece ends the member, which checks it.

    Reading, not mapping: mapped pages of a large file would count as memory of this process.
    """
    with _opened_member(path, name) as (file, member):
        shape, fortran_order, dtype = _checked_header(file, member)
        if fortran_order and len(shape) > 1:
            raise DataError("an array stored row by row", f"{path}, array {name}", "Write it in C order.")
        for start in range(0, shape[0], rows):
            part = (min(rows, shape[0] - start), *shape[1:])
            yield _read_part(file, part, dtype)
        if file.read(1):
            raise DataError(f"the end of array {name}", f"more bytes in {path}", "Write the file again.")


def _array_names(path: Path) -> set[str]:
    with untrusted("an .npz archive", str(path), "Write it with numpy.savez."), zipfile.ZipFile(path) as archive:
        members = {member.filename for member in archive.infolist()}
    return {member.removesuffix(".npy") for member in members if member.endswith(".npy")}


def _image_keys(path: Path, names: set[str], split: str) -> tuple[str, str]:
    pairs = [(image.format(split), label.format(split)) for image, label in _SPLIT_KEYS]
    if not any(key.format(part) in names for pair in _SPLIT_KEYS for key in pair for part in SPLITS):
        pairs += _PLAIN_KEYS  # without splits the archive is one collection
    for images, labels in pairs:
        if images in names and labels in names:
            return images, labels
    raise DataError(
        f"arrays named {' or '.join('/'.join(pair) for pair in pairs)}",
        f"{path} holds {sorted(names)[:20]}",
        "Rename the arrays, or pass them to load() yourself.",
    )


def _column(names: set[str], name: str, split: str) -> str | None:
    return next((key for key in (f"{name}_{split}", name) if key in names), None)


def _class_names(path: Path, names: set[str]) -> tuple[str, ...] | None:
    if "class_names" not in names:
        return None
    array = read_array(path, "class_names")
    if array.ndim != 1 or array.dtype.kind != "U" or not array.size:
        raise DataError(
            "class_names as an array of text", f"type {array.dtype}", "Store it as numpy.array([...], str)."
        )
    return tuple(str(name) for name in array)


def _with_member(path: Path, name: str, use: Callable[[Any, zipfile.ZipInfo], T]) -> T:
    with _opened_member(path, name) as (file, member):
        return use(file, member)


@contextmanager
def _opened_member(path: Path, name: str) -> Iterator[tuple[Any, zipfile.ZipInfo]]:
    todo = "Write the archive again with numpy.savez; arrays of Python objects are not read."
    with (
        untrusted("an .npz archive of plain arrays", f"{path}, array {name}", todo),
        zipfile.ZipFile(path) as archive,
        archive.open(f"{name}.npy") as file,
    ):
        member = archive.getinfo(f"{name}.npy")
        # The archive's own directory may lie about the packed size, but not beyond the size of the file.
        check_expansion(path, member.file_size, min(member.compress_size, path.stat().st_size))
        yield file, member


def _read_member(file: Any, member: zipfile.ZipInfo) -> np.ndarray:
    shape, fortran_order, dtype = _checked_header(file, member)
    flat = _read_part(file, (math.prod(shape),), dtype, extra=1)
    return flat.reshape(shape[::-1]).transpose() if fortran_order else flat.reshape(shape)


def _checked_header(file: Any, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], bool, np.dtype]:
    shape, fortran_order, dtype = _read_header(file)
    size = math.prod(shape) * dtype.itemsize
    # Believing the header alone would let a few bytes ask for any amount of memory.
    if size != member.file_size - file.tell():
        raise DataError(f"{size} bytes for shape {shape}", f"{member.file_size - file.tell()}", "Write the file again.")
    return shape, fortran_order, dtype


def _read_part(file: Any, shape: tuple[int, ...], dtype: np.dtype, extra: int = 0) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    body = file.read(size + extra)
    if len(body) != size:
        raise DataError(f"{size} bytes for shape {shape}", f"{len(body)}", "Write the file again.")
    return np.frombuffer(body, dtype=dtype).reshape(shape)


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if dtype.hasobject or dtype.fields or any(side < 0 for side in shape):
        raise DataError("plain numbers or text", f"type {dtype}, shape {shape}", "Object arrays would need pickle.")
    return shape, fortran_order, dtype
