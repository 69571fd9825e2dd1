"""Five small critics on shards of different sizes, one of them empty."""

from __future__ import annotations

import torch
from plain_critics import spec_of
from torch import Tensor

from veilset.data.spec import ImageSet
from veilset.engines.critic_training import CriticStack, PooledFakes
from veilset.engines.shard_batches import ImageShards
from veilset.nets.critics import Critics, conv_critics, dense_critics
from veilset.randomness import named_generator

SPEC = spec_of(12, 10, 1)
SIZES = (5, 0, 9, 1, 4)
"""Records of the shards; the second is empty."""
COUNT, BATCH = len(SIZES), 6
CONV, DENSE = conv_critics(SPEC, 4), dense_critics(SPEC, 8)


def shards_of(sizes: tuple[int, ...] = SIZES, device: str = "cpu") -> ImageShards:
    """The first records of a shard are the same whatever the sizes."""
    pixels, labels = [], []
    for number, size in enumerate(sizes):
        draws = named_generator(number, "records")
        labels += [torch.randint(0, 3, (20,), generator=draws)[:size]]
        pixels += [torch.randint(0, 256, (20, *SPEC.shape), dtype=torch.uint8, generator=draws)[:size]]
    images = ImageSet(spec=SPEC, pixels=torch.cat(pixels), labels=torch.cat(labels))
    shard_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    # In turns, as hashes mix them: another record moves those of other shards, and leaves the order of each as it was.
    order = torch.cat([torch.arange(size) for size in sizes]).argsort(stable=True)
    return ImageShards(images.subset(order), shard_of[order], len(sizes), seed=7, device=torch.device(device))


def stack_of(
    net: Critics = CONV, sizes: tuple[int, ...] = SIZES, workspace: int | None = None, device: str = "cpu"
) -> CriticStack:
    draws = named_generator(0, "critics")
    return CriticStack(net, shards_of(sizes, device), batch=BATCH, draws=draws, workspace=workspace)


def pool(device: str = "cpu") -> PooledFakes:
    return PooledFakes(torch.rand(3, 8, *SPEC.shape, generator=named_generator(0, "pool")).to(device))


def shared_batch() -> tuple[Tensor, Tensor]:
    return torch.rand(7, *SPEC.shape, generator=named_generator(0, "shared")), torch.arange(7) % 3
