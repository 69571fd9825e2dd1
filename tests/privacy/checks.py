"""The kernel's reusable checks: each passes on the kernel as it is and fails on at least one mutant of it.

Names of the audits (A1, A2, ...) are those of the privacy notes, section 6.3. Kernel functions are reached through
their modules, so that a mutant patched into a module is what a check sees. Statistical checks use fixed test noise and
a false alarm of at most 1e-4.
"""

import math
import os
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from veilset.errors import NotBounded, UnsupportedEvent
from veilset.privacy import bounds, ledger, noise, release, sampling
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import NOTHING, Composed, Event, Gaussian, PoissonSampled, Repeated
from veilset.randomness import named_generator

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE
DELTA = 1e-5
ROUNDING = 1 + 1e-9
"""Norms are recomputed here in floats; the kernel's own are exact."""
FALSE_ALARM = 1e-4


def open_ledger(path: Path, planned: Event = NOTHING, **terms: object) -> ledger.PrivacyLedger:
    defaults = {"reserve": NOTHING, "adjacency": ADD, "unit": Unit.RECORD, "delta": DELTA, "not_private": None}
    return ledger.PrivacyLedger.open_new(path, planned=planned, **{**defaults, **terms})


def make_door(
    folder: Path, source: noise.NoiseSource, planned: Event, adjacency: Adjacency = ADD, unit: Unit = Unit.RECORD
) -> release.Door:
    """A door on a ledger that says it is a test, with a name of its own for each call."""
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    return release.Door(open_ledger(path, planned, adjacency=adjacency, unit=unit, not_private="test"), source)


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
                part.add(bounds._on_grid(form.grid_rows[kept], form.bound, form.nonnegative), groups[kept])
            difference = (sums[0].grid_total - sums[1].grid_total)[None]
            assert (_norms(difference, form.grid_step) <= sums[0].sensitivity(ADD) * ROUNDING).all()


def check_released_sensitivity(folder: Path) -> None:
    """A1 at the door: what leaves, without noise, moves by at most the sensitivity the noise is scaled to."""
    crowd = torch.zeros(40, 8)
    crowd[:, 0] = 5.0
    hostile = torch.cat([torch.eye(8), -torch.eye(8), torch.full((1, 8), 1e30), torch.full((1, 8), math.nan)]) * 100
    door = make_door(folder, noise.NoNoise(), Repeated(100, Gaussian(1.0)))

    def released(rows: Tensor) -> Tensor:
        return door.release_sum(bounds.sum_rows(bounds.clip_rows(rows, 1.0)), 1.0)

    base = released(crowd)
    for row in hostile:
        moved = released(torch.cat([crowd, row[None]])) - base
        assert moved.norm() <= 1.0 * ROUNDING


def check_shard_sums() -> None:
    """A1 for black boxes: a shard's row turns to its opposite, and under replace so does that of another shard."""
    first, second = torch.eye(6).repeat(2, 1) * 3, torch.eye(6).repeat(2, 1) * 3
    for turned, adjacency in ((1, ADD), (2, REPLACE)):
        second[::6][:turned] = -first[::6][:turned]
        totals = [bounds.sum_shards(bounds.normalise_rows(rows)) for rows in (first, second)]
        moved = (totals[0].grid_total - totals[1].grid_total).double().norm() * totals[0].grid_step
        assert 2 * turned * (1 - 1e-5) <= moved <= totals[0].sensitivity(adjacency) * ROUNDING


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
    assert torch.equal(total.grid_total[0] - without.grid_total[0], form.grid_rows[0].long())


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
    shape = (1, size)
    for adjacency, nonnegative, sensitivity in (
        (ADD, False, 0.5), (ADD, True, 0.5), (REPLACE, False, 1.0), (REPLACE, True, 0.5 * math.sqrt(2)),
    ):  # fmt: skip
        door = make_door(folder, noise.SeededNoise(11), Gaussian(3.0), adjacency)
        rows = bounds.clip_rows(torch.zeros(shape), 0.5, nonnegative=nonnegative)
        values = door.release_sum(bounds.sum_rows(rows), 3.0).flatten()
        check_standard_normal(values, 3.0 * sensitivity)
        assert torch.equal(values, (values / rows.grid_step).round() * rows.grid_step)


def check_released_rows_noise(folder: Path) -> None:
    """A2 for rows: the noise on each covers all of them turning round at once, 2 bounds * sqrt(rows)."""
    door = make_door(folder, noise.SeededNoise(12), Gaussian(1.5))
    rows = bounds.clip_rows(torch.zeros(16, 20_000), 0.25)
    check_standard_normal(door.release_rows(rows, 1.5).flatten(), 1.5 * 2 * 0.25 * math.sqrt(16))


def check_matched_filter(folder: Path, runs: int = 2000) -> None:
    """A3: the best attacker of the real door gains no more mu than was charged (false alarm 1e-4)."""
    multiplier, canary = 2.0, torch.zeros(1, 64)
    canary[0, 0] = 1e6
    others = torch.ones(5, 64) * 1e-3
    scores = []
    for world, rows in enumerate((others, torch.cat([others, canary]))):
        door = make_door(folder, noise.SeededNoise(20 + world), Repeated(runs, Gaussian(multiplier)))
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


def check_releases_on_one_draw_are_priced_together() -> None:
    """Sampled(Composed) with the first release, nothing more with the second, and no third or other one."""
    first, second, rate = Gaussian(2.0), Gaussian(3.0), 0.1

    def draw() -> sampling.Draw:
        return sampling.poisson_draw(50, rate, noise.SeededNoise(0), (first, second))

    one = draw()
    assert one.price(first, 0.5) == PoissonSampled(rate, Composed((first, second)), 0.5)
    one.paid()
    assert one.price(second, 0.5) == NOTHING
    for *before, wrong in ((first, second, second), (first, first), (second,), (first, Gaussian(2.9))):
        other = draw()
        for event in before:
            other.price(event, 0.5)
            other.paid()
        with pytest.raises(UnsupportedEvent):
            other.price(wrong, 0.5)
    other = draw()
    other.price(first, 0.5)
    other.paid()
    with pytest.raises(UnsupportedEvent):
        other.price(second, 1.0)
    unpaid = draw()
    unpaid.price(first, 0.5)
    with pytest.raises(UnsupportedEvent):
        unpaid.price(second, 0.5)
