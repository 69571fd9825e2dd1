"""The file that says which budget images belong to: kept with them, so that it moves with them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from veilset.data.known import KNOWN
from veilset.data.manifest import folders_of, is_manifest
from veilset.errors import ConfigError

IN_FOLDER = Path(".veilset") / "dataset.json"


def marker_of(data: Path) -> Path:
    """Inside a folder, so that it moves with it; beside a file."""
    if not data.exists() and str(data) in KNOWN:
        raise ConfigError(
            "images of your own: a folder or an .npz file",
            f"{data}, a public data set",
            "It needs no budget: nothing about it is a secret. Give the folder of private images the budget.",
        )
    if not data.exists():
        raise ConfigError(f"images at {data}", "nothing", "Check the path.")
    place = data.resolve()  # the same data through a link has the same budget
    return place / IN_FOLDER if place.is_dir() else place.with_name(f"{place.name}.veilset.json")


def covering_marker(data: Path) -> Path | None:
    """Of the budget that the images at `data` belong to; None where they have none.

    Raises: ConfigError where a part of them has one, or parts have several.
    """
    own = marker_of(data)
    if is_manifest(data):
        return _marker_of_listed(data, own)
    found = _first_marker(own, data.resolve().parents)
    if found is None and data.is_dir():
        inner = next(data.rglob(str(IN_FOLDER)), None)
        if inner is not None:
            raise ConfigError(
                "one budget for all images that are read",
                f"a budget for a part of them, {inner.parent.parent}",
                "Fit that part, or give the whole folder the budget.",
            )
    return found


def _marker_of_listed(manifest: Path, own: Path) -> Path | None:
    """The one marker of all images in a list. Lists had budgets of their own once: such a one still counts."""
    found = {_first_marker(folder / IN_FOLDER, folder.parents) for folder in folders_of(manifest)}
    if own.is_file():
        found = {own, *(found - {None})}
    if len(found) > 1:
        known = sorted(str(marker) for marker in found if marker is not None)
        raise ConfigError(
            f"one budget for all images that {manifest} lists",
            f"{'several' if len(known) > 1 else 'one for a part of them'}: {', '.join(known[:3])}",
            "List the images of one budget alone.",
        )
    return next(iter(found), None)


def _first_marker(own: Path, parents: Iterable[Path]) -> Path | None:
    return next((place for place in (own, *(parent / IN_FOLDER for parent in parents)) if place.is_file()), None)
