"""Fusing the many small operations of a function into few kernels, on CUDA machines that have a compiler."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

MOST_SHAPES = 64
"""Different shapes for which one function is compiled. Beyond its own limit of 8 torch silently stops compiling, and
blocks of one class share that limit: the residual blocks of two networks have more shapes than that."""


def fused_on_cuda(function: Callable[..., Result]) -> Callable[..., Result]:
    """`function` as it is for tensors on the CPU, and compiled where its first argument is on CUDA.

    Results are the same up to rounding. Without a compiler, or where it fails at once, the function runs as written:
    slower. A later failure is raised, because one pass must not be computed in two ways.
    """
    compiled: list[Callable[..., Result]] = []
    worked = failed = False

    def call(first: Tensor, *rest: Any) -> Result:
        nonlocal worked, failed
        if failed or not first.is_cuda or not _has_compiler():
            return function(first, *rest)
        if not compiled:  # not before it is needed: loading the compiler takes seconds
            compiled.append(torch.compile(function, dynamic=False))
        try:
            with torch._dynamo.config.patch(recompile_limit=MOST_SHAPES):
                result = compiled[0](first, *rest)
        except Exception as error:  # compilers raise what they like; if the function is at fault, it says so itself
            if worked:
                raise
            failed = True
            warnings.warn(f"slower than need be: torch.compile failed ({type(error).__name__})", stacklevel=2)
            return function(first, *rest)
        worked = True
        return result

    return call


@functools.cache
def _has_compiler() -> bool:
    return importlib.util.find_spec("triton") is not None and (shutil.which("gcc") or shutil.which("cc")) is not None
