"""A collection of image files on disk, whichever way they were listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from veilset.data.decode import decode, quiet_pillow, read_header
from veilset.data.fitting import Header, Target, resolve_target
from veilset.data.labels import number_users, repeated_ids_warning
from veilset.data.lazy import LazyImages, Notes, changed
from veilset.data.listing import Entry, FilesState, Listing
from veilset.data.options import ReadOptions
from veilset.data.pipeline import grouped, in_order
from veilset.data.spec import Batch, ImageSet, ImageSpec
from veilset.errors import DataError

T = TypeVar("T")

GROUP = 250
"""Files that one thread reads in a row."""


@dataclass(frozen=True)
class FileCollection:
    """Image files with labels.

    A file that cannot be decoded becomes a null record (zero pixels, ``valid`` False, label kept): one person's broken
    picture must not decide whether the run goes ahead.
    """

    entries: Listing
    class_names: tuple[str, ...]
    options: ReadOptions
    walk: Callable[[], Iterable[Path]]
    """All files that are there now, in any order."""
    has_users: bool = False
    notes: Notes = field(default_factory=Notes)

    def __len__(self) -> int:
        return len(self.entries)

    def spec(self) -> ImageSpec:
        return self._target.spec(self.class_names)

    def read(self) -> ImageSet:
        spec = self.spec()
        pixels = torch.zeros((len(self), *spec.shape), dtype=torch.uint8)
        labels, valid = torch.zeros(len(self), dtype=torch.int64), torch.zeros(len(self), dtype=torch.bool)
        done = 0
        for images, classes, readable in self._batches(GROUP):
            rows = slice(done, done + len(classes))
            pixels[rows], labels[rows], valid[rows] = images, classes, readable
            done += len(classes)
            self.options.report(done, len(self))
        if not valid.any():
            raise self._nothing_decodes()
        self._note_repeated_ids()
        unreadable = _unreadable_classes(labels, valid, self.class_names)
        users = self._users()
        return ImageSet(
            spec=spec,
            pixels=pixels,
            labels=labels,
            ids=tuple(entry.id for entry in self.entries),
            users=None if users is None else tuple(users),
            valid=valid,
            source=self.options.source,
            warnings=(*unreadable, *self.notes.texts),
        )

    def stream(self) -> LazyImages:
        """The same records, read when they are asked for. Names and headers are read here, no pixels."""
        opened = FilesState.of(self.walk())

        def check_unchanged() -> None:
            if FilesState.of(self.walk()) != opened:
                raise changed(f"{self.options.source.path}")

        if opened.count != len(self):
            raise changed(f"{self.options.source.path}")
        spec = self.spec()
        self._note_repeated_ids()
        users = self._users()
        return LazyImages(
            spec=spec,
            records=len(self),
            read_batches=self._batches,
            read_all=self.read,
            users=None if users is None else number_users(users),
            read_users=self._users,
            read_ids=lambda: (entry.id for entry in self.entries),
            check_unchanged=check_unchanged,
            source=self.options.source,
            notes=self.notes,
        )

    @cached_property
    def _target(self) -> Target:
        """The common shape, from all headers."""
        target = resolve_target(self._headers(), self.options)
        if target is None:
            raise self._nothing_decodes()
        return target

    def _users(self) -> Iterator[str] | None:
        return (entry.user or "" for entry in self.entries) if self.has_users else None

    def _headers(self) -> Iterator[tuple[str, Header]]:
        done = 0
        for found in self._read_ahead(_attempt_headers, GROUP):
            done += len(found)
            if done < len(self):  # the pixels are next, and the end is reached once
                self.options.report(done, len(self))
            for entry, header in found:
                if isinstance(header, Header):
                    yield entry.id, header
                else:
                    self._note(entry, header)

    def _batches(self, size: int) -> Iterator[Batch]:
        target = self._target
        for group, pixels, errors in self._read_ahead(lambda group: _decoded(group, target), size):
            valid = torch.ones(len(group), dtype=torch.bool)
            for row, error in errors.items():
                self._note(group[row], error)
                valid[row] = False
            yield pixels, torch.tensor([entry.label for entry in group], dtype=torch.int64), valid

    def _read_ahead(self, read: Callable[[list[Entry]], T], size: int) -> Iterator[T]:
        """`read` of all entries, `size` at a time and a few groups ahead of whoever needs them."""
        with quiet_pillow():
            yield from in_order(partial(read, group) for group in grouped(self.entries, size))

    def _note(self, entry: Entry, error: DataError) -> None:
        if self.options.strict:
            raise error
        why = error.found.removeprefix(f"{entry.path}: ")
        self.notes.add(entry.id, f"{entry.id}: kept as an empty record ({why})")

    def _note_repeated_ids(self) -> None:
        for warning in repeated_ids_warning(self.entries.repeated_ids()):
            self.notes.add("repeated ids", warning)

    def _nothing_decodes(self) -> DataError:
        return DataError(
            "at least one readable PNG or JPEG image",
            f"none; the first one tried was {next(iter(self.entries)).path}",
            "Check the files with an image viewer, or convert them to PNG.",
        )


def _unreadable_classes(labels: Tensor, valid: Tensor, names: tuple[str, ...]) -> list[str]:
    """Classes of which not one image can be read, each with its number of images: for the owner alone."""
    counts, readable = (part.bincount(minlength=len(names)).tolist() for part in (labels, labels[valid]))
    return [
        f"class '{name}': none of its {count:,} images can be read, and all are kept as empty records; --strict refuses"
        for name, count, left in zip(names, counts, readable, strict=True)
        if count and not left
    ]


def _attempt_headers(group: list[Entry]) -> list[tuple[Entry, Header | DataError]]:
    return [(entry, _attempt_header(entry)) for entry in group]


def _attempt_header(entry: Entry) -> Header | DataError:
    try:
        return read_header(entry.path)
    except DataError as error:
        return error


def _decoded(group: list[Entry], target: Target) -> tuple[list[Entry], torch.Tensor, dict[int, DataError]]:
    """The group's pixels, and what is wrong with those that stay zero."""
    pixels = torch.zeros((len(group), target.channels, target.height, target.width), dtype=torch.uint8)
    errors: dict[int, DataError] = {}
    for row, entry in enumerate(group):
        try:
            pixels.numpy()[row] = decode(entry.path, target)
        except DataError as error:
            errors[row] = error
    return group, pixels, errors
