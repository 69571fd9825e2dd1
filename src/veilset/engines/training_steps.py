"""What steps of training have in common, on either side: neither function is given images."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def step_along(optimiser: torch.optim.Optimizer, gradients: Iterable[Tensor]) -> None:
    """One step of `optimiser`, with one gradient for each of its parameters, in their order."""
    parameters = [value for group in optimiser.param_groups for value in group["params"]]
    for value, gradient in zip(parameters, gradients, strict=True):
        value.grad = gradient
    optimiser.step()


def faded(done: float, whole: float = 1.0) -> float:
    """The share of a learning rate that is left when `done` of `whole` is done: from 1 to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * done / whole))
