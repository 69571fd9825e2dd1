"""Reader for one folder per class: ``photos/<class>/**/*.png|jpg|jpeg``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from veilset.data.files import FileCollection
from veilset.data.lazy import Notes
from veilset.data.listing import Entry, Listing, key_of_path
from veilset.data.options import ReadOptions
from veilset.data.untrusted import check_inside, untrusted
from veilset.errors import DataError, OtherClass

WRITTEN = (("vault/plan.json",), ("vault/course.json",), ("release/manifest.json",), ("manifest.json", "privacy.json"))
"""Files by which a run, a course and an exported release are known."""
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
    notes = Notes()
    for name in _ignored(root):
        notes.add(name, f"{name}: ignored, not a PNG or JPEG file in a class folder")
    for folder in folders:
        if folder.name not in names:
            raise OtherClass(
                f"class folders out of: {', '.join(names)}",
                f"{folder}",
                "List it in --class-names (in Python class_names), or move it elsewhere.",
            )
    entries = Listing(root, _entries(root, folders, names, options, notes))
    if not len(entries):
        raise DataError(
            "PNG or JPEG images in the class folders", f"none under {root}", "Add images, or check the path."
        )

    def walk() -> Iterator[Path]:
        with untrusted("a readable folder", str(root), "Check its rights."):
            for folder in _subfolders(root):
                yield from _images(root, folder, Notes())

    return FileCollection(entries, names, options, walk, notes=notes)


def _entries(
    root: Path, folders: list[Path], names: tuple[str, ...], options: ReadOptions, notes: Notes
) -> Iterator[tuple[bytes, Entry]]:
    """Every image with the key that sorts it into its place."""
    for folder in folders:
        label, found = names.index(folder.name), 0
        for file in _images(root, folder, notes):
            found += 1
            path = file.relative_to(root)
            yield key_of_path(path), Entry(file, label, path.as_posix())
        # A class that the owner declared may be empty; a class that only exists as an empty folder is a mistake.
        if found:
            continue
        others = _other_kinds(folder)
        if options.class_names is None:
            raise DataError(
                "PNG or JPEG images in every class folder",
                f"none in {folder}" + (f", but {others} files" if others else ""),
                "Convert them to PNG." if others
                else "Remove the folder, or declare the class: --class-names (in Python class_names).",
            )  # fmt: skip
        if others:
            notes.add(f"class {folder.name}", f"class '{folder.name}': no PNG or JPEG images, but {others} files")


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


def _ignored(root: Path) -> list[str]:
    return [item.name for item in sorted(root.iterdir()) if not item.is_dir() and not item.name.startswith(".")]


def _images(root: Path, folder: Path, notes: Notes) -> Iterator[Path]:
    """All images of a class as the file system lists them; names of files that are passed over go to ``notes``.

    Files are never gathered, not even those of one folder: it may hold a million.
    """
    waiting = [folder]
    while waiting:
        inner = waiting.pop()
        _refuse_output(inner)
        with os.scandir(inner) as items:
            for item in items:
                if item.name.startswith("."):
                    continue
                file = Path(item.path)
                if _is_folder(item):
                    _refuse_linked_folder(root, file)
                    waiting.append(file)
                elif file.suffix.lower() not in EXTENSIONS:
                    name = file.relative_to(root).as_posix()
                    notes.add(name, f"{name}: ignored, not a PNG or JPEG file")
                else:
                    if item.is_symlink():
                        check_inside(root, file)
                    yield file


def _other_kinds(folder: Path) -> str:
    """Of files that are no images for us, such as '.dcm, .tif'."""
    kinds = {file.suffix.lower() or "nameless" for file in folder.rglob("[!.]*") if file.is_file()}
    return ", ".join(sorted(kinds)[:5])


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link that loops, say: reading it as a file will tell
        return False


def _refuse_output(folder: Path) -> None:
    """Its pictures show synthetic images."""
    if any(all(os.path.isfile(folder / name) for name in names) for names in WRITTEN):
        raise DataError(
            "class folders of images alone", f"{folder}, which is what a command of Veilset wrote", "Move it elsewhere."
        )


def _refuse_linked_folder(root: Path, folder: Path) -> None:
    if folder.is_symlink():
        check_inside(root, folder)
        raise DataError(
            "class folders that are folders",
            f"{folder} is a symbolic link",
            "Replace the link by the folder: through links one picture could be read twice.",
        )
