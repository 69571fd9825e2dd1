"""Guards for input that somebody else wrote: parsers that fail in any way, paths that lead out, archive bombs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilset.errors import DataError, VeilsetError

MAX_EXPANSION = 200
"""Uncompressed bytes allowed per compressed byte. Real image sets stay below 20; bombs start at 1000."""

FREE_EXPANSION = 64 * 2**20
"""Bytes that any archive may expand to, so that small blank test sets are not mistaken for bombs."""


@contextmanager
def untrusted(expected: str, where: str, todo: str) -> Iterator[None]:
    """Turns whatever a parser raises on hostile bytes into a `DataError`.

    Catching everything is meant: image, zip and JSON parsers raise a dozen unrelated types on mutated input, and a list
    of them would be wrong with the next release of any parser.
    """
    try:
        yield
    except VeilsetError:
        raise
    except Exception as error:
        raise DataError(expected, f"{where}: {type(error).__name__}: {str(error)[:200]}", todo) from error


def check_inside(root: Path, path: Path) -> None:
    """Refuses a path that leaves ``root`` once symbolic links are followed; ``root`` itself may be a link."""
    with untrusted("a readable path", str(path), "Remove the broken link or the odd file name."):
        if not path.resolve().is_relative_to(root.resolve()):
            raise DataError(
                f"files inside {root}",
                f"{path} leads out of it",
                "Copy the file into the folder: a link could pull in pictures nobody meant to use.",
            )


def check_expansion(path: Path, size: int, compressed: int) -> None:
    """Refuses an archive that claims to unpack to far more than image data ever does."""
    if size > max(FREE_EXPANSION, MAX_EXPANSION * compressed):
        raise DataError(
            f"at most {MAX_EXPANSION} bytes per compressed byte",
            f"{path} would unpack to {size} bytes from {compressed}",
            "If the file is genuine, store it uncompressed.",
        )
