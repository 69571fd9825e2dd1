"""Disjoint shards of private images on the training device, and mini-batches that each shard draws for itself.

What one shard draws depends on its own key, step and size alone. One stream for all would let the size of a shard shift
the batches of every other, and so spread one record over all critics.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.data.spec import ImageSet, to_unit_range
from veilset.errors import DataError
from veilset.randomness import stream_keys, uniforms


@dataclass(frozen=True)
class ShardBatches:
    """What `count` shards have drawn for one step, each `batch` images."""

    images: Tensor
    """(count, batch, channels, height, width) in [0, 1], with replacement; zeros for an empty shard"""
    labels: Tensor
    """(count, batch)"""
    chances: Tensor
    """(count, batch, numbers): uniform numbers inside (0, 1) for whatever else is random about the step"""


class ImageShards:
    """The images of every shard, one shard after the other, each in the order they came in. Null records are in none.

    A record more or less therefore moves the others of its own shard only.
    """

    def __init__(self, images: ImageSet, shard_of: Tensor, count: int, *, seed: int, device: torch.device) -> None:
        if shard_of.shape != images.labels.shape or not ((shard_of >= 0) & (shard_of < count)).all():
            raise DataError(
                f"a shard from 0 to {count - 1} for every record", "others", "Use data.shards.assign_shards."
            )  # fmt: skip
        kept = images.valid.nonzero().flatten()
        order = kept[shard_of[kept].argsort(stable=True)]
        sizes = shard_of[order].bincount(minlength=count)
        # One black image at the end for the empty shards to draw: every shard takes the same path.
        pixels = torch.cat([images.pixels[order], images.pixels.new_zeros(1, *images.spec.shape)])
        labels = torch.cat([images.labels[order], images.labels.new_zeros(1)])
        starts = torch.where(sizes > 0, sizes.cumsum(0) - sizes, len(order))
        self.count, self.seed, self.device = count, seed, device
        self.pixels, self.labels = pixels.to(device), labels.to(device)
        self.sizes, self.starts = sizes.to(device), starts.to(device)
        self.keys = stream_keys(seed, "shard", count).to(device)

    def with_streams(self, name: str) -> ImageShards:
        """The same images, drawn by other random streams: those of `name`."""
        other = copy(self)
        other.keys = stream_keys(self.seed, f"shard/{name}", self.count).to(self.device)
        return other

    def draw(self, which: Tensor, steps: Tensor, batch: int, numbers: int) -> ShardBatches:
        """A mini-batch of each of the shards `which`, the one of its step in `steps`."""
        chances = uniforms(self.keys[which], steps, batch * (1 + numbers)).unflatten(1, (batch, -1))
        rows = (chances[..., 0] * self.sizes[which, None]).long() + self.starts[which, None]
        return ShardBatches(to_unit_range(self.pixels[rows]), self.labels[rows], chances[..., 1:])
