"""Marks what belongs to the vault side, so that the writer of releases can refuse it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

_SEALED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_KEPT: ContextVar[list[nn.Module] | None] = ContextVar("kept", default=None)


@contextmanager
def seals_kept() -> Iterator[None]:
    """Keeps what is sealed inside alive to its end: a critic dies with its fit, before the release is checked."""
    token = _KEPT.set([])
    try:
        yield
    finally:
        _KEPT.reset(token)


def seal(module: nn.Module) -> nn.Module:
    """Marks a network that is trained on private images (a critic, a teacher): it never leaves the vault."""
    _SEALED.add(module)
    if (kept := _KEPT.get()) is not None:
        kept.append(module)
    return module


def is_sealed(module: nn.Module) -> bool:
    return any(part in _SEALED for part in module.modules())


def sealed_twin(tensor: Tensor) -> bool:
    """Whether `tensor` shares memory with a tensor of a sealed network, or holds the same values in any shape or type.

    Copies of constant tensors are let through: untrained biases are all alike.
    """
    for module in list(_SEALED):
        for private in module.state_dict().values():
            if private.numel() == 0:
                continue
            if private.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                return True
            values = private.flatten().to(tensor.device, tensor.dtype)
            varied = bool((values != values[0]).any())
            if varied and values.numel() == tensor.numel() and bool((values == tensor.flatten()).all()):
                return True
    return False
