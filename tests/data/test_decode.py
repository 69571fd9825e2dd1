from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veilset.data.decode import MAX_PIXELS, decode, read_header
from veilset.data.fitting import Header, Target
from veilset.errors import DataError

from .helpers import image_bytes, pattern, write_image

GREY = Target(8, 8, 1, None)
RGB = Target(8, 8, 3, None)


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, "PNG", **options)
    return path


def png_claiming(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    end = struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    body = b"IDAT" + zlib.compress(b"\0" * 100)
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (header, body)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + end


def test_png_pixels_survive_exactly(tmp_path: Path) -> None:
    assert (decode(write_image(tmp_path / "a.png", pattern()), GREY)[0] == pattern()).all()
    colour = pattern(channels=3)
    assert (decode(write_image(tmp_path / "b.png", colour), RGB) == colour.transpose(2, 0, 1)).all()


def test_format_is_told_by_content_not_extension(tmp_path: Path) -> None:
    path = write_image(tmp_path / "really_a_jpeg.png", pattern(), "JPEG")
    assert read_header(path) == Header(8, 8, 1)
    assert np.abs(decode(path, GREY)[0].astype(int) - pattern()).mean() < 10


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "WEBP"])
def test_other_formats_are_refused_even_if_called_png(tmp_path: Path, format: str) -> None:
    with pytest.raises(DataError, match="PNG or JPEG"):
        read_header(write_image(tmp_path / "a.png", pattern(), format))


def test_a_file_that_is_no_image_is_refused_in_one_short_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        read_header(path)
    assert caught.value.found == f"{path}: neither PNG nor JPEG"


def test_bilevel_becomes_0_and_255(tmp_path: Path) -> None:
    bits = pattern() > 60
    assert (decode(saved(tmp_path / "a.png", Image.fromarray(bits)), GREY)[0] == bits * 255).all()


def test_sixteen_bits_are_scaled_by_a_constant(tmp_path: Path) -> None:
    values = np.full((8, 8), 257 * 10, dtype=np.uint16)
    values[0, :3] = (0, 65535, 257 * 3 + 128)
    pixels = decode(saved(tmp_path / "a.png", Image.fromarray(values)), GREY)[0]
    assert pixels[0, :3].tolist() == [0, 255, 3]
    assert pixels[1, 1] == 10  # not stretched to the image's own range


def test_transparent_pixels_are_black(tmp_path: Path) -> None:
    rgba = np.full((8, 8, 4), 200, dtype=np.uint8)
    rgba[0, 0, 3], rgba[0, 1, 3] = 0, 255
    pixels = decode(saved(tmp_path / "a.png", Image.fromarray(rgba)), RGB)
    assert pixels[:, 0, 0].tolist() == [0, 0, 0]
    assert pixels[:, 0, 1].tolist() == [200, 200, 200]
    path = saved(tmp_path / "b.png", Image.fromarray(rgba).convert("LA"))
    assert read_header(path).channels == 1
    assert decode(path, GREY)[0, 0, 0] == 0


def test_transparent_colour_key_is_black(tmp_path: Path) -> None:
    grey = np.full((8, 8), 9, dtype=np.uint8)
    grey[0, 0] = 77
    pixels = decode(saved(tmp_path / "a.png", Image.fromarray(grey), transparency=77), GREY)
    assert pixels[0, 0, :2].tolist() == [0, 9]


def test_palette_is_expanded_to_rgb_or_grey_on_request(tmp_path: Path) -> None:
    image = Image.fromarray(pattern(channels=3)).quantize(16)
    path = saved(tmp_path / "a.png", image)
    assert read_header(path) == Header(8, 8, 3)
    assert (decode(path, RGB) == np.asarray(image.convert("RGB")).transpose(2, 0, 1)).all()
    assert (decode(path, GREY)[0] == np.asarray(image.convert("RGB").convert("L"))).all()


def test_cmyk_jpeg_is_rgb(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(pattern(channels=3)).convert("CMYK").save(path, "JPEG")
    assert read_header(path) == Header(8, 8, 3)
    assert decode(path, RGB).shape == (3, 8, 8)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_orientation_is_applied_as_pillow_does(tmp_path: Path, orientation: int, format: str) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a"
    path.write_bytes(image_bytes(pattern(8, 12), format, exif=exif))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    assert read_header(path) == Header(*expected.shape, 1)
    assert (decode(path, Target(*expected.shape, 1, None))[0] == expected).all()


def test_orientation_that_stands_behind_the_pixels_of_a_png_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    chunk, plain = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0"), image_bytes(pattern(8, 12), "PNG")
    late = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    path = tmp_path / "a.png"
    path.write_bytes(plain[:-12] + late + plain[-12:])
    assert read_header(path) == Header(8, 12, 1)
    assert (decode(path, Target(8, 12, 1, None))[0] == pattern(8, 12)).all()


def test_damaged_exif_does_not_cost_the_image(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(image_bytes(pattern(), "JPEG", exif=b"Exif\0\0garbage"))
    assert read_header(path) == Header(8, 8, 1)
    assert decode(path, GREY).shape == (1, 8, 8)


def test_bomb_is_refused_from_its_header(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_claiming(8193, 8192))
    assert MAX_PIXELS < 8193 * 8192
    for read in (read_header, lambda p: decode(p, GREY)):
        with pytest.raises(DataError, match="at most"):
            read(path)
    path.write_bytes(png_claiming(60_000, 60_000))
    with pytest.raises(DataError):
        read_header(path)


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_truncated_file_is_an_error(tmp_path: Path, format: str) -> None:
    data = image_bytes(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8), format)
    path = tmp_path / "a"
    path.write_bytes(data[: len(data) // 2])
    assert read_header(path) == Header(64, 64, 1)
    with pytest.raises(DataError):
        decode(path, Target(64, 64, 1, None))


def test_missing_file_folder_and_pipe_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe"):
        with pytest.raises(DataError):
            read_header(tmp_path / name)


def test_metadata_does_not_change_pixels(tmp_path: Path) -> None:
    from PIL import ImageCms, PngImagePlugin

    text = PngImagePlugin.PngInfo()
    text.add_text("gamma", "2.2")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    buffer = io.BytesIO()
    Image.fromarray(pattern(channels=3)).save(buffer, "PNG", pnginfo=text, icc_profile=profile)
    path = tmp_path / "a.png"
    path.write_bytes(buffer.getvalue())
    assert (decode(path, RGB) == pattern(channels=3).transpose(2, 0, 1)).all()
