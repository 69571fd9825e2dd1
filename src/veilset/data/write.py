"""Writing images as one folder per class or as an ``.npz`` archive; both can be read back with `load`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from veilset.data.fitting import array_to_image
from veilset.data.known import KNOWN
from veilset.data.options import ImageProgress
from veilset.data.spec import ImageSet
from veilset.errors import ConfigError, DataError
from veilset.files import require_new_file

OTHER_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".npy")
"""Ends of names that nobody would give a folder."""


def is_archive(out: Path) -> bool:
    """Whether images written to ``out`` become one file, by its name.

    Raises: ConfigError for the name of another kind of archive.
    """
    if out.suffix.lower() in OTHER_ARCHIVES:
        raise ConfigError(
            "a folder, or a name that ends in .npz", out.name, "Use one that ends in .npz, or pack the folder yourself."
        )
    return out.suffix.lower() == ".npz"


def write_images(images: ImageSet, out: Path, progress: ImageProgress | None = None) -> None:
    """`write_npz` or `write_folder`, by the name of ``out``."""
    if is_archive(out):
        write_npz(images, out)
    else:
        write_folder(images, out, progress)


def check_apart(out: Path, source: Path | str | None) -> None:
    """Refuses to write into a folder of images: whoever reads them next would take the output for one of them.

    Raises: DataError
    """
    if source is None or str(source) in KNOWN or not os.path.isdir(source):
        return
    if out.resolve().is_relative_to(Path(source).resolve()):
        raise DataError(
            f"an output outside of the images in {source}", f"{out}",
            "Choose a folder elsewhere: images would be read from it the next time.",
        )  # fmt: skip


def check_writable(out: Path, *, archive: bool) -> None:
    """Refuses what `write_npz` (an archive) or `write_folder` would refuse, before there are images to write."""
    if archive:
        _check_suffix(out)
        require_new_file(out)
    else:
        _check_empty(out)


def write_folder(images: ImageSet, out: Path | str, progress: ImageProgress | None = None) -> None:
    """Writes ``out/<class>/000001.png`` and so on, numbered per class. Null records are left out.

    Class names are safe as folder names: `ImageSpec` refuses any other.

    Raises:
        DataError: ``out`` is a file or a folder that is not empty, or cannot be written.
    """
    out = Path(out)
    try:
        _check_empty(out)
        folders = [out / name for name in images.spec.class_names]
        for folder in folders:
            folder.mkdir(parents=True)  # also fails where two names differ by case only and the disk ignores case
        _write_files(images, folders, progress)
    except OSError as error:
        raise _unwritable(out, error) from error


def _check_empty(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise DataError("a new or empty folder", f"{out} exists and is not one", "Choose another folder.")


def _write_files(images: ImageSet, folders: list[Path], progress: ImageProgress | None) -> None:
    written = [0] * len(folders)
    pixels, labels, valid = images.pixels.cpu().numpy(), images.labels.tolist(), images.valid.tolist()
    for row, label in enumerate(labels):
        if valid[row]:
            written[label] += 1
            array_to_image(pixels[row]).save(folders[label] / f"{written[label]:06d}.png")
        if progress is not None:
            progress(row + 1, len(labels))


def write_npz(images: ImageSet, path: Path | str) -> None:
    """Writes arrays x (N, H, W or N, H, W, 3), y and class_names. Null records are left out; no file is overwritten."""
    path = Path(path)
    _check_suffix(path)
    valid = images.valid.cpu().numpy()
    pixels = images.pixels.cpu().numpy()[valid]
    x = pixels[:, 0] if images.spec.channels == 1 else pixels.transpose(0, 2, 3, 1)
    names = np.array(images.spec.class_names, dtype=np.str_)
    try:
        with path.open("xb") as file:
            np.savez_compressed(file, x=x, y=images.labels.cpu().numpy()[valid], class_names=names)
    except OSError as error:
        raise _unwritable(path, error) from error


def _check_suffix(path: Path) -> None:
    if not is_archive(path):
        raise ConfigError("a file name that ends in .npz", f"{path.name}", f"For example {path.stem}.npz.")


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"to be able to write {path}", f"{error.strerror or error}", "Choose another place, or free some space."
    )
