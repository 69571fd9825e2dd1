"""Which files a collection consists of, in a fixed order, without holding their names in memory."""

from __future__ import annotations

import hashlib
import sqlite3
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from veilset.data.names import name_bytes, name_of
from veilset.data.untrusted import untrusted


@dataclass(frozen=True)
class Entry:
    """One record before it is read."""

    path: Path
    label: int
    id: str
    user: str | None = None


class Listing:
    """Entries sorted by key, in a temporary file: a million names would take 100 MB and more of memory.

    SQLite sorts on disk and reads back row by row. Its temporary file has no name in any folder, is readable by this
    process alone, and vanishes with it.
    """

    def __init__(self, root: Path, rows: Iterable[tuple[bytes, Entry]]) -> None:
        self._root = root
        with untrusted("room for a temporary file", "the list of images", "Free some space, or set TMPDIR."):
            # Passes may run in another thread than the one that opened the collection, never in two at a time.
            self._table = sqlite3.connect("", check_same_thread=False)
            weakref.finalize(self, self._table.close)
            self._table.execute("PRAGMA journal_mode = OFF")
            self._table.execute(
                "CREATE TABLE files (key BLOB PRIMARY KEY, path BLOB, label INT, id BLOB, user BLOB) WITHOUT ROWID"
            )
            self._table.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?)", map(self._stored, rows))
            self._table.commit()
        self._count = int(self._table.execute("SELECT COUNT(*) FROM files").fetchone()[0])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for path, label, name, user in self._table.execute("SELECT path, label, id, user FROM files ORDER BY key"):
            relative = name_of(path)
            yield Entry(self._root / relative, label, name_of(name or path), name_of(user) if user else None)

    def repeated_ids(self) -> int:
        """How many ids name several records; without ids of their own, paths are ids."""
        repeated = "SELECT 1 FROM files GROUP BY coalesce(id, path) HAVING COUNT(*) > 1"
        return int(self._table.execute(f"SELECT COUNT(*) FROM ({repeated})").fetchone()[0])

    def _stored(self, row: tuple[bytes, Entry]) -> tuple[bytes, bytes, int, bytes | None, bytes | None]:
        key, entry = row
        path = name_bytes(entry.path.relative_to(self._root).as_posix())
        name = name_bytes(entry.id)
        return key, path, entry.label, None if name == path else name, name_bytes(entry.user) if entry.user else None


def key_of_path(path: PurePath) -> bytes:
    """Sorts as paths do: part by part."""
    return b"\0".join(name_bytes(part) for part in path.parts)


def key_of_position(position: int) -> bytes:
    return position.to_bytes(8, "big")


@dataclass(frozen=True)
class FilesState:
    """How many files there are, and a sum of hashes of their names, sizes and times: equal if nothing changed.

    A sum needs neither order nor memory, so that looking for changes costs one walk and no second list.
    """

    count: int
    total: int

    @classmethod
    def of(cls, files: Iterable[Path]) -> FilesState:
        count, total = 0, 0
        for file in files:
            count += 1
            total += int.from_bytes(hashlib.blake2b(_described(file), digest_size=16).digest())
        return cls(count, total % 2**128)


def _described(file: Path) -> bytes:
    try:
        found = file.stat()
        state = f"{found.st_size} {found.st_mtime_ns}"
    except OSError:
        state = "missing"
    return state.encode() + b"\0" + name_bytes(str(file))
