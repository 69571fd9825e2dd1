"""A fit of a moment and images of a few pixels, in place of a benchmark."""

from __future__ import annotations

import numpy as np

import veilset
from veilset.data.spec import ImageSet

TINY = {"steps": 2, "frequencies": 8, "hidden_size": 8, "map_channels": 8}


def tiny(name: str, split: str) -> ImageSet:
    pixels = np.random.default_rng(len(split)).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    return veilset.load(pixels, np.arange(24) % 2, class_names=["a", "b"], benchmark=name)
