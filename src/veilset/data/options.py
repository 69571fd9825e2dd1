"""The reading options shared by every reader, checked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from veilset.data.spec import Color, Source
from veilset.errors import ConfigError

Fit = Literal["crop", "stretch"]
Split = Literal["train", "test"]
ImageProgress = Callable[[int, int], None]
"""Called with (images done, images in total)."""

FITS = get_args(Fit)
COLORS = get_args(Color)
SPLITS = get_args(Split)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read. All of it is public: none of these values may be computed from the private images."""

    size: tuple[int, int] | None = None
    """(height, width), or None to keep the images' own common size."""
    fit: Fit | None = None
    """How other sizes are brought to ``size``: "crop" keeps the aspect ratio, "stretch" does not."""
    color: Color | None = None
    split: Split = "train"
    class_names: tuple[str, ...] | None = None
    ids: Any = None
    users: Any = None
    strict: bool = False
    source: Source = field(default_factory=Source)
    progress: ImageProgress | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _checked_size(self.size))
        object.__setattr__(self, "class_names", _checked_names(self.class_names))
        _check_choice("fit", self.fit, (None, *FITS))
        _check_choice("color", self.color, (None, *COLORS))
        _check_choice("split", self.split, SPLITS)
        if self.fit is not None and self.size is None:
            raise ConfigError("--size together with --fit", f"fit {self.fit} alone", "Add --size (in Python size).")
        if not isinstance(self.strict, bool):
            raise ConfigError("strict=True or strict=False", f"{self.strict!r}", "Use one of the two.")
        if self.progress is not None and not callable(self.progress):
            raise ConfigError("a function of (done, total) for progress", f"{self.progress!r}", "Pass a function.")

    def report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    # A list or array would fail inside `in` with an error of its own.
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise ConfigError(f"{name} to be one of {choices}", f"{value!r}", f"Choose another {name}.")


def _checked_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = tuple(size) if isinstance(size, tuple | list) else ()
    if len(pair) != 2 or any(isinstance(side, bool) or not isinstance(side, int) for side in pair):
        raise ConfigError("size=(height, width) in whole pixels", f"{size!r}", "For example size=(32, 32).")
    if not all(8 <= side <= 512 for side in pair):
        found = f"{pair[0]}x{pair[1]}"
        raise ConfigError("a size of 8 to 512 pixels a side", found, "For example --size 32 (in Python size=(32, 32)).")
    return pair


def _checked_names(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    # A bare string is a sequence of letters, which would pass for one-letter class names.
    values = tuple(names) if isinstance(names, tuple | list) else ()
    if not values or not all(isinstance(name, str) for name in values):
        raise ConfigError("class_names as a list of strings", f"{names!r}"[:200], 'For example ["cat", "dog"].')
    return values
