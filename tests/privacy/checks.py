"""The kernel's reusable checks: each passes on the kernel as it is and fails on at least one mutant of it.

Names of the audits (A1, A2, ...) are those of the privacy notes, section 6.3. Kernel functions are reached through
their modules, so that a mutant patched into a module is what a check sees. Statistical checks use fixed test noise and
a false alarm of at most 1e-4.
"""

import math
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from veilset.errors import BudgetExceeded, LedgerError, NotBounded, UnsupportedEvent
from veilset.privacy import accounting, bounds, ledger, noise, release, sampling
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import NOTHING, Composed, Event, Gaussian, PoissonSampled, Repeated, ShardTouched
from veilset.randomness import named_generator

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE
DELTA = 1e-5
ROUNDING = 1 + 1e-9
"""Norms are recomputed here in floats; the kernel's own are exact."""
FALSE_ALARM = 1e-4


def open_ledger(path: Path, planned: Event = NOTHING, **terms: object) -> ledger.PrivacyLedger:
    defaults = {"reserve": NOTHING, "adjacency": ADD, "unit": Unit.RECORD, "delta": DELTA, "not_private": None}
    return ledger.PrivacyLedger.open_new(path, planned=planned, **{**defaults, **terms})


def test_door(
    folder: Path, source: noise.NoiseSource, planned: Event, adjacency: Adjacency = ADD, unit: Unit = Unit.RECORD
) -> release.Door:
    """A door on a ledger that says it is a test, with a name of its own for each call."""
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    return release.Door(open_ledger(path, planned, adjacency=adjacency, unit=unit, not_private="test"), source)


test_door.__test__ = False  # type: ignore[attr-defined]  # a helper with a telling name, not a test


# --- bounds ----------------------------------------------------------------------------------------------------------


def adversarial_rows(width: int = 24) -> Tensor:
    """Over 400 rows a hostile record could have: float64, (n, width)."""
    generator = named_generator(0, "adversarial rows")
    rows = [torch.zeros(1, width), torch.eye(width), -torch.eye(width)]
    scales = [5e-324, 1e-310, 1e-300, 1e-160, 1e-30, 1e-3, 1.0, 1 + 2**-52, 1e3, 1e30, 1e160, 1e300, 1.7e308]
    for scale in scales:
        rows += [torch.full((1, width), sign * scale, dtype=torch.float64) for sign in (1.0, -1.0)]
        rows += [torch.eye(width, dtype=torch.float64)[:4] * scale]
        rows += [torch.rand(12, width, generator=generator, dtype=torch.float64) * scale]
        signs = torch.rand(4, width, generator=generator, dtype=torch.float64).sub(0.5).sign()
        rows += [signs * scale]
    for bad in (math.nan, math.inf, -math.inf):
        broken = torch.rand(6, width, generator=generator, dtype=torch.float64)
        broken[torch.arange(6), torch.arange(6) * 3] = bad
        rows += [broken, torch.full((1, width), bad, dtype=torch.float64)]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        largest = torch.finfo(dtype).max
        narrow = torch.randn(16, width, generator=generator).to(dtype)
        rows += [narrow.double(), torch.full((1, width), largest, dtype=dtype).double()]
        rows += [torch.full((1, width), torch.finfo(dtype).smallest_normal, dtype=dtype).double()]
    return torch.cat([row.to(torch.float64) for row in rows])


def bounded_forms(rows: Tensor, bound: float) -> list[bounds.Bounded]:
    forms = [
        make(rows, bound, nonnegative=nonnegative)
        for make in (bounds.clip_rows, bounds.normalise_rows)
        for nonnegative in (False, True)
    ]
    return forms + [bounds.with_total(form, 0.7 * bound) for form in forms]


def _norms(grid_rows: Tensor, grid_step: float) -> Tensor:
    return grid_rows.flatten(1).double().norm(dim=1) * grid_step


def check_sensitivity(bound: float = 1.0) -> None:
    """A1: no neighbour moves a sum by more than its stated sensitivity, for either adjacency."""
    rows = adversarial_rows()
    assert len(rows) >= 400
    generator = named_generator(1, "pairs")
    for form in bounded_forms(rows, bound):
        assert (_norms(form.grid_rows, form.grid_step) <= form.bound * ROUNDING).all()
        crowd, groups = torch.arange(len(form)), torch.randint(3, (len(form),), generator=generator)
        total = bounds.sum_rows(form)
        pairs = torch.randint(len(form), (2, 800), generator=generator)
        # A replaced record may keep its label (the rows subtract) or change it (they sit in different groups).
        same = form.grid_rows[pairs[0]] - form.grid_rows[pairs[1]]
        apart = torch.cat([form.grid_rows[pairs[0]], form.grid_rows[pairs[1]]], dim=1)
        for moved in (same, apart):
            assert (_norms(moved, form.grid_step) <= total.sensitivity(REPLACE) * ROUNDING).all()
        for left_out in crowd[::40]:
            sums = [bounds.GroupedSum(3) for _ in range(2)]
            for part, kept in zip(sums, (crowd, crowd[crowd != left_out]), strict=True):
                part.add(
                    bounds._on_grid(form.grid_rows[kept] * form.grid_step, form.bound, form.nonnegative), groups[kept]
                )
            difference = (sums[0].grid_total - sums[1].grid_total)[None]
            assert (_norms(difference, form.grid_step) <= sums[0].sensitivity(ADD) * ROUNDING).all()


def check_released_sensitivity(folder: Path) -> None:
    """A1 at the door: what leaves, without noise, moves by at most the sensitivity the noise is scaled to."""
    crowd = torch.zeros(40, 8)
    crowd[:, 0] = 5.0
    hostile = torch.cat([torch.eye(8), -torch.eye(8), torch.full((1, 8), 1e30), torch.full((1, 8), math.nan)]) * 100
    door = test_door(folder, noise.NoNoise(), Repeated(100, Gaussian(1.0)))

    def released(rows: Tensor) -> Tensor:
        return door.release_sum(bounds.sum_rows(bounds.clip_rows(rows, 1.0)), 1.0)

    base = released(crowd)
    for row in hostile:
        moved = released(torch.cat([crowd, row[None]])) - base
        assert moved.norm() <= 1.0 * ROUNDING


def check_rows_alone() -> None:
    """A row's result depends neither on its batch, nor on its place, nor on the memory layout."""
    generator = named_generator(2, "batches")
    for width in (5, 784, 40_000):
        rows = torch.randn(12, width, generator=generator, dtype=torch.float64) * 3
        rows[3] *= 1e6
        together = bounds.clip_rows(rows, 1.0).grid_rows
        by_column = rows.T.contiguous().T
        assert torch.equal(bounds.clip_rows(by_column, 1.0).grid_rows, together)
        for size in (1, 2, 5):
            pieces = [bounds.clip_rows(piece, 1.0).grid_rows for piece in rows.split(size)]
            assert torch.equal(torch.cat(pieces), together)
        assert torch.equal(bounds.clip_rows(rows.flip(0), 1.0).grid_rows.flip(0), together)


def check_exact_sums() -> None:
    """A sum is the same integer whatever the order and the batches; one record moves it by exactly its row."""
    rows = torch.randn(3000, 7, generator=named_generator(3, "sums"))
    form = bounds.clip_rows(rows, 1.0)
    groups = torch.arange(3000) % 4
    total = bounds.GroupedSum(4)
    total.add(form, groups)
    order = torch.randperm(3000, generator=named_generator(3, "order"))
    pieces = bounds.GroupedSum(4)
    for piece in order.split(271):
        pieces.add(bounds.clip_rows(rows[piece], 1.0), groups[piece])
    assert total.grid_total.dtype == torch.int64
    assert torch.equal(total.grid_total, pieces.grid_total)
    without = bounds.GroupedSum(4)
    without.add(bounds.clip_rows(rows[1:], 1.0), groups[1:])
    assert torch.equal(total.grid_total[0] - without.grid_total[0], form.grid_rows[0])


# --- noise -----------------------------------------------------------------------------------------------------------


def check_standard_normal(values: Tensor, scale: float) -> None:
    """A2: variance against chi-squared (1e-6, two-sided), Kolmogorov-Smirnov, autocorrelation at lags 1 to 16."""
    size = len(values)
    statistic = float((values / scale).square().sum())
    tail = min(stats.chi2.cdf(statistic, size), stats.chi2.sf(statistic, size))
    assert tail > 0.5e-6, f"variance off by {statistic / size - 1:+.4%}"
    assert stats.kstest(values.numpy() / scale, "norm").pvalue > FALSE_ALARM / 4
    limit = stats.norm.isf(FALSE_ALARM / 4 / 16 / 2) / math.sqrt(size)
    for lag in range(1, 17):
        correlation = float((values[lag:] * values[:-lag]).mean()) / scale**2
        assert abs(correlation) < limit, f"lag {lag}: {correlation}"


def check_released_noise(folder: Path, size: int = 1_000_000) -> None:
    """A2 at the door: on a zero sum the result is noise of noise_multiplier x sensitivity, on the grid."""
    shape = (1, size // 4)
    for adjacency, nonnegative, sensitivity in (
        (ADD, False, 0.5), (ADD, True, 0.5), (REPLACE, False, 1.0), (REPLACE, True, 0.5 * math.sqrt(2)),
    ):  # fmt: skip
        door = test_door(folder, noise.SeededNoise(11), Gaussian(3.0), adjacency)
        rows = bounds.clip_rows(torch.zeros(shape), 0.5, nonnegative=nonnegative)
        values = door.release_sum(bounds.sum_rows(rows), 3.0).flatten()
        check_standard_normal(values, 3.0 * sensitivity)
        assert torch.equal(values, (values / rows.grid_step).round() * rows.grid_step)


def check_released_rows_noise(folder: Path) -> None:
    """A2 for rows: the noise on each covers all of them turning round at once, 2 bounds * sqrt(rows)."""
    door = test_door(folder, noise.SeededNoise(12), Gaussian(1.5))
    rows = bounds.clip_rows(torch.zeros(16, 20_000), 0.25)
    check_standard_normal(door.release_rows(rows, 1.5).flatten(), 1.5 * 2 * 0.25 * math.sqrt(16))


def check_matched_filter(folder: Path, runs: int = 2000) -> None:
    """A3: the best attacker of the real door gains no more mu than was charged (false alarm 1e-4)."""
    multiplier, canary = 2.0, torch.zeros(1, 64)
    canary[0, 0] = 1e6
    others = torch.ones(5, 64) * 1e-3
    scores = []
    for world, rows in enumerate((others, torch.cat([others, canary]))):
        door = test_door(folder, noise.SeededNoise(20 + world), Repeated(runs, Gaussian(multiplier)))
        total = bounds.sum_rows(bounds.clip_rows(rows, 1.0))
        scores.append(torch.tensor([float(door.release_sum(total, multiplier)[0, 0]) for _ in range(runs)]))
    pooled = math.sqrt((scores[0].double().var() + scores[1].double().var()) / 2)
    gained = float(scores[1].double().mean() - scores[0].double().mean()) / max(pooled, 1e-12)
    claimed = 1 / multiplier
    error = math.sqrt(2 / runs + gained**2 / (4 * runs))
    assert gained - stats.norm.isf(FALSE_ALARM) * error <= claimed
    assert gained + stats.norm.isf(FALSE_ALARM) * error >= claimed * 0.99


def _blocks(source: noise.NoiseSource, draws: int = 50) -> list[bytes]:
    return [source.normal(8).numpy().tobytes() for _ in range(draws)]


def check_noise_unique() -> None:
    """A8: no block of noise repeats, within a source or between two (a resumed run is a new source)."""
    seen = _blocks(noise.NoiseSource()) + _blocks(noise.NoiseSource()) + _blocks(noise.SeededNoise(1))
    assert len(set(seen)) == len(seen)


def check_noise_after_fork() -> None:
    """A8: parent and child of a fork draw different noise."""
    source = noise.NoiseSource()
    source.normal(8)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.normal(8).numpy().tobytes())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        theirs = pipe.read()
    assert len(theirs) == 64
    assert theirs != source.normal(8).numpy().tobytes()


def check_test_noise_is_refused(folder: Path) -> None:
    for source in (noise.SeededNoise(0), noise.NoNoise()):
        private = open_ledger(folder / f"{type(source).__name__}.jsonl", Gaussian(1.0))
        with pytest.raises(NotBounded):
            release.Door(private, source)


# --- sampling --------------------------------------------------------------------------------------------------------

NUM_RECORDS, RATE, DRAWS = 2000, 0.05, 400
"""Sizes of audit A6."""


def check_poisson(batches: list[Tensor]) -> None:
    """A6: dispersion of batch sizes and of records' counts, and overlap of consecutive batches, are Poisson's."""
    member = torch.zeros(len(batches), NUM_RECORDS, dtype=torch.float64)
    for row, batch in zip(member, batches, strict=True):
        row[batch] = 1
    variance = RATE * (1 - RATE)
    sizes, counts = member.sum(dim=1), member.sum(dim=0)
    by_batch = float((sizes - NUM_RECORDS * RATE).square().sum()) / (NUM_RECORDS * variance)
    by_record = float((counts - DRAWS * RATE).square().sum()) / (DRAWS * variance)
    overlap = float((member[1:] * member[:-1]).sum(dim=1).mean())
    expected = NUM_RECORDS * RATE**2
    for statistic, freedom in ((by_batch, DRAWS), (by_record, NUM_RECORDS)):
        tail = min(stats.chi2.cdf(statistic, freedom), stats.chi2.sf(statistic, freedom))
        assert tail > FALSE_ALARM / 8, f"dispersion {statistic:.1f} of {freedom}"
    # Each overlap is Binomial(N, q^2); neighbours share a batch, so the mean's variance is below 2 q + 1 of theirs.
    deviation = math.sqrt(expected * (1 + 2 * RATE) / (DRAWS - 1))
    assert abs(overlap - expected) < stats.norm.isf(FALSE_ALARM / 8) * deviation, f"overlap {overlap}"


def check_sampler() -> None:
    source = noise.SeededNoise(30)
    check_poisson([sampling.poisson_draw(NUM_RECORDS, RATE, source).indices for _ in range(DRAWS)])


def check_draws_price_the_declared_rate() -> None:
    """A draw is priced by its public rate, never by what it happened to pick."""
    for seed in range(20):
        draw = sampling.poisson_draw(50, 0.1, noise.SeededNoise(seed))
        assert draw.price(Gaussian(2.0), 0.5) == PoissonSampled(0.1, Gaussian(2.0), 0.5)


def check_a_draw_feeds_one_release() -> None:
    source = noise.SeededNoise(0)
    for draw in (sampling.poisson_draw(50, 0.1, source), sampling.shard_draw(0, 4, "uniform", source)):
        draw.price(Gaussian(2.0), 1.0)
        with pytest.raises(UnsupportedEvent):
            draw.price(Gaussian(2.0), 1.0)


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
    open_ledger(path, Repeated(600, event), reserve=Repeated(60, event)).charge(event)
    ledger_before = ledger.LedgerRecord(ledger.read_chain(path.read_text().splitlines()))
    assert ledger_before.charged[event] == 500
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.fcntl, "flock", lambda *_: None)  # the crashed process would hold no lock
        book = ledger.PrivacyLedger.resume(path)
    paid = 0
    with pytest.raises(BudgetExceeded):
        while True:
            book.charge(event)
            paid += 1
    assert paid == 160
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
    event = Repeated(20_000, ShardTouched(1000, "uniform", GS_WGAN_STEP))
    assert accounting.price(event, DELTA, REPLACE).epsilon == pytest.approx(610.3, rel=1e-3)


def check_two_kinds_of_random_index_price() -> None:
    """Privacy notes, 10.2: DPAC with two barriers from step 6000 on, uniform index: 1042."""
    second = ShardTouched(1000, "uniform", Gaussian(1.07 / 8))
    event = Composed((Repeated(6000, ShardTouched(1000, "uniform", GS_WGAN_STEP)), Repeated(14_000, second)))
    assert accounting.price(event, DELTA, REPLACE).epsilon == pytest.approx(1042, rel=1e-3)


def check_prices_round_up() -> None:
    """The delta of a stated epsilon is never above the delta it was stated for."""
    for multiplier in (0.3, 0.71, 1.0, 3.731, 40.0):
        epsilon = accounting.price(Gaussian(multiplier), DELTA, ADD).epsilon
        mu = 1 / multiplier
        exact = stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
        assert exact <= DELTA * (1 + 1e-12)
