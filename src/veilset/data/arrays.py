"""Collections that come as one array: numpy arrays, torch tensors, and the npz and idx files that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veilset.data.fitting import Header, Target, array_to_image, fit_image, resolve_target
from veilset.data.labels import check_lengths, number_users, repeated_ids, resolve_labels, text_column
from veilset.data.lazy import LazyImages
from veilset.data.options import ReadOptions
from veilset.data.spec import Batch, ImageSet, ImageSpec
from veilset.data.untrusted import untrusted
from veilset.errors import DataError

_CHUNK = 1024
"""Images converted at a time, so that float input needs no second full-size float copy."""


@dataclass(frozen=True, kw_only=True)
class ArrayColumns:
    """What an array reader found. Pixels are read only on demand, so that looking at a file stays cheap."""

    shape: tuple[int, ...]
    read_images: Callable[[], Any]
    labels: Any
    read_ids: Callable[[], Any] | None = None
    read_users: Callable[[], Any] | None = None
    class_names: tuple[str, ...] | None = None
    chunks: Chunks | None = None
    """Where the arrays can be read piece by piece."""


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The same columns as iterators over pieces of a given number of records."""

    images: Callable[[int], Iterator[np.ndarray]]
    ids: Callable[[int], Iterator[np.ndarray]] | None
    users: Callable[[int], Iterator[np.ndarray]] | None
    check_unchanged: Callable[[], None]


@dataclass(frozen=True)
class ArrayCollection:
    """Images of one common shape in one array: (N, H, W), (N, H, W, C) or (N, C, H, W)."""

    columns: ArrayColumns
    options: ReadOptions

    def __len__(self) -> int:
        return self.columns.shape[0]

    def spec(self) -> ImageSpec:
        return self._target().spec(self._labels()[1])

    def read(self) -> ImageSet:
        target = self._target()
        labels, names = self._labels()
        spec = target.spec(names)
        ids = self._column(self.options.ids, self.columns.read_ids, "ids")
        return ImageSet(
            spec=spec,
            pixels=self._pixels(target),
            labels=labels,
            ids=ids,
            users=self._column(self.options.users, self.columns.read_users, "users"),
            source=self.options.source,
            warnings=repeated_ids(ids),
        )

    def stream(self) -> LazyImages | None:
        """The same records, read when they are asked for; None where that is not possible."""
        chunks = self.columns.chunks
        if chunks is None:
            return None
        target = self._target()
        labels, names = self._labels()
        self._check_ids(chunks)
        return LazyImages(
            spec=target.spec(names),
            records=len(self),
            read_batches=partial(_batches, chunks, target, labels.to(torch.int32)),
            read_all=self.read,
            users=self._user_numbers(chunks),
            read_users=partial(_names, self.options.users, chunks.users, "users"),
            read_ids=partial(_names, self.options.ids, chunks.ids, "ids"),
            check_unchanged=chunks.check_unchanged,
            source=self.options.source,
        )

    def _check_ids(self, chunks: Chunks) -> None:
        """Now: when they are hashed, a run has begun and its budget is charged."""
        ids = _names(self.options.ids, chunks.ids, "ids")
        if ids is not None:
            check_lengths(len(self), (("ids", range(sum(1 for _ in ids))),))

    def _user_numbers(self, chunks: Chunks) -> np.ndarray | None:
        users = _names(self.options.users, chunks.users, "users")
        numbers = None if users is None else number_users(users)
        check_lengths(len(self), (("users", numbers),))
        return numbers

    def _column(self, given: Any, stored: Callable[[], Any] | None, name: str) -> tuple[str, ...] | None:
        column = text_column(given if given is not None or stored is None else stored(), name)
        check_lengths(len(self), ((name, column),))
        return column

    def _target(self) -> Target:
        target = resolve_target([("the array", header_of_shape(self.columns.shape))], self.options)
        assert target is not None
        return target

    def _labels(self) -> tuple[Tensor, tuple[str, ...]]:
        labels, names = resolve_labels(self.columns.labels, self.options.class_names or self.columns.class_names)
        check_lengths(len(self), (("labels", labels),))
        return labels, names

    def _pixels(self, target: Target) -> Tensor:
        images = self.columns.read_images()
        pixels = torch.zeros((len(self), target.channels, target.height, target.width), dtype=torch.uint8)
        for start in range(0, len(self), _CHUNK):
            rows = slice(start, min(start + _CHUNK, len(self)))
            with untrusted("an array of pixels", type(images).__name__, "Convert it to a plain array."):
                pixels.numpy()[rows] = _fitted(channels_first(to_uint8(images[rows])), target)
            self.options.report(rows.stop, len(self))
        return pixels


def _names(given: Any, stored: Callable[[int], Iterator[np.ndarray]] | None, what: str) -> Iterable[str] | None:
    """A column as `ArrayCollection.read` has it, a piece at a time."""
    if given is not None or stored is None:
        return text_column(given, what)
    return (name for part in stored(_CHUNK) for name in text_column(part, what) or ())


def _batches(chunks: Chunks, target: Target, labels: Tensor, size: int) -> Iterator[Batch]:
    done = 0
    for part in chunks.images(size):
        with untrusted("an array of pixels", type(part).__name__, "Convert it to a plain array."):
            pixels = torch.from_numpy(np.array(_fitted(channels_first(to_uint8(part)), target)))
        rows = slice(done, done + len(pixels))
        yield pixels, labels[rows].to(torch.int64), torch.ones(len(pixels), dtype=torch.bool)
        done += len(pixels)


def header_of_shape(shape: tuple[int, ...]) -> Header:
    """The shape of one image in an array of images."""
    if len(shape) not in (3, 4) or 0 in shape:
        raise DataError(
            "images as (N, H, W), (N, H, W, C) or (N, C, H, W)", f"shape {shape}", "Reshape the array, or add images."
        )
    if len(shape) == 3:
        return Header(shape[1], shape[2], 1)
    if _channel_axis(shape) == 3:
        return Header(shape[1], shape[2], shape[3])
    return Header(shape[2], shape[3], shape[1])


def _channel_axis(shape: tuple[int, ...]) -> int:
    axes = [axis for axis in (1, 3) if shape[axis] in (1, 3)]
    if len(axes) != 1:
        raise DataError(
            "one axis of 1 or 3 channels, second or last",
            f"shape {shape}",
            "Convert to grey or RGB and to (N, H, W, C) or (N, C, H, W).",
        )
    return axes[0]


def channels_first(images: np.ndarray) -> np.ndarray:
    """Any accepted layout as (N, C, H, W)."""
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if _channel_axis(images.shape) == 3 else images


def to_uint8(images: Any) -> np.ndarray:
    """uint8 as it is, floats in [0, 1] times 255; everything else is refused rather than guessed."""
    if isinstance(images, Tensor):
        images = images.detach().cpu()
        images = (images.float() if images.is_floating_point() else images).numpy()
    array = np.asarray(images)
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise DataError(
            "uint8 images, or floats in [0, 1]",
            f"type {array.dtype}",
            "Convert them, for example with images.astype('uint8') if the values are 0 to 255.",
        )
    if not np.isfinite(array).all():
        raise DataError("finite pixel values", "NaN or infinity", "Repair or remove those images.")
    if array.size and (array.min() < 0 or array.max() > 1):
        raise DataError(
            "float pixels in [0, 1]",
            "values outside of it",
            "Divide by the constant 255, or map [-1, 1] with (x + 1) / 2; never scale by the data's own range.",
        )
    return np.rint(array.astype(np.float32) * 255).astype(np.uint8)


def _fitted(images: np.ndarray, target: Target) -> np.ndarray:
    if images.shape[1:] == (target.channels, target.height, target.width):
        return images
    return np.stack([fit_image(array_to_image(image), target) for image in images])


def open_arrays(images: Any, labels: Any, options: ReadOptions) -> ArrayCollection:
    """A numpy array or torch tensor of images with its labels."""
    if labels is None:
        raise DataError("labels beside an array of images", "none", "Pass labels=...; for a single class pass zeros.")
    columns = ArrayColumns(shape=tuple(images.shape), read_images=lambda: images, labels=labels)
    return ArrayCollection(columns, options)
