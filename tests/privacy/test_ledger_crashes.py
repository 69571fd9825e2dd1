"""Audit A10: a run killed at any moment has charged at least what it drew."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from checks import open_ledger
from hypothesis import given
from hypothesis import strategies as st

from veilset.errors import BudgetExceeded
from veilset.privacy import ledger as ledger_module
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, clip_rows, sum_rows
from veilset.privacy.events import Event, Gaussian, Repeated, ShardTouched
from veilset.privacy.ledger import LedgerRecord, PrivacyLedger, read_chain
from veilset.privacy.noise import NoiseSource
from veilset.privacy.release import Door
from veilset.randomness import named_generator

EVENT = Gaussian(1.0)


def read(path: Path) -> LedgerRecord:
    return LedgerRecord(read_chain(path.read_text().splitlines()))


KILLS = 50


class CountingNoise(NoiseSource):
    """Writes one byte to a file, durably, for each draw that is about to happen."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._draws = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def normal(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        os.write(self._draws, b".")
        os.fsync(self._draws)
        return super().normal(count, device)


def release_until_killed(path: Path, draws: Path, ready: int) -> None:
    try:
        door = Door(PrivacyLedger.resume(path), CountingNoise(draws))
        total = sum_rows(clip_rows(torch.ones(1, 2), 1.0))
        os.write(ready, b"r")
        while True:
            door.release_sum(total, 1.0)
    finally:
        os._exit(1)


def test_fifty_kills_never_leave_a_draw_uncharged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A10: at any moment draws <= charges on disk, and what was spent never decreases."""
    monkeypatch.setattr(ledger_module, "BLOCK", 6)  # many block borders in a short life
    monkeypatch.setattr(ledger_module, "RESERVE_BLOCK", 3)
    monkeypatch.setattr(ledger_module, "BLOCKS", 50)
    path, draws = tmp_path / "ledger.jsonl", tmp_path / "draws"
    open_ledger(path, Repeated(300, EVENT), reserve=Repeated(100_000, EVENT)).unlock()
    draws.touch()
    NoiseSource().normal(2)  # imports what the children need, so that their short lives are spent releasing
    delays = torch.rand(KILLS, generator=named_generator(0, "kills")) * 0.012
    charged_before = 0
    for delay in delays.tolist():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            release_until_killed(path, draws, writer)
        assert os.read(reader, 1) == b"r"
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the child ended by itself"
        os.close(reader)
        os.close(writer)
        record = read(path)
        assert draws.stat().st_size <= record.charged[EVENT]
        assert record.charged[EVENT] >= charged_before
        charged_before = record.charged[EVENT]
    assert draws.stat().st_size > KILLS
    assert read(path).resumed == KILLS


@pytest.mark.parametrize("step", [
    ShardTouched(7, "round-robin", EVENT), ShardTouched(7, "uniform", EVENT), EVENT,
], ids=["round-robin", "uniform", "plain"])  # fmt: skip
@given(lives=st.lists(st.integers(0, 12), min_size=1, max_size=6), planned=st.integers(1, 30))
def test_however_often_a_run_crashes_it_spends_no_more_than_its_plan(
    step: Event, lives: list[int], planned: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A schedule that goes round may touch the same shards first after each crash, so equal counts may cost more."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    open_ledger(path, Repeated(planned, step)).unlock()
    for life in lives:
        ledger = PrivacyLedger.resume(path)
        with contextlib.suppress(BudgetExceeded):
            for _ in range(life):
                ledger.charge(step)
        ledger.unlock()
    spent, plan = (price(event, 1e-5, Adjacency.ADD_REMOVE) for event in (read(path).spent, Repeated(planned, step)))
    assert spent.epsilon <= plan.epsilon * (1 + 1e-12)
