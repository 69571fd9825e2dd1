"""Marks what belongs to the vault side, so that the writer of releases can refuse it."""

from __future__ import annotations

import weakref

from torch import Tensor, nn

_SEALED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def seal(module: nn.Module) -> nn.Module:
    """Marks a network that is trained on private images (a critic, a teacher): it never leaves the vault."""
    _SEALED.add(module)
    return module


def is_sealed(module: nn.Module) -> bool:
    return any(part in _SEALED for part in module.modules())


def sealed_twin(tensor: Tensor) -> bool:
    """Whether `tensor` is, shares memory with, or equals a non-constant tensor of a sealed network."""
    for module in list(_SEALED):
        for private in module.state_dict().values():
            if private.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                return True
            varied = private.numel() > 1 and bool((private != private.flatten()[0]).any())
            if varied and private.shape == tensor.shape and bool((private.to(tensor.device) == tensor).all()):
                return True
    return False
