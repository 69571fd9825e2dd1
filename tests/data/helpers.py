"""Small images and files for the reader tests."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def pattern(height: int = 8, width: int = 8, channels: int = 1, shift: int = 0) -> np.ndarray:
    """A (height, width[, 3]) image without symmetry, so that flips and transpositions show."""
    rows, columns = np.mgrid[0:height, 0:width]
    grey = ((rows * 23 + columns * 7 + shift * 11) % 256).astype(np.uint8)
    return grey if channels == 1 else np.stack([grey, 255 - grey, grey // 2], axis=-1)


def image_bytes(array: np.ndarray, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format, **options)
    return buffer.getvalue()


def write_image(path: Path, array: np.ndarray | None = None, format: str = "PNG") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image_bytes(pattern() if array is None else array, format))
    return path


def class_folder(root: Path, per_class: int = 2, names: tuple[str, ...] = ("cat", "dog"), channels: int = 1) -> Path:
    for label, name in enumerate(names):
        for index in range(per_class):
            write_image(root / name / f"{index}.png", pattern(channels=channels, shift=label * 50 + index))
    return root


def idx_bytes(array: np.ndarray) -> bytes:
    """The idx encoding of a uint8 array."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_pair(folder: Path, images: np.ndarray, labels: np.ndarray, prefix: str = "train") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return folder


def small_images(records: int = 6, channels: int = 1) -> np.ndarray:
    return np.stack([pattern(channels=channels, shift=index) for index in range(records)])
