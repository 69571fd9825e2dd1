"""The list of files: sorted as paths are, any name survives, and it stays out of memory."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from veilset.data.listing import Entry, FilesState, Listing, key_of_path, key_of_position

from .helpers import class_folder, pattern, write_image

ROOT = Path("/photos")
NAMES = [
    "a/b.png",
    "a-b/c.png",
    "a/B.png",
    "a/b/c.png",
    "é/x.png",
    "a/\udcff.png",
    "a/\ue000.png",
    "a/😀.png",
    "a/10.png",
]


def test_entries_are_sorted_as_paths_are() -> None:
    paths = [ROOT / name for name in NAMES]
    listing = Listing(ROOT, ((key_of_path(p.relative_to(ROOT)), Entry(p, 0, "x")) for p in paths))
    assert [entry.path for entry in listing] == sorted(paths)


def test_entries_come_back_as_they_were_in_every_pass() -> None:
    entries = [
        Entry(ROOT / name, row, f"id {name}", f"user {row}" if row % 2 else None) for row, name in enumerate(NAMES)
    ]
    listing = Listing(ROOT, ((key_of_position(row), entry) for row, entry in enumerate(entries)))
    assert list(listing) == entries
    assert list(zip(listing, listing, strict=True)) == [(entry, entry) for entry in entries], "passes may overlap"
    assert len(listing) == len(NAMES)


def test_ids_that_name_several_records_are_counted() -> None:
    names = ["a", "b", "a", "c", "b", "a"]
    rows = [(key_of_position(row), Entry(ROOT / f"{row}.png", 0, name)) for row, name in enumerate(names)]
    assert Listing(ROOT, rows).repeated_ids() == 2
    assert Listing(ROOT, [(key, Entry(e.path, 0, e.path.name)) for key, e in rows]).repeated_ids() == 0


def test_names_are_not_held_in_memory() -> None:
    alive: weakref.WeakSet[Entry] = weakref.WeakSet()
    most = []

    def rows() -> Iterator[tuple[bytes, Entry]]:
        for row in range(100):
            entry = Entry(ROOT / f"{row}.png", 0, f"{row}.png")
            alive.add(entry)
            most.append(len(alive))
            yield key_of_position(row), entry

    for entry in Listing(ROOT, rows()):
        alive.add(entry)
        most.append(len(alive))
    assert len(most) == 200
    assert max(most) <= 3


@pytest.mark.parametrize("change", ["add", "remove", "rename", "rewrite", "grow"])
def test_the_state_of_a_folder_tells_every_change(tmp_path: Path, change: str) -> None:
    files = sorted(class_folder(tmp_path).rglob("*.png"))
    before = FilesState.of(files)
    assert FilesState.of(reversed(files)) == before
    if change == "add":
        files.append(write_image(tmp_path / "new.png"))
    elif change == "rename":
        files[0] = files[0].rename(tmp_path / "renamed.png")
    elif change == "rewrite":
        times = files[0].stat()
        write_image(files[0], pattern())
        os.utime(files[0], ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    elif change == "grow":
        times = files[0].stat()
        files[0].write_bytes(files[0].read_bytes() + b"more")
        os.utime(files[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        files[0].unlink()
    assert FilesState.of(files) != before
