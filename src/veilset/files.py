"""Small file helpers: writes that are whole or absent after a crash, reads that fail with a clear message."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from veilset.errors import RunError


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """The file holds all of `data` or what it held before, also after a crash or on a full disk."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(
            f"to write {path.name}", f"{error.strerror or error}", "Free some space or choose another folder."
        ) from error


def append_line(path: Path, value: dict[str, Any]) -> None:
    """One JSON object more in a file of such lines. A crash may lose the last one: nothing may rest on it."""
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


def sync_folder(folder: Path) -> None:
    """Makes a new name survive a power cut, as fsync does for the content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def only_one(lock: Path, what: str) -> Iterator[None]:
    """Refuses a second holder of `lock`."""
    with _opened(lock) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(what, "another one that is not finished", "Wait for it, then try again.") from error
        yield


@contextlib.contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Waits for another holder of `lock`."""
    with _opened(lock) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _opened(lock: Path) -> Iterator[int]:
    """A lock is held as long as its file is open: the system lets go when the process ends, however it ends."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def read_json(path: Path, what: str, *, limit: int = 1 << 26) -> dict[str, Any]:
    """A JSON object from a file of bounded size."""
    if not os.path.isdir(path.parent):
        raise RunError(f"{what} in {path.parent}", "no such folder", "Check the path.")
    try:
        if path.stat().st_size > limit:
            raise ValueError(f"{path.stat().st_size} bytes")
        value = json.loads(path.read_text())
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else f"{error}"
        raise RunError(f"{what} at {path}", found, "Check the path; `veilset fit` writes such folders.") from error
    return value


def refuse_occupied(path: Path) -> None:
    """Refuses a folder in which something lies already, and makes none."""
    with _creating(path):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError("a new or empty output folder", f"{path} is not", "Choose another path or empty it first.")


def check_makeable(path: Path) -> None:
    """Refuses a folder that could not be made, or written to, and makes none."""
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.exists(place))
    wrong = "may not be written to" if os.path.isdir(nearest) else "is no folder"
    if not (os.path.isdir(nearest) and os.access(nearest, os.W_OK)):
        raise RunError(f"to create {path}", f"{nearest} {wrong}", "Choose a folder you may write to.")


def require_empty(path: Path) -> None:
    """Refuses to write where something lies already."""
    refuse_occupied(path)
    with _creating(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError("no permission to write")


@contextlib.contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"to create {path}", f"{error.strerror or error}", "Choose a folder you may write to."
        ) from error


def require_new_file(path: Path) -> None:
    """Refuses a file that is there already or cannot be made, before any work is done for it."""
    with _creating(path):
        if path.exists() or path.is_symlink():
            raise RunError("a new file", f"{path} exists", "Choose another name.")
        if not os.path.isdir(path.parent):
            raise NotADirectoryError(f"{path.parent} is no folder")
        if not os.access(path.parent, os.W_OK):
            raise PermissionError("no permission to write there")
