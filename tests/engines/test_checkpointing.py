"""A restored training loop continues exactly where the kept one stood."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from veilset.engines.checkpointing import keep, last_affordable, last_step, restore
from veilset.errors import BudgetExceeded
from veilset.privacy import ledger as ledger_module
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import NOTHING, Composed, Gaussian, Repeated
from veilset.privacy.ledger import PrivacyLedger
from veilset.randomness import initialise, named_generator


class Memory(dict[str, dict[str, Tensor]]):
    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        # contiguous, as a file would hold them
        self[name] = {key: value.detach().clone().contiguous() for key, value in tensors.items()}

    def load(self, name: str) -> dict[str, Tensor] | None:
        return self.get(name)


class Loop:
    """A small convolution trained by a few optimiser steps on drawn inputs."""

    def __init__(self, optimiser: str, memory_format: torch.memory_format = torch.contiguous_format) -> None:
        self.model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2))
        initialise(self.model, named_generator(0, "weights"))
        self.model.to(memory_format=memory_format)
        options = {
            "adam": lambda p: torch.optim.Adam(p, lr=0.01),
            "fused adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
            "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
            "plain sgd": lambda p: torch.optim.SGD(p, lr=0.01),
        }
        self.optimiser = options[optimiser](self.model.parameters())
        self.draws = named_generator(0, "draws")

    def train(self, steps: int) -> Loop:
        for _ in range(steps):
            inputs = torch.randn(5, 3, 8, 8, generator=self.draws)
            self.optimiser.zero_grad()
            self.model(inputs).square().mean().backward()
            self.optimiser.step()
        return self

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


@pytest.mark.parametrize("optimiser", ["adam", "fused adam", "sgd", "plain sgd"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_restored_loop_ends_with_the_same_weights(optimiser: str, memory_format: torch.memory_format) -> None:
    whole = Loop(optimiser, memory_format).train(7).weights()
    memory = Memory()
    first = Loop(optimiser, memory_format).train(4)
    keep(memory, "loop", 4, first.model, first.optimiser, first.draws)
    second = Loop(optimiser, memory_format).train(1)  # whatever it did before is overwritten
    assert restore(memory, "loop", second.model, second.optimiser, second.draws) == 4
    resumed = second.train(3).weights()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_without_a_checkpoint_nothing_is_restored() -> None:
    loop = Loop("adam")
    before = loop.weights()
    state = loop.draws.get_state()
    assert restore(Memory(), "loop", loop.model, loop.optimiser, loop.draws) == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in loop.weights().items())
    assert torch.equal(state, loop.draws.get_state())


@pytest.mark.parametrize("lost", ["draws", "optimiser/0/exp_avg", "model/0.weight"])
def test_a_checkpoint_without_one_of_its_parts_would_be_noticed_by_these_tests(lost: str) -> None:
    """Sabotage: each part of the kept state matters to the weights."""
    whole = Loop("adam").train(7).weights()
    memory = Memory()
    first = Loop("adam").train(4)
    keep(memory, "loop", 4, first.model, first.optimiser, first.draws)
    fresh = Loop("adam")
    original = {"draws": fresh.draws.get_state(), "model/0.weight": fresh.model.state_dict()["0.weight"]}
    memory["loop"][lost] = original.get(lost, torch.zeros_like(memory["loop"][lost]))
    restore(memory, "loop", fresh.model, fresh.optimiser, fresh.draws)
    assert not torch.equal(fresh.train(3).weights()["0.weight"], whole["0.weight"])


def test_a_checkpoint_holds_tensors_only_and_no_noise_key() -> None:
    memory = Memory()
    loop = Loop("adam").train(1)
    keep(memory, "loop", 1, loop.model, loop.optimiser, loop.draws)
    assert all(isinstance(value, Tensor) for value in memory["loop"].values())
    assert {key.split("/")[0] for key in memory["loop"]} == {"step", "draws", "model", "optimiser"}


EVENT = Gaussian(1.0)


def ledger_for(path: Path, times: int) -> PrivacyLedger:
    return PrivacyLedger.open_new(
        path, planned=Repeated(times, EVENT), reserve=NOTHING, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD,
        delta=1e-5,
    )  # fmt: skip


def test_an_undisturbed_loop_ends_as_planned_whatever_was_charged_ahead(tmp_path: Path) -> None:
    ledger = ledger_for(tmp_path / "ledger.jsonl", times=200)
    ledger.charge(EVENT)
    assert last_step(ledger, EVENT, done=0, planned=200) == 200


def test_a_resumed_loop_ends_where_its_budget_ends_and_is_refused_if_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "BLOCKS", 9)
    before = ledger_for(tmp_path / "ledger.jsonl", times=900)
    for _ in range(3):
        before.charge(EVENT)  # a block of 100 is on disk then
    before.unlock()
    ledger = PrivacyLedger.resume(tmp_path / "ledger.jsonl")
    assert last_step(ledger, EVENT, done=0, planned=900) == 800
    assert last_step(ledger, EVENT, done=2, planned=900) == 802
    assert last_step(ledger, EVENT, done=900, planned=900) == 900
    other = Gaussian(2.0)
    assert last_step(ledger, other, done=0, planned=900) == 1
    with pytest.raises(BudgetExceeded):
        ledger.charge(other)


def test_a_stage_of_several_charges_ends_where_the_first_of_them_cannot_be_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event a step and one for every eight steps: the stage ends with a whole number of those."""
    monkeypatch.setattr(ledger_module, "BLOCKS", 9)
    rare = Gaussian(2.0)
    before = PrivacyLedger.open_new(
        tmp_path / "ledger.jsonl", planned=Composed((Repeated(80, EVENT), Repeated(10, rare))), reserve=NOTHING,
        adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD, delta=1e-5,
    )  # fmt: skip
    charges = [(EVENT, 80), (rare, 10)]
    assert last_affordable(before, charges, done=0, planned=80) == 80
    for _ in range(16):
        before.charge(EVENT)
    for _ in range(3):
        before.charge(rare)
    before.unlock()
    ledger = PrivacyLedger.resume(tmp_path / "ledger.jsonl")
    left = 80 - ledger.charged[EVENT], 10 - ledger.charged[rare]
    assert last_affordable(ledger, charges, done=16, planned=80) == min(16 + left[0], 8 * (2 + left[1])) < 80
    assert last_affordable(ledger, [], done=16, planned=80) == 80, "a game that costs nothing ends as planned"
