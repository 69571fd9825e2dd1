"""Sample grids: one row per class, in order, readable as PNG."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from contract.cases import make_images
from PIL import Image

from veilset.data.pictures import MIN_SIDE, sample_grid, to_png
from veilset.data.spec import ImageSet


def opened(png: bytes) -> np.ndarray:
    assert png.startswith(b"\x89PNG")
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_very_pixels(channels: int) -> None:
    pixels = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = opened(to_png(pixels))
    expected = pixels.permute(1, 2, 0).numpy()
    assert np.array_equal(found.reshape(5, 7, channels), expected)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 11), (13, 9), (64, 32)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_has_one_row_for_each_class_that_occurs(height: int, width: int, channels: int) -> None:
    images = make_images(counts=(4, 0, 2), height=height, width=width, channels=channels)
    found = opened(sample_grid(images, columns=3))
    factor = max(1, -(-MIN_SIDE // max(height, width)))
    assert found.shape[:2] == (2 * (height * factor + 2), 3 * (width * factor + 2))


def test_tiles_are_the_first_images_of_each_class_in_order_and_grey_where_there_is_none() -> None:
    images = make_images(counts=(3, 2))
    found = opened(sample_grid(images, columns=4)).reshape(2, 58, 4, 58)
    for label in range(2):
        mine = images.pixels[images.labels == label]
        for column in range(4):
            tile = found[label, 1:57:7, column, 1:57:7]
            expected = mine[column, 0].numpy() if column < len(mine) else np.full((8, 8), 128)
            assert np.array_equal(tile, expected), (label, column)


def test_a_grid_of_one_image_is_framed() -> None:
    images = ImageSet(
        spec=make_images(counts=(1,)).spec,
        pixels=torch.full((1, 1, 8, 8), 255, dtype=torch.uint8),
        labels=torch.zeros(1, dtype=torch.int64),
    )
    found = opened(sample_grid(images, columns=1))
    assert set(found[0].tolist()) == {128}
    assert set(found[1:-1, 1:-1].flatten().tolist()) == {255}
