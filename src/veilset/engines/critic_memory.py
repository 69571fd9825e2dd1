"""How many critics, and how many at once, fit into a device's memory: known before any is made."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from veilset.errors import ConfigError
from veilset.nets.critics import Critics

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container says how much of the machine's memory it may use."""


def bytes_kept(net: Critics) -> int:
    """Of one critic between its steps: weights, two moments and singular vectors."""
    return 4 * (3 * net.num_weights + net.num_vectors)


def spare_bytes(net: Critics, count: int, batch: int, device: torch.device, kept: int | None = None) -> int:
    """What `count` critics leave of the device's memory.

    Args:
        kept: all bytes between their steps, where there are copies or others beside them.

    Raises: ConfigError, before any is made, where that is too little to train one of them.
    """
    memory = memory_of(device)
    kept = count * bytes_kept(net) if kept is None else kept
    spare = memory - kept
    if spare < bytes_of_one(net, batch, torch.float32):
        raise ConfigError(
            f"critics that fit into the {memory / 1e9:.1f} GB of the {device.type}, with room to train one of them",
            f"{count:,} of {bytes_kept(net) / 1e6:.1f} MB each, in all, with what is beside them, {kept / 1e9:.1f} GB",
            "Use fewer shards, narrower critics or a larger device.",
        )
    return spare


def memory_of(device: torch.device) -> int:
    """All bytes that a program may use there, whoever uses some of them now."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [Path(name).read_text().strip() for name in CGROUP_LIMITS if Path(name).is_file()]
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(int(limit) for limit in limits if limit.isdecimal())])


def bytes_of_one(net: Critics, batch: int, dtype: torch.dtype) -> int:
    """Of one critic's step: activations and their gradients of three batches, and about eight copies of the weights."""
    return 6 * batch * net.activations * dtype.itemsize + 8 * net.num_weights * 4
