"""The one common shape of a collection, and how a single image is brought to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from veilset.data.options import Fit, ReadOptions
from veilset.data.spec import COLORS_BY_CHANNELS, ImageSpec
from veilset.errors import DataError

_CHANNELS = {color: channels for channels, color in COLORS_BY_CHANNELS.items()}
_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Header:
    """Shape of one image as it will be decoded, before any resizing."""

    height: int
    width: int
    channels: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width} {COLORS_BY_CHANNELS[self.channels]}"


@dataclass(frozen=True)
class Target:
    """The shape every image of the collection ends up with."""

    height: int
    width: int
    channels: int
    fit: Fit | None

    def spec(self, class_names: tuple[str, ...]) -> ImageSpec:
        """Of a collection with these classes."""
        return ImageSpec(height=self.height, width=self.width, channels=self.channels, class_names=class_names)


def resolve_target(headers: Iterable[tuple[str, Header]], options: ReadOptions) -> Target | None:
    """Finds the common shape or names the first image that differs; None if there is no image at all.

    Nothing is converted silently: a size or a colour that differs is an error unless the options say what to do.
    """
    first: tuple[str, Header] | None = None
    for name, header in headers:
        first = first or (name, header)
        _check_color(first, name, header, options)
        _check_size(first, name, header, options)
    if first is None:
        return None
    height, width = options.size or (first[1].height, first[1].width)
    channels = _CHANNELS[options.color] if options.color else first[1].channels
    return Target(height, width, channels, options.fit)


def _check_color(first: tuple[str, Header], name: str, header: Header, options: ReadOptions) -> None:
    if options.color is None and header.channels != first[1].channels:
        raise DataError(
            f"one kind of images ({first[0]} is {COLORS_BY_CHANNELS[first[1].channels]})",
            f"{name} is {COLORS_BY_CHANNELS[header.channels]}",
            'Convert them all: --color grey or --color rgb (in Python color="grey").',
        )


def _check_size(first: tuple[str, Header], name: str, header: Header, options: ReadOptions) -> None:
    found = (header.height, header.width)
    if options.size is None and found != (first[1].height, first[1].width):
        raise DataError(
            f"images of one size ({first[0]} is {first[1].height}x{first[1].width})",
            f"{name} is {header.height}x{header.width}",
            'Say how: --size 64x64 --fit crop, or --fit stretch (in Python size=(64, 64), fit="crop").',
        )
    if options.size is not None and options.fit is None and found != options.size:
        raise DataError(
            f"images of {options.size[0]}x{options.size[1]}, or a choice of fit",
            f"{name} is {header.height}x{header.width}",
            'Add --fit crop (keeps the aspect ratio) or --fit stretch (in Python fit="crop").',
        )


def fit_image(image: Image.Image, target: Target) -> np.ndarray:
    """Converts an "L" or "RGB" image to a uint8 array of the target's (channels, height, width).

    Grey from RGB is the ITU-R 601 luma; RGB from grey repeats the channel. Resizing is bilinear with antialiasing,
    which cannot leave the range of the pixels.
    """
    if image.mode != _MODES[target.channels]:
        image = image.convert(_MODES[target.channels])
    if image.size != (target.width, target.height):
        image = image.resize((target.width, target.height), Image.Resampling.BILINEAR, box=_window(image, target))
    array = np.asarray(image)
    return array[None] if target.channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _window(image: Image.Image, target: Target) -> tuple[float, float, float, float]:
    """The part of the image to keep; scaling a centred window is scaling the shorter side and cropping the centre."""
    width, height = image.size
    if target.fit == "stretch":
        return (0, 0, width, height)
    scale = min(width / target.width, height / target.height)
    left = max(0.0, (width - target.width * scale) / 2)
    top = max(0.0, (height - target.height * scale) / 2)
    return (left, top, min(width, left + target.width * scale), min(height, top + target.height * scale))


def array_to_image(array: np.ndarray) -> Image.Image:
    """A uint8 (channels, height, width) array as a Pillow image."""
    return Image.fromarray(array[0]) if array.shape[0] == 1 else Image.fromarray(array.transpose(1, 2, 0).copy())
