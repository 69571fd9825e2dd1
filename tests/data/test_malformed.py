"""Thousands of malformed inputs: each loads into a consistent `ImageSet` or raises a `VeilsetError`, nothing else."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from veilset.data import inspect, load
from veilset.errors import VeilsetError

from .helpers import idx_bytes, image_bytes, pattern, small_images, write_image


def many(examples: int) -> Callable[[Any], Any]:
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=checks)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def attempt(read: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result or our own error; any other exception goes through and fails the test."""
    try:
        return read(*args, **options)
    except VeilsetError as error:
        return error


def check(source: Any, *args: Any, **options: Any) -> None:
    """What loads is consistent with what was inspected; what does not says what to do."""
    seen = attempt(inspect, source, *args, **options)
    images = attempt(load, source, *args, **options)
    if isinstance(images, VeilsetError):
        assert images.expected
        assert images.found
        assert images.todo
        return
    assert images.spec == seen[0]
    assert images.valid.any()
    assert not images.pixels[~images.valid].any()


def png_seeds() -> list[bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    palette = io.BytesIO()
    Image.fromarray(pattern(channels=3)).quantize(8).save(palette, "PNG", transparency=1)
    deep = image_bytes(pattern().astype(np.uint16) * 257)
    return [image_bytes(pattern()), image_bytes(pattern(channels=3), exif=exif), palette.getvalue(), deep]


def jpeg_seeds() -> list[bytes]:
    exif = Image.Exif()
    exif[0x0112] = 8
    progressive = image_bytes(pattern(channels=3), "JPEG", progressive=True)
    return [image_bytes(pattern(), "JPEG"), image_bytes(pattern(channels=3), "JPEG", exif=exif), progressive]


def npz_seeds() -> list[bytes]:
    seeds = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, x=small_images(2), y=np.array([0, 1]), id=np.array(["a", "b"]), class_names=np.array(["p", "q"]))
        seeds.append(buffer.getvalue())
    return seeds


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A valid file with bytes changed, cut out or put in."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        action = draw(st.sampled_from(["set", "flip", "cut", "truncate", "insert"]))
        if action == "set" and data:
            data[place] = draw(st.sampled_from([0, 1, 8, 127, 128, 255]))
        elif action == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif action == "cut":
            del data[place : place + draw(st.integers(1, 16))]
        elif action == "truncate":
            del data[place:]
        else:
            data[place:place] = draw(st.binary(max_size=8))
    return bytes(data)


@many(350)
@given(data=mutated(png_seeds()))
def test_mutated_png(folder: Path, data: bytes) -> None:
    write_image(folder / "png" / "a" / "0.png")
    (folder / "png" / "a" / "1.png").write_bytes(data)
    check(folder / "png", size=(8, 8), fit="crop", color="grey")


@many(350)
@given(data=mutated(jpeg_seeds()))
def test_mutated_jpeg(folder: Path, data: bytes) -> None:
    write_image(folder / "jpeg" / "a" / "0.png")
    (folder / "jpeg" / "a" / "1.jpg").write_bytes(data)
    check(folder / "jpeg", size=(8, 8), fit="stretch", color="rgb")


@many(450)
@given(data=mutated(npz_seeds()))
def test_mutated_npz(folder: Path, data: bytes) -> None:
    path = folder / "set.npz"
    path.write_bytes(data)
    check(path)


@many(350)
@given(data=st.data())
def test_mutated_idx(folder: Path, data: st.DataObject) -> None:
    place = folder / "idx"
    place.mkdir(exist_ok=True)
    for file in place.iterdir():
        file.unlink()
    suffix, pack = data.draw(st.sampled_from([("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]))
    images, labels = pack(idx_bytes(small_images(2))), pack(idx_bytes(np.array([0, 1], np.uint8)))
    (place / f"train-images-idx3-ubyte{suffix}").write_bytes(data.draw(mutated([images])))
    (place / f"train-labels-idx1-ubyte{suffix}").write_bytes(data.draw(st.one_of(st.just(labels), mutated([labels]))))
    check(place)


fields = st.one_of(st.text(max_size=12), st.sampled_from(["a.png", "b.png", "../a.png", "/a.png", "", "0", "1", "cat"]))
values = st.one_of(fields, st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.integers(), max_size=2))
names = st.one_of(st.sampled_from(["path", "label", "id", "user"]), st.text(max_size=5))


@many(300)
@given(
    header=st.one_of(st.just(["path", "label"]), st.lists(names, max_size=5)),
    rows=st.lists(st.lists(fields, max_size=5), max_size=4),
)
def test_random_csv(folder: Path, header: list[str], rows: list[list[str]]) -> None:
    write_image(folder / "a.png")
    path = folder / "list.csv"
    text = "\n".join(",".join(row) for row in [header, *rows])
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    check(path)


@many(300)
@given(
    rows=st.lists(
        st.one_of(
            st.dictionaries(names, values, max_size=4).map(json.dumps),
            st.fixed_dictionaries({"path": fields, "label": values}).map(json.dumps),
            st.just('{"path": "a.png", "label": "cat"}'),
            st.text(max_size=20),
        ),
        max_size=4,
    )
)
def test_random_jsonl(folder: Path, rows: list[str]) -> None:
    write_image(folder / "a.png")
    path = folder / "list.jsonl"
    path.write_bytes("\n".join(rows).encode("utf-8", "surrogatepass"))
    check(path)


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 600),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=3),
    st.lists(st.one_of(st.integers(-2, 40), st.text(max_size=2), st.none()), max_size=4),
    st.tuples(st.integers(-1, 64), st.integers(-1, 64)),
    st.just({}),
    st.builds(lambda size: np.zeros(size), st.integers(0, 3)),
    st.builds(lambda size: torch.zeros(size), st.integers(0, 3)),
)
shapes = st.lists(st.integers(0, 9), max_size=5).map(tuple) | st.sampled_from([(2, 8, 8), (2, 3, 8, 8), (2, 9, 8, 1)])
dtypes = st.sampled_from(["uint8", "float32", "float64", "int64", "bool", "U2", "object", "complex64", "M8[s]", "f2"])
arrays = st.builds(lambda shape, dtype: np.zeros(shape, dtype), shapes, dtypes)
sources = st.one_of(arrays, anything, st.lists(st.tuples(arrays | anything, anything), max_size=3))
options = st.fixed_dictionaries(
    {},
    optional={
        "size": st.sampled_from([(8, 8), (16, 9)]) | anything,
        "fit": st.sampled_from(["crop", "stretch"]) | anything,
        "color": st.sampled_from(["grey", "rgb"]) | anything,
        "split": st.sampled_from(["train", "test"]) | anything,
        "class_names": st.just(["a", "b"]) | anything,
        "ids": st.just(["a", "b"]) | anything,
        "users": st.just([1, 1]) | anything,
        "strict": anything,
        "benchmark": anything,
        "progress": anything,
    },
)


@many(600)
@given(source=sources, labels=st.just([0, 1]) | anything, chosen=options)
def test_random_arguments(source: Any, labels: Any, chosen: dict[str, Any]) -> None:
    check(source, labels, **chosen)
