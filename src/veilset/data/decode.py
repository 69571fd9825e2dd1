"""One image file to one uint8 array of (channels, height, width), by rules that never look at other images.

1. PNG and JPEG only, told apart by content; the file's extension is not consulted.
2. The header is read first. More than `MAX_PIXELS` pixels is an error before anything is unpacked.
3. 8-bit grey and RGB are taken as they are; 1-bit images become 0 and 255.
4. 16-bit grey is divided by 257 and rounded. The constant is fixed: scaling by an image's own range would make a
   picture depend on its brightest pixel. 16-bit RGB keeps its high byte (Pillow's rule).
5. Palettes are expanded to RGB, CMYK is converted to RGB by Pillow's fixed formula.
6. Transparent pixels are composited on black, the value of a null record; a transparent grey image stays grey.
7. EXIF orientation is applied (in PNG only where it stands before the pixels, so that headers suffice). All other
   metadata, colour profiles included, is ignored.
8. Of an animated or multi-picture file the first picture is read.
9. Grey becomes RGB or the reverse only on request; see `fitting`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from veilset.data.fitting import Header, Target, fit_image
from veilset.data.untrusted import untrusted
from veilset.errors import DataError

MAX_PIXELS = 64 * 2**20
"""Pixels an image may claim in its header; about 200 MB once decoded."""

_TODO = "Replace or remove the file."
_GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"})
_RGB_MODES = frozenset({"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})
_ORIENTATION_TAG = 0x0112
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Pillow warns about odd metadata, which is ignored here anyway, and about bombs, which are an error here.

    Filters of warnings belong to the whole process, so the one thread that waits for decoders sets them, never the
    decoders: threads that set and restore them in turn could leave them in any state.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.|veilset\.data\.")
        yield


def read_header(path: Path) -> Header:
    """The shape the file will decode to, without decoding it."""
    with _opened(path) as image:
        return header_of(image, str(path))


def decode(path: Path, target: Target) -> np.ndarray:
    """The file's pixels in the target's shape.

    Raises:
        DataError: the file is not PNG or JPEG, is truncated or otherwise damaged, or claims too many pixels.
    """
    with _opened(path) as image:
        return fit_image(to_grey_or_rgb(image, str(path)), target)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with untrusted("a PNG or JPEG image", str(path), _TODO):
        if not path.is_file():  # a pipe or a device would block for ever
            raise DataError("a PNG or JPEG image", f"{path} is missing or not a regular file", _TODO)
        try:
            with path.open("rb") as file, Image.open(file, formats=("PNG", "JPEG")) as image:
                yield image
        except UnidentifiedImageError as error:  # whose text is about an object of Python
            raise DataError("a PNG or JPEG image", f"{path}: neither PNG nor JPEG", _TODO) from error


def header_of(image: Image.Image, name: str) -> Header:
    """The shape of an opened image after rules 2 to 7."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise DataError(f"at most {MAX_PIXELS} pixels", f"{name} claims {width} x {height}", _TODO)
    if image.mode not in _GREY_MODES | _RGB_MODES:
        raise DataError("a grey, RGB or palette image", f"{name} has mode {image.mode}", "Convert it to RGB first.")
    if _orientation(image) >= 5:
        width, height = height, width
    return Header(height, width, 1 if image.mode in _GREY_MODES else 3)


def to_grey_or_rgb(image: Image.Image, name: str) -> Image.Image:
    """Applies rules 2 to 7; the result has mode "L" or "RGB"."""
    header, transpose = header_of(image, name), _TRANSPOSE.get(_orientation(image))
    image.load()  # which also finds what stands behind the pixels: the header did not
    if image.mode.startswith("I"):
        plain = _from_16_bit(image)
    elif image.mode == "1":
        plain = image.convert("L")
    elif _has_alpha(image):
        plain = _on_black(image.convert("LA" if header.channels == 1 else "RGBA"))
    else:
        plain = image.convert("L" if header.channels == 1 else "RGB")
    return plain if transpose is None else plain.transpose(transpose)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8. Damaged metadata counts as none: the pixels are what matters."""
    block = image.info.get("exif")
    if not isinstance(block, bytes):
        return 1
    exif = Image.Exif()
    try:
        exif.load(block)
        value = exif.get(_ORIENTATION_TAG, 1)
    except Exception:  # Pillow's EXIF parser raises many unrelated types on damaged blocks
        return 1
    return value if isinstance(value, int) and value in range(1, 9) else 1


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info


def _on_black(image: Image.Image) -> Image.Image:
    plain_mode = image.mode[:-1]
    black = Image.new(plain_mode, image.size)
    black.paste(image.convert(plain_mode), mask=image.getchannel("A"))
    return black


def _from_16_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64).clip(0, 65535)
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
