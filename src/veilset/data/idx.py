"""Reader for the idx files of MNIST and its relatives, plain, gzipped or xz-compressed."""

from __future__ import annotations

import lzma
import math
import os
import zlib
from pathlib import Path

import numpy as np

from veilset.data.arrays import ArrayCollection, ArrayColumns
from veilset.data.options import ReadOptions
from veilset.data.untrusted import check_expansion, untrusted
from veilset.errors import DataError

_PREFIXES = {"train": "train", "test": "t10k"}
_STEMS = {3: ("images-idx3-ubyte", "images.idx3-ubyte"), 1: ("labels-idx1-ubyte", "labels.idx1-ubyte")}
_SUFFIXES = ("", ".gz", ".xz")
_UBYTE = 0x08
_XZ_MEMORY = 256 * 2**20


def find_idx(folder: Path, split: str, dimensions: int) -> Path | None:
    """The images (3 dimensions) or labels (1 dimension) file of a split, if the folder has one."""
    for stem in _STEMS[dimensions]:
        for suffix in _SUFFIXES:
            path = folder / f"{_PREFIXES[split]}-{stem}{suffix}"
            if os.path.isfile(path):  # unlike Path.is_file, no error where a folder may not be looked into
                return path
    return None


def has_idx(folder: Path) -> bool:
    """Whether a folder holds the images of any split in idx form."""
    return any(find_idx(folder, split, 3) for split in _PREFIXES)


def open_idx(folder: Path, options: ReadOptions) -> ArrayCollection:
    """The pair of idx files of one split. Only the header of the images is read here."""
    images, labels = (find_idx(folder, options.split, dimensions) for dimensions in (3, 1))
    if images is None or labels is None:
        prefix, kind = _PREFIXES[options.split], "images-idx3" if images is None else "labels-idx1"
        raise DataError(f"{prefix}-{kind}-ubyte[.gz] in {folder}", "no such file", "Add it, or choose another split.")
    columns = ArrayColumns(
        shape=read_idx_shape(images, 3), read_images=lambda: read_idx(images, 3), labels=read_idx(labels, 1)
    )
    return ArrayCollection(columns, options)


def read_idx_shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """The array shape an idx header declares."""
    header = _unpacked(path, 4 + 4 * dimensions)
    expected = bytes([0, 0, _UBYTE, dimensions])
    if header[:4] != expected or len(header) < 4 + 4 * dimensions:
        raise DataError(
            f"an idx file of bytes in {dimensions} dimensions (it starts with {expected.hex()})",
            f"{path} starts with {header[:4].hex()}",
            "Fetch the file again.",
        )
    return tuple(int(size) for size in np.frombuffer(header, dtype=">u4", offset=4))


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The whole array. Its size is known from the header, so nothing beyond it is ever unpacked."""
    shape = read_idx_shape(path, dimensions)
    start, size = 4 + 4 * dimensions, math.prod(shape)
    with untrusted("a readable idx file", str(path), "Check its rights."):
        check_expansion(path, size, path.stat().st_size)
    # One byte more than expected: it ends the stream (so checksums are verified) and shows a body that is too long.
    body = memoryview(_unpacked(path, start + size + 1))[start:]
    if len(body) != size:
        raise DataError(
            f"{size} bytes after the header of {path}",
            f"{'more' if len(body) > size else len(body)}",
            "Fetch the file again.",
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _unpacked(path: Path, limit: int) -> bytes:
    """At most ``limit`` bytes of the unpacked file."""
    with untrusted("a readable idx file", str(path), "Fetch the file again."), path.open("rb") as file:
        if path.suffix == ".gz":
            return zlib.decompressobj(wbits=31).decompress(file.read(), limit)
        if path.suffix == ".xz":
            unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
            return unpacker.decompress(file.read(), limit)
        return file.read(limit)
