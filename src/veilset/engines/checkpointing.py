"""Keeping and restoring a training loop of the open side: model, optimiser, random stream and step, as plain tensors.

A restored loop continues exactly where the kept one stood, so a run that was interrupted ends with the same weights
as one that was not (given the same released values). Noise sources are never kept: see `privacy.noise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn

from veilset.errors import RunError
from veilset.privacy.events import Event, steps
from veilset.privacy.ledger import PrivacyLedger
from veilset.version import __version__

PARTS = 20
"""A loop is kept at least this often, because a resumed run goes without the releases that it lost."""


class Checkpoints(Protocol):
    """Named tensors that survive a crash, on the vault side."""

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None: ...

    def load(self, name: str) -> dict[str, Tensor] | None: ...


def steps_between(planned: int, most: int) -> int:
    """From one checkpoint of a loop to the next: `most`, and fewer in a short loop.

    >>> steps_between(10_000, 300), steps_between(600, 300), steps_between(4, 300)
    (300, 30, 1)
    """
    return max(1, min(most, planned // PARTS))


def last_step(ledger: PrivacyLedger, event: Event, *, done: int, planned: int) -> int:
    """Where a loop of releases ends that has `done` some: where it was planned to or, after a crash, where plan and
    reserve are used up. What was charged and lost is not bought again, so a resumed loop may be a little shorter.

    At least 1: a loop that cannot pay for anything is refused by the ledger.
    """
    if not ledger.resumed:
        return planned
    left = (steps(ledger.planned) + steps(ledger.reserve) - ledger.charged)[event]
    return max(1, min(planned, done + left))


def last_affordable(ledger: PrivacyLedger, charges: list[tuple[Event, int]], *, done: int, planned: int) -> int:
    """`last_step` of a stage that is charged by several events, of which some come once for several steps."""
    ends = [
        planned // count * last_step(ledger, event, done=done * count // planned, planned=count)
        for event, count in charges
    ]
    return min(ends, default=planned)


def left_out(doing: str, last: int, planned: int) -> str:
    """What a loop is doing, for people; it says where a crash cost some of its steps.

    >>> left_out("training", 570, 600)
    'training: 30 of 600 steps are left out, as a crash cost what they would'
    """
    lost = f": {planned - last:,} of {planned:,} steps are left out, as a crash cost what they would"
    return doing + (lost if last < planned else "")


@contextmanager
def read_checkpoint(name: str) -> Iterator[None]:
    """Around the reading of a checkpoint that other code may have kept in another shape.

    Raises: RunError where it has.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(
            f"the checkpoint '{name}' as Veilset {__version__} keeps it",
            f"one of other settings or other code: {error!r}",
            "Go on with the version that began the run (vault/plan.json names it), or begin a new run; what was "
            "charged stays charged.",
        ) from error


def keep(
    checkpoints: Checkpoints,
    name: str,
    step: int,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    draws: torch.Generator,
    more: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Everything under one name, so that no crash can leave parts of two moments."""
    tensors: dict[str, Tensor] = {"step": torch.tensor(step), "draws": draws.get_state()}
    tensors.update({f"more/{key}": value for key, value in more.items()})
    tensors.update({f"model/{key}": value for key, value in model.state_dict().items()})
    for index, state in optimiser.state_dict()["state"].items():
        tensors.update({f"optimiser/{index}/{key}": torch.as_tensor(value) for key, value in state.items()})
    checkpoints.save(name, tensors)


def restore(
    checkpoints: Checkpoints,
    name: str,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    draws: torch.Generator,
    more: Mapping[str, Tensor] = MappingProxyType({}),
) -> int:
    """Loads the last kept state into the arguments; returns the number of steps it had done, 0 if there is none."""
    tensors = checkpoints.load(name)
    if tensors is None:
        return 0
    with read_checkpoint(name):
        return _restored(tensors, model, optimiser, draws, more)


def _restored(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    draws: torch.Generator,
    more: Mapping[str, Tensor],
) -> int:
    model.load_state_dict({key[6:]: value for key, value in tensors.items() if key.startswith("model/")})
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser/"):
            _, index, field = key.split("/")
            state.setdefault(int(index), {})[field] = _laid_out_like(parameters[int(index)], value)
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    draws.set_state(tensors["draws"].cpu())
    for key, value in more.items():
        value.copy_(tensors[f"more/{key}"])
    return int(tensors["step"])


def _laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """`value` with the memory layout of its parameter: fused optimisers pair elements by address, not by index."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
