"""What an image collection looks like in public (`ImageSpec`) and what it holds in private (`ImageSet`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol
from unicodedata import category

import numpy as np
import torch
from torch import Tensor

from veilset.data.labels import number_users
from veilset.errors import ConfigError, DataError

MAX_CLASS_NAME_BYTES = 200
"""Below the 255 bytes that file systems allow for one name."""
Color = Literal["grey", "rgb"]
COLORS_BY_CHANNELS: dict[int, Color] = {1: "grey", 3: "rgb"}


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """The public shape of a data set. Everything in here is released with the model, class names included."""

    height: int
    width: int
    channels: int
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ConfigError("1 channel (grey) or 3 channels (RGB)", f"{self.channels}", "Convert the images first.")
        if not (8 <= self.height <= 512 and 8 <= self.width <= 512):
            raise ConfigError(
                "images of 8 to 512 pixels a side",
                f"{self.height} x {self.width}",
                "Pass --size HEIGHTxWIDTH to resize while reading.",
            )
        if not self.class_names:
            raise ConfigError("at least one class", "none", "Put the images into one folder per class.")
        if len(set(self.class_names)) != len(self.class_names):
            raise ConfigError("distinct class names", f"{self.class_names}", "Rename the repeated classes.")
        for name in self.class_names:
            _check_class_name(name)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width), the shape of one image tensor."""
        return (self.channels, self.height, self.width)

    @property
    def color(self) -> Color:
        """What `veilset.load` takes to read images of as many channels."""
        return COLORS_BY_CHANNELS[self.channels]

    @property
    def look(self) -> str:
        """
        >>> ImageSpec(height=28, width=20, channels=1, class_names=("cat",)).look
        '28x20 grey'
        """
        return f"{self.height}x{self.width} {self.color}"

    @property
    def num_values(self) -> int:
        return self.channels * self.height * self.width

    def to_json(self) -> dict[str, Any]:
        return {
            "height": self.height,
            "width": self.width,
            "channels": self.channels,
            "class_names": list(self.class_names),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ImageSpec:
        return cls(
            height=int(value["height"]),
            width=int(value["width"]),
            channels=int(value["channels"]),
            class_names=tuple(str(name) for name in value["class_names"]),
        )


def _check_class_name(name: str) -> None:
    """Class names become folder names, and may come from somebody else's model: they must not lead anywhere else."""
    # ":" starts a drive or a stream on Windows; a leading dot covers "..", and hidden folders, which are not read back.
    hostile = any(letter in "/\\:" or category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name)
    if (
        hostile
        or not name.strip()
        or name.startswith(".")
        or len(name.encode("utf-8", "replace")) > MAX_CLASS_NAME_BYTES
    ):
        raise ConfigError(
            "class names that can be folder names: no '/', '\\', ':', leading dot or control character, "
            f"and 1 to {MAX_CLASS_NAME_BYTES} bytes",
            f"{name!r}"[:200],
            "Rename the class.",
        )


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a collection came from. Stays on the owner's side: paths are never released."""

    path: str | None = None
    benchmark: str | None = None
    """Name of a public benchmark data set (exempt from budgets, stamped so), or None for private data."""
    fit: str | None = None
    """How other sizes were brought to one while reading: the same picture has other pixels after another way."""
    split: str = "train"
    """Which part was read, where there are several."""


Batch = tuple[Tensor, Tensor, Tensor]
"""Pixels (uint8, as `ImageSet.pixels`), labels and valid of some records."""


class Images(Protocol):
    """What one pass over a private collection needs, whether it is in memory (`ImageSet`) or on disk (`LazyImages`)."""

    @property
    def spec(self) -> ImageSpec: ...

    @property
    def source(self) -> Source: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[Batch]:
        """All records, the same in the same order every time; the last batch may be short."""

    def user_numbers(self) -> np.ndarray | None:
        """The user of every record as a number, or None without a user column."""

    def user_names(self) -> Iterable[str] | None:
        """The same by name."""

    def id_names(self) -> Iterable[str] | None:
        """The id of every record, or None where it came without."""

    def in_memory(self) -> ImageSet:
        """All records at once, for methods that need more than passes."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ImageSet:
    """Labelled images in memory, private unless they were sampled from a model.

    ``valid[i]`` is False for a null record (an undecodable file): it keeps its place and contributes the zero vector,
    so that no other record's treatment depends on it.
    """

    spec: ImageSpec
    pixels: Tensor
    """uint8, (records, channels, height, width)"""
    labels: Tensor
    """int64, (records,)"""
    ids: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None
    valid: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    source: Source = field(default_factory=Source)
    warnings: tuple[str, ...] = ()
    """For the owner's eyes only: they name files and counts."""

    def __post_init__(self) -> None:
        records = self.pixels.shape[0]
        if self.pixels.dtype != torch.uint8 or tuple(self.pixels.shape[1:]) != self.spec.shape:
            raise DataError(
                f"uint8 images of shape {self.spec.shape}",
                f"{self.pixels.dtype} of shape {tuple(self.pixels.shape[1:])}",
                "Use veilset.load(), which converts and checks.",
            )
        if tuple(self.labels.shape) != (records,) or self.labels.dtype != torch.int64:
            raise DataError(
                f"{records} int64 labels",
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}",
                "Give one label per image.",
            )
        if records and not (int(self.labels.min()) >= 0 and int(self.labels.max()) < self.spec.num_classes):
            raise DataError(
                f"labels from 0 to {self.spec.num_classes - 1}",
                f"{int(self.labels.min())} to {int(self.labels.max())}",
                "Pass the full list of class names, or renumber the labels.",
            )
        for name, column in (("ids", self.ids), ("users", self.users)):
            if column is not None and len(column) != records:
                raise DataError(f"{records} {name}", f"{len(column)}", f"Give one entry of {name} per image.")
        if self.valid.numel() == 0:
            object.__setattr__(self, "valid", torch.ones(records, dtype=torch.bool))
        if tuple(self.valid.shape) != (records,) or self.valid.dtype != torch.bool:
            raise DataError(
                f"{records} true or false values in valid",
                f"{self.valid.dtype} of shape {tuple(self.valid.shape)}",
                "Give one per image, or leave it out.",
            )

    def __len__(self) -> int:
        return int(self.pixels.shape[0])

    def __repr__(self) -> str:
        # The record count is private under add/remove, so a stray print must not show it.
        return f"ImageSet({self.spec.height}x{self.spec.width}x{self.spec.channels}, {self.spec.num_classes} classes)"

    def batches(self, size: int) -> Iterator[Batch]:
        """All records in stored order; the last batch may be short."""
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield self.pixels[rows], self.labels[rows], self.valid[rows]

    def user_numbers(self) -> np.ndarray | None:
        """The user of every record as a number, or None without a user column."""
        return None if self.users is None else number_users(self.users)

    def user_names(self) -> tuple[str, ...] | None:
        return self.users

    def id_names(self) -> tuple[str, ...] | None:
        return self.ids

    def in_memory(self) -> ImageSet:
        return self

    def subset(self, rows: Tensor) -> ImageSet:
        """The records at the given row numbers, or where a boolean mask is True."""
        rows = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        picked = rows.tolist()
        return ImageSet(
            spec=self.spec,
            pixels=self.pixels[rows],
            labels=self.labels[rows],
            ids=None if self.ids is None else tuple(self.ids[i] for i in picked),
            users=None if self.users is None else tuple(self.users[i] for i in picked),
            valid=self.valid[rows],
            source=self.source,
        )

    def readable(self) -> ImageSet:
        """Itself without null records."""
        return self if bool(self.valid.all()) else self.subset(self.valid)

    def of_classes(self, names: Sequence[str]) -> ImageSet:
        """The records of these classes, which are numbered anew in the order given.

        Raises: ConfigError for a class that is not here.
        """
        unknown = [name for name in names if name not in self.spec.class_names]
        if unknown:
            raise ConfigError(
                f"classes of {', '.join(self.spec.class_names)}", f"{', '.join(unknown)}", "Correct the class names."
            )
        numbers = torch.full((self.spec.num_classes,), -1)
        numbers[[self.spec.class_names.index(name) for name in names]] = torch.arange(len(names))
        kept = self.subset(numbers[self.labels] >= 0)
        return replace(kept, spec=replace(self.spec, class_names=tuple(names)), labels=numbers[kept.labels])


def to_unit_range(pixels: Tensor) -> Tensor:
    """uint8 to float32 in [0, 1], by a constant: scaling by a statistic of the data would be a release."""
    return pixels.to(torch.float32) / 255.0


def to_bytes(images: Tensor) -> Tensor:
    """float images in [0, 1] to uint8."""
    return (images.clamp(0, 1) * 255.0).round().to(torch.uint8)
