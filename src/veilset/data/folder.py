"""Reader for one folder per class: ``photos/<class>/**/*.png|jpg|jpeg``."""

from __future__ import annotations

import os
from pathlib import Path

from veilset.data.files import Entry, FileCollection
from veilset.data.options import ReadOptions
from veilset.data.untrusted import check_inside, untrusted
from veilset.errors import DataError

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg"})
_SPLIT_FOLDERS = frozenset({"train", "test", "val", "valid", "validation"})


def open_folder(path: Path, options: ReadOptions) -> FileCollection:
    """Lists the images under ``path``. Hidden files and folders are skipped, ``.veilset`` among them.

    A folder that holds nothing but ``train``, ``test`` and the like is a set of splits, and ``split`` picks one.
    """
    with untrusted("a readable folder", str(path), "Check its rights."):
        return _listed_collection(_split_root(path, options), options)


def _listed_collection(root: Path, options: ReadOptions) -> FileCollection:
    folders = _subfolders(root)
    names = options.class_names or tuple(folder.name for folder in folders)
    warnings = _ignored(root, root)
    entries: list[Entry] = []
    for folder in folders:
        if folder.name not in names:
            raise DataError(
                f"class folders out of {names}", f"{folder}", "List it in class_names, or move it elsewhere."
            )
        files = _images(root, folder, warnings)
        # A class that the owner declared may be empty; a class that only exists as an empty folder is a mistake.
        if not files and options.class_names is None:
            raise DataError(
                "PNG or JPEG images in every class folder",
                f"none in {folder}",
                "Remove the folder, or pass class_names to declare the class.",
            )
        label = names.index(folder.name)
        entries += [Entry(file, label, file.relative_to(root).as_posix()) for file in files]
    if not entries:
        raise DataError(
            "PNG or JPEG images in the class folders", f"none under {root}", "Add images, or check the path."
        )
    return FileCollection(entries, names, options, tuple(warnings))


def _split_root(path: Path, options: ReadOptions) -> Path:
    names = {folder.name for folder in _subfolders(path)}
    has_splits = names <= _SPLIT_FOLDERS and bool(names & {"train", "test"})
    if not has_splits:
        return path  # without splits the folder is one collection
    if options.split not in names:
        raise DataError(
            f"a folder {options.split!r} with class folders in {path}",
            f"{sorted(names)[:20]}",
            "Choose another split, or pass the folder of that split.",
        )
    return path / options.split


def _subfolders(root: Path) -> list[Path]:
    folders = []
    for item in sorted(root.iterdir()):
        if item.is_dir() and not item.name.startswith("."):
            _refuse_linked_folder(root, item)
            folders.append(item)
    if not folders:
        raise DataError(
            "one folder per class, as in photos/cat/1.png",
            f"no folders in {root}",
            "Sort the images into one folder per class (a single class is fine).",
        )
    return folders


def _ignored(root: Path, folder: Path) -> list[str]:
    return [
        f"{item.relative_to(root).as_posix()}: ignored, not a PNG or JPEG file in a class folder"
        for item in sorted(folder.iterdir())
        if not item.is_dir() and not item.name.startswith(".")
    ]


def _images(root: Path, folder: Path, warnings: list[str]) -> list[Path]:
    """All images of a class in sorted order; names of files that are passed over are added to ``warnings``."""
    found: list[Path] = []
    for current, subfolders, names in os.walk(folder, onerror=_reraise):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in subfolders:
            _refuse_linked_folder(root, Path(current, name))
        for name in sorted(names):
            file = Path(current, name)
            if name.startswith("."):
                continue
            if file.suffix.lower() not in EXTENSIONS:
                warnings.append(f"{file.relative_to(root).as_posix()}: ignored, not a PNG or JPEG file")
                continue
            if file.is_symlink():
                check_inside(root, file)
            found.append(file)
    return sorted(found)


def _reraise(error: OSError) -> None:
    # os.walk would skip a folder it may not read, and its images would be missing without a word.
    raise error


def _refuse_linked_folder(root: Path, folder: Path) -> None:
    if folder.is_symlink():
        check_inside(root, folder)
        raise DataError(
            "class folders that are folders",
            f"{folder} is a symbolic link",
            "Replace the link by the folder: through links one picture could be read twice.",
        )
