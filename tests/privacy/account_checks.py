"""The reusable checks of ledger, charge order and prices; see `checks` for the rules they follow."""

import math
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from checks import ADD, DELTA, REPLACE, open_ledger
from scipy import stats
from torch import Tensor

from veilset.errors import BudgetExceeded, LedgerError
from veilset.privacy import accounting, bounds, ledger, noise, release
from veilset.privacy.events import Composed, Gaussian, PoissonSampled, Repeated, ShardTouched

# --- ledger and door -------------------------------------------------------------------------------------------------


class NoiseRefused(Exception):
    pass


class ClosedNoise(noise.NoiseSource):
    """Operating-system noise that fails when it is first asked for."""

    def normal(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        raise NoiseRefused


def check_charge_precedes_noise(folder: Path) -> None:
    """When noise is asked for, its charge can already be read from the disk."""
    rows = bounds.clip_rows(torch.ones(2, 3), 1.0)
    path = folder / "private.jsonl"
    door = release.Door(open_ledger(path, Repeated(2, Gaussian(1.0))), ClosedNoise())
    for number, ask in enumerate((lambda: door.release_sum(bounds.sum_rows(rows), 1.0),
                                  lambda: door.release_rows(rows, 1.0))):  # fmt: skip
        with pytest.raises(NoiseRefused):
            ask()
        record = ledger.LedgerRecord(ledger.read_chain(path.read_text().splitlines()))
        assert record.charged[Gaussian(1.0)] >= number + 1


def check_synced_before_return(folder: Path) -> None:
    """Each charge is written, then fsynced, then returned from; the folder is fsynced when the file is made."""
    calls: list[str] = []
    real_write, real_fsync = os.write, os.fsync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda *a: (calls.append("write"), real_write(*a))[1])
        patch.setattr(os, "fsync", lambda *a: (calls.append("fsync"), real_fsync(*a))[1])
        book = open_ledger(folder / "synced.jsonl", Gaussian(1.0))
        assert calls == ["fsync", "write", "fsync"]
        calls.clear()
        book.charge(Gaussian(1.0))
    assert calls == ["write", "fsync"]


def check_every_release_is_counted(folder: Path) -> None:
    """Charges on disk add up to the releases, for every kind of event."""
    kinds = {Gaussian(1.0): 7, PoissonSampled(0.1, Gaussian(2.0)): 1203, ShardTouched(5, "uniform", Gaussian(3.0)): 501}
    path = folder / "counted.jsonl"
    book = open_ledger(path, Composed(tuple(Repeated(n, event) for event, n in kinds.items())))
    for event, count in kinds.items():
        for _ in range(count):
            book.charge(event)
    book.close()
    record = ledger.LedgerRecord(ledger.read_chain(path.read_text().splitlines()))
    assert record.charged == Counter(kinds)
    assert record.closed


def check_plan_is_the_limit(folder: Path) -> None:
    book = open_ledger(folder / "limit.jsonl", Repeated(3, Gaussian(1.0)), reserve=Repeated(3, Gaussian(1.0)))
    for _ in range(3):
        book.charge(Gaussian(1.0))
    for event in (Gaussian(1.0), Gaussian(2.0)):
        with pytest.raises(BudgetExceeded):
            book.charge(event)


def check_resume_keeps_charges(folder: Path) -> None:
    """What was charged before a crash stays charged; the redone steps come out of plan and reserve."""
    path, event = folder / "resumed.jsonl", Gaussian(1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "BLOCKS", 1)  # so that one release costs a crashed run many
        open_ledger(path, Repeated(600, event), reserve=Repeated(60, event)).charge(event)
    ledger_before = ledger.LedgerRecord(ledger.read_chain(path.read_text().splitlines()))
    assert ledger_before.charged[event] == 500
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.fcntl, "flock", lambda *_: None)  # the crashed process would hold no lock
        book = ledger.PrivacyLedger.resume(path)
    for _ in range(160):
        book.charge(event)
    with pytest.raises(BudgetExceeded):
        book.charge(event)
    assert book.charged[event] == 660


def check_fork_cannot_spend_twice(folder: Path) -> None:
    book = open_ledger(folder / "forked.jsonl", Repeated(10, Gaussian(1.0)))
    book.charge(Gaussian(1.0))
    child = os.fork()
    if child == 0:
        try:
            book.charge(Gaussian(1.0))
            os._exit(1)
        except LedgerError:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def check_chain(folder: Path) -> None:
    """A changed, removed or inserted line is noticed, wherever it is."""
    path = folder / "chain.jsonl"
    book = open_ledger(path, Repeated(1600, Gaussian(1.0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "BLOCKS", 3)  # few lines, so that each can be forged
        for _ in range(1600):
            book.charge(Gaussian(1.0))
    lines = path.read_text().splitlines()
    assert len(lines) == 5
    forged = [[*lines[:n], lines[n].replace("500", "400"), *lines[n + 1 :]] for n in (1, 2, 3)]
    forged += [[*lines[:4], lines[4].replace('"count": 100', '"count": 10')]]
    forged += [lines[:n] + lines[n + 1 :] for n in range(4)]
    forged += [[*lines[:n], lines[n], *lines[n:]] for n in range(5)]
    for copy in forged:
        assert copy != lines
        with pytest.raises(LedgerError):
            ledger.read_chain(copy)


# --- accounting ------------------------------------------------------------------------------------------------------

GS_WGAN_STEP = Gaussian(1.07 / math.sqrt(32))
"""One published GS-WGAN step: 32 rows with multiplier 1.07, released together."""


def check_hidden_index_price() -> None:
    """Privacy notes, table 1, row d: all rows of a step share one draw, so 329.4 and not 9.99."""
    event = Repeated(20_000, PoissonSampled(1e-3, Repeated(32, Gaussian(1.07))))
    assert accounting.price(event, DELTA, ADD).epsilon == pytest.approx(329.4, rel=1e-3)


def check_random_index_price() -> None:
    """Privacy notes, table 1, row g: delta is averaged over the public index draws."""
    event = Repeated(20_000, ShardTouched(1000, "uniform", GS_WGAN_STEP, fixed_slots=True))
    assert accounting.price(event, DELTA, REPLACE).epsilon == pytest.approx(610.3, rel=1e-3)


def check_two_kinds_of_random_index_price() -> None:
    """Privacy notes, 10.2: DPAC with two barriers from step 6000 on, uniform index: 1042."""
    second = ShardTouched(1000, "uniform", Gaussian(1.07 / 8), fixed_slots=True)
    event = Composed(
        (Repeated(6000, ShardTouched(1000, "uniform", GS_WGAN_STEP, fixed_slots=True)), Repeated(14_000, second))
    )
    assert accounting.price(event, DELTA, REPLACE).epsilon == pytest.approx(1042, rel=1e-3)


def check_prices_round_up() -> None:
    """The delta of a stated epsilon is never above the delta it was stated for."""
    for multiplier in (0.3, 0.71, 1.0, 3.731, 40.0):
        epsilon = accounting.price(Gaussian(multiplier), DELTA, ADD).epsilon
        mu = 1 / multiplier
        exact = stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
        assert exact <= DELTA * (1 + 1e-12)
