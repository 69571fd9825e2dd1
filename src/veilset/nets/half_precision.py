"""Half precision where it is the faster one: for images and networks of the open side, and for features that the kernel
clips afterwards."""

from __future__ import annotations

from functools import cache

import torch


def half_precision(device: torch.device) -> torch.autocast:
    """Layers inside it run in bfloat16 on CUDA and on CPUs that multiply it, and stay as they are elsewhere."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda" or multiplies_bfloat16())


def half_on_cuda(device: torch.device) -> torch.autocast:
    """The same on CUDA alone: on a CPU gradients of a network stay those of float32."""
    return torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda")


@cache
def multiplies_bfloat16() -> bool:
    """Whether this CPU has an instruction for it. Others imitate it, which takes longer than float32."""
    return torch.cpu._is_avx512_bf16_supported()
