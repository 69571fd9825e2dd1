"""A collection of image files on disk, whichever way they were listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from veilset.data.decode import decode, read_header
from veilset.data.fitting import Header, Target, resolve_target
from veilset.data.labels import repeated_ids
from veilset.data.options import ReadOptions
from veilset.data.spec import ImageSet, ImageSpec
from veilset.errors import DataError


@dataclass(frozen=True)
class Entry:
    """One record before it is read."""

    path: Path
    label: int
    id: str
    user: str | None = None


@dataclass(frozen=True)
class FileCollection:
    """Image files with labels.

    A file that cannot be decoded becomes a null record (zero pixels, ``valid`` False, label kept): one person's broken
    picture must not decide whether the run goes ahead.
    """

    entries: Sequence[Entry]
    class_names: tuple[str, ...]
    options: ReadOptions
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def spec(self) -> ImageSpec:
        return self._spec(self._target(self._headers()))

    def read(self) -> ImageSet:
        headers = self._headers()
        target = self._target(headers)
        pixels = torch.zeros((len(self), target.channels, target.height, target.width), dtype=torch.uint8)
        valid = torch.zeros(len(self), dtype=torch.bool)
        warnings = list(self.warnings)
        for row, entry in enumerate(self.entries):
            image = self._decoded(entry, headers[row], target)
            if isinstance(image, DataError):
                warnings.append(f"{entry.id}: kept as an empty record ({image.found})")
            else:
                pixels.numpy()[row] = image
                valid[row] = True
            self.options.report(row + 1, len(self))
        if not valid.any():
            raise _nothing_decodes(self.entries[0])
        return self._image_set(target, pixels, valid, warnings)

    def _headers(self) -> list[Header | DataError]:
        headers = [_attempt_header(entry) for entry in self.entries]
        if self.options.strict:
            for header in headers:
                if isinstance(header, DataError):
                    raise header
        return headers

    def _target(self, headers: list[Header | DataError]) -> Target:
        readable = [
            (entry.id, header)
            for entry, header in zip(self.entries, headers, strict=True)
            if isinstance(header, Header)
        ]
        target = resolve_target(readable, self.options)
        if target is None:
            raise _nothing_decodes(self.entries[0])
        return target

    def _decoded(self, entry: Entry, header: Header | DataError, target: Target) -> np.ndarray | DataError:
        if isinstance(header, DataError):
            return header
        try:
            return decode(entry.path, target)
        except DataError as error:
            if self.options.strict:
                raise
            return error

    def _spec(self, target: Target) -> ImageSpec:
        return ImageSpec(
            height=target.height, width=target.width, channels=target.channels, class_names=self.class_names
        )

    def _image_set(self, target: Target, pixels: torch.Tensor, valid: torch.Tensor, warnings: list[str]) -> ImageSet:
        ids = tuple(entry.id for entry in self.entries)
        users = tuple(entry.user for entry in self.entries if entry.user is not None)
        return ImageSet(
            spec=self._spec(target),
            pixels=pixels,
            labels=torch.tensor([entry.label for entry in self.entries], dtype=torch.int64),
            ids=ids,
            users=users or None,
            valid=valid,
            source=self.options.source,
            warnings=(*warnings, *repeated_ids(ids)),
        )


def _attempt_header(entry: Entry) -> Header | DataError:
    try:
        return read_header(entry.path)
    except DataError as error:
        return error


def _nothing_decodes(first: Entry) -> DataError:
    return DataError(
        "at least one readable PNG or JPEG image",
        f"none; the first one tried was {first.path}",
        "Check the files with an image viewer, or convert them to PNG.",
    )
