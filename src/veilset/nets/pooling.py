"""Pooling that is fast on a CPU, too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def average_of_fours(images: Tensor) -> Tensor:
    """`F.avg_pool2d(images, 2)`. With channels first a CPU takes half the time for a sum of rows and a product with a
    matrix of quarters. Its sums have one rounding in any order, so they are the same at every place of a batch."""
    if images.device.type != "cpu" or not images.is_contiguous():
        return F.avg_pool2d(images, 2)
    height, width = (side // 2 for side in images.shape[2:])
    rows = images[:, :, : 2 * height, : 2 * width].unflatten(2, (height, 2)).sum(3)
    quarters = torch.eye(width, dtype=rows.dtype).repeat_interleave(2, dim=0) / 4
    return rows @ quarters
