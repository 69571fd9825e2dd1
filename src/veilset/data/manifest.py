"""Reader for a CSV or JSON-lines manifest with the columns path, label and optionally id and user."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from veilset.data.files import FileCollection
from veilset.data.labels import resolve_labels
from veilset.data.lazy import changed
from veilset.data.listing import Entry, Listing, key_of_position
from veilset.data.options import ReadOptions
from veilset.data.untrusted import check_inside, untrusted
from veilset.errors import DataError

MANIFEST_SUFFIXES = frozenset({".csv", ".jsonl"})
MAX_FIELD = 1000
"""Characters per field; one huge label would otherwise be multiplied by the number of rows."""

_REQUIRED = ("path", "label")
_OPTIONAL = ("id", "user")

Row = dict[str, str]


def is_manifest(path: Path) -> bool:
    return path.suffix.lower() in MANIFEST_SUFFIXES and path.is_file()


def folders_of(path: Path) -> set[Path]:
    """The folders where the images of a manifest lie, links followed."""
    files = (_image_path(path, line, row["path"]) for line, row in _rows(path))
    folders = {file.resolve().parent if file.is_symlink() else file.parent for file in files}
    return {folder.resolve() for folder in folders}


def open_manifest(path: Path, options: ReadOptions) -> FileCollection:
    """Lists the images a manifest names. Paths are relative to the manifest and must stay below its folder.

    The manifest is read twice, first for the labels and columns it has, so that its rows need not be held in memory.
    """
    labels, columns = _labels_and_columns(path)
    numbers, names = resolve_labels(labels, options.class_names)
    entries = Listing(path.parent, _entries(path, dict(zip(labels, numbers.tolist(), strict=True))))

    def walk() -> Iterator[Path]:
        yield from (entry.path for entry in entries)

    return FileCollection(entries, names, options, walk, has_users="user" in columns)


def _entries(path: Path, labels: dict[str, int]) -> Iterator[tuple[bytes, Entry]]:
    root = path.parent
    for position, (line, row) in enumerate(_rows(path)):
        file = _image_path(path, line, row["path"])
        check_inside(root, file)
        if row["label"] not in labels:
            raise changed(str(path))
        name = row.get("id", file.relative_to(root).as_posix())
        yield key_of_position(position), Entry(file, labels[row["label"]], name, row.get("user"))


def _labels_and_columns(path: Path) -> tuple[list[str], set[str]]:
    """The distinct labels and the columns. An id or a user for some rows only would leave the rest without shards."""
    labels: dict[str, None] = {}
    columns: set[str] = set()
    for line, row in _rows(path):
        columns = columns or set(row)
        if set(row) != columns:
            name = sorted(columns ^ set(row))[0]
            raise DataError(
                f"the field {name!r} in every row or in none", f"a change at {path}, line {line}", "Fill in the field."
            )
        labels[row["label"]] = None
    if not labels:
        raise DataError("at least one row in the manifest", f"none in {path}", "Add one row per image.")
    return list(labels), columns


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    parse = _csv_rows if path.suffix.lower() == ".csv" else _json_rows
    with untrusted("a readable CSV or JSONL manifest in UTF-8", str(path), "Correct the file."):
        for line, raw in parse(path):
            yield line, _checked_row(path, line, raw)


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        missing = [name for name in _REQUIRED if name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(
                "a first line with the columns path and label",
                f"{path} has no column {missing[0]}: {reader.fieldnames}",
                "Add a header line such as: path,label",
            )
        for raw in reader:
            yield reader.line_num, raw


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            with untrusted("one JSON object per line", f"{path}, line {line}", "Correct the line."):
                raw = json.loads(text)
            if not isinstance(raw, dict):
                raise DataError("one JSON object per line", f"{path}, line {line}: {text[:60]!r}", "Correct the line.")
            yield line, raw


def _checked_row(path: Path, line: int, raw: dict[Any, Any]) -> Row:
    row: Row = {}
    for name in (*_REQUIRED, *_OPTIONAL):
        value = raw.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and name != "path":
            value = str(value)
        if value is None and name in _OPTIONAL and name not in raw:
            continue
        if not isinstance(value, str) or not value.strip() or len(value) > MAX_FIELD:
            raise DataError(
                f"1 to {MAX_FIELD} characters in the field {name!r}",
                f"{path}, line {line}: {value!r}"[:300],
                "Correct the field.",
            )
        row[name] = value if name == "path" else value.strip()
    return row


def _image_path(manifest: Path, line: int, text: str) -> Path:
    # Both flavours are checked: a manifest may be written on one system and read on another.
    posix, windows = PurePosixPath(text), PureWindowsPath(text)
    leads_out = ".." in posix.parts or ".." in windows.parts
    if leads_out or posix.is_absolute() or windows.root or windows.is_absolute() or "\0" in text:
        raise DataError(
            f"paths below {manifest.parent}",
            f"line {line}: {text!r}"[:300],
            "Use paths relative to the manifest, without '..'.",
        )
    return manifest.parent / text
