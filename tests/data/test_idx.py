from __future__ import annotations

import gzip
import lzma
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from veilset.data import inspect, load
from veilset.data.idx import read_idx
from veilset.errors import DataError

from .helpers import idx_bytes, small_images, write_idx_pair

Y = np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8)


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_plain_and_packed_files_read_the_same(tmp_path: Path, suffix: str, pack: object) -> None:
    for name, array in (("images-idx3", small_images()), ("labels-idx1", Y)):
        (tmp_path / f"train-{name}-ubyte{suffix}").write_bytes(pack(idx_bytes(array)))  # type: ignore[operator]
    images = load(tmp_path)
    assert (images.pixels[:, 0].numpy() == small_images()).all()
    assert images.labels.tolist() == Y.tolist()
    assert inspect(tmp_path) == (images.spec, 10)


def test_split_picks_the_t10k_files(tmp_path: Path) -> None:
    write_idx_pair(tmp_path, small_images(2), Y[:2], "t10k")
    assert len(load(tmp_path, split="test")) == 2
    with pytest.raises(DataError, match="train-images"):
        load(tmp_path)


def test_dotted_file_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "train-images.idx3-ubyte").write_bytes(idx_bytes(small_images()))
    (tmp_path / "train-labels.idx1-ubyte").write_bytes(idx_bytes(Y))
    assert len(load(tmp_path)) == 6


def test_missing_labels_are_an_error(tmp_path: Path) -> None:
    write_idx_pair(tmp_path, small_images(), Y)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="labels-idx1"):
        load(tmp_path)


def test_length_mismatch_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="6 labels"):
        load(write_idx_pair(tmp_path, small_images(), Y[:5]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x0d\x03" + idx_bytes(small_images())[4:],
        idx_bytes(small_images()[0]),
        idx_bytes(small_images())[:-1],
        idx_bytes(small_images()) + b"\0",
    ],
    ids=["empty", "short", "float type", "two dimensions", "short body", "long body"],
)
def test_damaged_images_are_an_error(tmp_path: Path, data: bytes) -> None:
    write_idx_pair(tmp_path, small_images(), Y)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(DataError):
        load(tmp_path)


def test_damaged_gzip_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress(idx_bytes(Y))
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    for data in (b"no gzip", packed[:-12], packed[:-8] + b"\0\0\0\0" + packed[-4:]):
        path.write_bytes(data)
        with pytest.raises(DataError):
            read_idx(path, 1)


def test_gzip_bomb_is_refused_from_its_header(tmp_path: Path) -> None:
    shape = struct.pack(">4I", 0x803, 2**20, 256, 256)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(shape + bytes(2**20)))
    with pytest.raises(DataError, match="unpack"):
        read_idx(path, 3)


def test_body_beyond_the_header_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(small_images()) + bytes(64 * 2**20)))
    tracemalloc.start()
    with pytest.raises(DataError, match="more"):
        read_idx(path, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20
