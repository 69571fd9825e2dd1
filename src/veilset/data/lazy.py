"""Images that stay on disk: read batch by batch, as often as needed, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from veilset.data.spec import Batch, ImageSet, ImageSpec, Source
from veilset.errors import DataError

MAX_NOTES = 1000
"""Warnings that are kept; a million broken files need not be listed one by one."""


class Notes:
    """Warnings for the owner, each subject once, the first of them only."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._more = False

    def add(self, subject: str, text: str) -> None:
        if len(self._texts) < MAX_NOTES:
            self._texts.setdefault(subject, text)
        elif subject not in self._texts:
            self._more = True

    @property
    def texts(self) -> tuple[str, ...]:
        return (*self._texts.values(), *(["and more like these, which are not listed"] if self._more else []))


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class LazyImages:
    """Labelled images on disk, with the parts of `ImageSet` that one pass over all records needs.

    Kept in memory for each record: nothing, or a label (4 bytes) where labels are one array, and the number of its
    user (4 bytes) where there are users.
    """

    spec: ImageSpec
    records: int
    read_batches: Callable[[int], Iterator[Batch]]
    """Reads all records anew, from the first, in batches of a given size."""
    read_all: Callable[[], ImageSet]
    users: np.ndarray | None = None
    read_users: Callable[[], Iterable[str] | None] = lambda: None
    """Reads the name of every record's user anew; only their numbers are kept. None without a user column."""
    read_ids: Callable[[], Iterable[str] | None] = lambda: None
    """The same for ids, of which nothing is kept."""
    check_unchanged: Callable[[], None] = lambda: None
    """Raises DataError if the files are no longer those that were opened."""
    source: Source = field(default_factory=Source)
    notes: Notes = field(default_factory=Notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """For the owner's eyes only. Files whose pixels turn out to be damaged are known after the first pass."""
        return self.notes.texts

    def __len__(self) -> int:
        return self.records

    def __repr__(self) -> str:
        # The record count is private under add/remove, so a stray print must not show it.
        return f"LazyImages({self.spec.height}x{self.spec.width}x{self.spec.channels}, {self.spec.num_classes} classes)"

    def user_numbers(self) -> np.ndarray | None:
        return self.users

    def user_names(self) -> Iterable[str] | None:
        return self.read_users()

    def id_names(self) -> Iterable[str] | None:
        return self.read_ids()

    def in_memory(self) -> ImageSet:
        images = self.read_all()
        self.check_unchanged()
        return images

    def batches(self, size: int) -> Iterator[Batch]:
        """As `ImageSet.batches`: the same records in the same order in every pass.

        Raises:
            DataError: after the last batch, if the files changed since they were opened. A sum over the batches is
                then not finished, so nothing of it can be released.
        """
        found = valid_records = 0
        for batch in self.read_batches(size):
            found += len(batch[1])
            valid_records += int(batch[2].sum())
            yield batch
        self.check_unchanged()
        if found != self.records:
            raise changed(f"{self.source.path}")
        if not valid_records:
            raise DataError(
                "at least one readable PNG or JPEG image",
                f"none in {self.source.path}",
                "Check the files with an image viewer, or convert them to PNG.",
            )


def changed(where: str) -> DataError:
    return DataError(
        "the same images in every pass over them",
        f"{where} changed while it was being read",
        "Put it back as it was to resume a run that was started; else run again when nothing writes there.",
    )
