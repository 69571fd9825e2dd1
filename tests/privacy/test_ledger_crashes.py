"""Audit A10: a run killed at any moment has charged at least what it drew."""

import contextlib
import os
import signal
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

EVENT = Gaussian(1.0)


def read(path: Path) -> LedgerRecord:
    """What whole lines say: a last one that is not whole is not on disk yet."""
    return LedgerRecord(read_chain(path.read_text().rpartition("\n")[0].splitlines()))


KILLS = 50
"""Each at a later moment: a life has 4 before its first release, and at most 21 from one block to the next."""


class CountingNoise(NoiseSource):
    """Writes one byte to a file, durably, for each draw that is about to happen."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._draws = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def normal(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        os.write(self._draws, b".")
        os.fsync(self._draws)
        return super().normal(count, device)


def die_at(moment: int) -> None:
    """Has this process killed at that moment from now: before or halfway through a write, or before it is durable.

    What is on disk changes by these calls alone, so a kill at any other time finds what one of them finds.
    """
    left, write, fsync = iter(range(moment)), os.write, os.fsync

    def live_or_die() -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_and_die(file: int, data: bytes) -> int:
        live_or_die()
        written = write(file, data[: len(data) // 2])
        live_or_die()
        return written + write(file, data[written:])

    def fsync_and_die(file: int) -> None:
        live_or_die()
        fsync(file)

    os.write, os.fsync = write_and_die, fsync_and_die


def release_until_killed(path: Path, draws: Path, moment: int) -> None:
    try:
        die_at(moment)
        door = Door(PrivacyLedger.resume(path), CountingNoise(draws))
        total = sum_rows(clip_rows(torch.ones(1, 2), 1.0))
        while True:
            door.release_sum(total, 1.0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("planned", [3000, 1], ids=["plan", "reserve"])
def test_fifty_kills_never_leave_a_draw_uncharged(
    planned: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A10: at any moment draws <= charges on disk, and what was spent never decreases."""
    monkeypatch.setattr(ledger_module, "BLOCK", 6)  # many block borders in a short life
    monkeypatch.setattr(ledger_module, "RESERVE_BLOCK", 3)
    path, draws = tmp_path / "ledger.jsonl", tmp_path / "draws"
    open_ledger(path, Repeated(planned, EVENT), reserve=Repeated(3000, EVENT)).unlock()
    draws.touch()
    NoiseSource().normal(2)  # imports once what every child needs
    charged_before = 0
    for moment in range(KILLS):
        child = os.fork()
        if child == 0:
            release_until_killed(path, draws, moment)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the child ended by itself"
        record = read(path)
        assert draws.stat().st_size <= record.charged[EVENT]
        assert record.charged[EVENT] >= charged_before
        charged_before = record.charged[EVENT]
    assert draws.stat().st_size > KILLS
    assert read(path).resumed == KILLS - 3, "three were killed before they had said that they resume"


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
