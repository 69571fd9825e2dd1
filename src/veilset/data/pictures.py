"""Images as pictures for people: grids of samples, one row per class."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from veilset.data.fitting import array_to_image
from veilset.data.spec import ImageSet

MIN_SIDE = 56
"""Small images are enlarged by whole factors to at least this many pixels, so that they can be looked at."""
FRAME = 128


def sample_grid(images: ImageSet, *, columns: int = 10) -> bytes:
    """A PNG with one row per class that occurs, its first `columns` images in order."""
    classes = images.labels.unique().tolist()
    blank = torch.full(images.spec.shape, FRAME, dtype=torch.uint8)  # black could be an image
    rows = []
    for label in classes:
        picked = list(images.pixels[images.labels == label][:columns])
        rows.append(torch.cat([_framed(tile) for tile in picked + [blank] * (columns - len(picked))], dim=2))
    return to_png(torch.cat(rows, dim=1))


def _framed(tile: Tensor) -> Tensor:
    factor = max(1, -(-MIN_SIDE // max(tile.shape[1:])))
    large = tile.repeat_interleave(factor, dim=1).repeat_interleave(factor, dim=2)
    return torch.nn.functional.pad(large, (1, 1, 1, 1), value=FRAME)


def to_png(pixels: Tensor) -> bytes:
    """uint8 (channels, height, width) to PNG bytes."""
    buffer = io.BytesIO()
    array_to_image(pixels.numpy()).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
