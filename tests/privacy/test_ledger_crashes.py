"""Audit A10: a run killed at any moment has charged at least what it drew."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from checks import open_ledger

from veilset.privacy import ledger as ledger_module
from veilset.privacy.bounds import clip_rows, sum_rows
from veilset.privacy.events import Gaussian, Repeated
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
