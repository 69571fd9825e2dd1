"""From an event tree to epsilon. Exact where a formula exists, otherwise the tightest proven bound at hand.

Gaussian releases, alone or on shards with a known schedule, are priced exactly in-house (scipy only). Poisson-sampled
ones go through the privacy-loss distributions of `dp-accounting`, rounded pessimistically. Renyi accounting of the
same tree, by other code, is the cross-check. What has no proof here is refused.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from veilset.errors import ConfigError, MissingExtra, UnsupportedEvent
from veilset.privacy.bounds import Adjacency
from veilset.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated, ShardTouched, from_steps, steps
from veilset.privacy.gaussian import check_delta, gaussian_deltas, gaussian_epsilon, gaussian_mu, smallest_epsilon

MuSquares = dict[float, float]
"""A distribution over the squared Gaussian-DP parameter: value -> probability."""
BLOCK, CELLS, TAIL, FINEST = 100_000, 2**23, 1e-20, 1e-8
"""Releases composed at once, cells of a distribution (a gigabyte), tails taken as infinite, the least sampled delta."""


@dataclass(frozen=True)
class Price:
    """An epsilon with its pedigree. `mu` is set where the whole composition is one Gaussian."""

    epsilon: float
    delta: float
    accountant: str
    mu: float | None = None


def price(event: Event, delta: float, adjacency: Adjacency) -> Price:
    """Epsilon of `event` at `delta`. Noise multipliers are relative to the sensitivity for this adjacency.

    Guarantee: an upper bound on the true epsilon, exact for compositions of Gaussians and for shards with a known or
      revealed schedule.
    Raises: UnsupportedEvent for combinations without a proof; nothing is guessed.
    """
    check_delta(delta)
    counts = steps(_touches(event, adjacency))
    sampled = {step: n for step, n in counts.items() if isinstance(step, PoissonSampled) and step.rate < 1}
    squares = _mu_squares(Counter({step: n for step, n in counts.items() if step not in sampled}), adjacency)
    if sampled:
        return Price(_pld_epsilon(sampled, squares, delta, adjacency), delta, "PLD (dp-accounting)")
    if len(squares) == 1:
        mu = math.sqrt(next(iter(squares)))
        return Price(gaussian_epsilon(mu, delta), delta, "exact Gaussian", mu)
    return Price(_mixture_epsilon(squares, delta), delta, "exact Gaussian mixture")


def single_mu_square(event: Event) -> float:
    """mu^2 of a composition of plain Gaussians on the same records: squares add, also adaptively."""
    match event:
        case Gaussian(noise_multiplier):
            return noise_multiplier**-2
        case Repeated(count, inner):
            return count * single_mu_square(inner)
        case Composed(events):
            return sum((single_mu_square(inner) for inner in events), 0.0)
        case PoissonSampled(rate, inner) if rate == 1:
            return single_mu_square(inner)
        case _:
            raise UnsupportedEvent("Gaussian releases inside a draw", f"{event}", "No proof for this nesting is known.")


def _shards_of_a_unit(step: ShardTouched, adjacency: Adjacency) -> int:
    return 1 if adjacency is Adjacency.ADD_REMOVE or step.fixed_slots else 2


def _touches(event: Event, adjacency: Adjacency) -> Event:
    """The most releases a unit's own shards take part in: each repetition of round-robin steps becomes touches."""
    match event:
        case Composed(events):
            return Composed(tuple(_touches(inner, adjacency) for inner in events))
        case Repeated(count, ShardTouched(num_shards, "round-robin", inner) as step):
            single_mu_square(inner)  # refuses a draw inside a draw
            return Repeated(_shards_of_a_unit(step, adjacency) * -(-count // num_shards), inner)
        case ShardTouched(_, "round-robin", _):
            return _touches(Repeated(1, event), adjacency)
        case Repeated(count, inner):
            return Repeated(count, _touches(inner, adjacency))
        case _:
            return event


def _mu_squares(counts: Counter[Event], adjacency: Adjacency) -> MuSquares:
    """Distribution of mu^2 for the unit's own shard; index draws are public, so delta is averaged over them."""
    result: MuSquares = {0.0: 1.0}
    for step, times in counts.items():
        if isinstance(step, ShardTouched):
            mixture = _touch_distribution(times, step, _shards_of_a_unit(step, adjacency))
        else:
            mixture = {times * single_mu_square(step): 1.0}
        joint: MuSquares = {}
        for (a, p), (b, q) in itertools.product(result.items(), mixture.items()):
            joint[a + b] = joint.get(a + b, 0.0) + p * q  # different touches may cost the same: their chances add
        result = joint
    return result


def _touch_distribution(times: int, step: ShardTouched, own: int) -> MuSquares:
    """Touches ~ Binomial(times, own / shards); the far upper tail is charged as if every step touched."""
    each, rate = single_mu_square(step.event), min(own / step.num_shards, 1.0)
    tails = binom.sf(np.arange(times + 1), times, rate)
    last = int(np.argmax(tails <= 1e-30))
    chances = binom.pmf(np.arange(last + 1), times, rate)
    distribution = {n * each: float(chance) for n, chance in enumerate(chances)}
    if last < times:
        distribution[times * each] = float(tails[last])
    return distribution


def _mixture_epsilon(squares: MuSquares, delta: float) -> float:
    mus, chances = np.array([(math.sqrt(square), chance) for square, chance in squares.items() if square > 0]).T
    return smallest_epsilon(lambda e: float(chances @ gaussian_deltas(mus, e)), delta)


def _pld_epsilon(sampled: dict[PoissonSampled, int], squares: MuSquares, delta: float, adjacency: Adjacency) -> float:
    """Drawn shards are public: given them the rest is Gaussian, so its losses are a mixture, which composes."""
    parts = [(step, math.sqrt(single_mu_square(step.event)), times) for step, times in sampled.items()]
    largest, top = max(each for _, each, _ in parts), _mixture_epsilon(squares, TAIL) if any(squares) else 0.0
    grid = 1e-4 if largest < 1 else 5e-4 if largest < 2 else 5e-3  # fine where losses are small, else coarse
    _check_room(parts, top, grid, delta)
    losses = np.arange(math.ceil(top / grid) + 1, dtype=np.float64) * grid
    curves = (chance * gaussian_deltas(math.sqrt(square), losses) for square, chance in squares.items() if square > 0)
    total = _symmetric_pld(sum(curves, 0 * losses), grid)
    make = _replace_pld if adjacency is Adjacency.REPLACE else _add_remove_pld
    for step, each, times in parts:  # millions in blocks: at once they would take minutes, gigabytes and many digits
        one, (blocks, rest) = make(step, each, grid), divmod(times, BLOCK)
        total = total.compose(one.self_compose(BLOCK).self_compose(blocks)) if blocks else total
        total = total.compose(one.self_compose(rest)) if rest else total
    return float(total.get_epsilon_for_delta(delta))


def _check_room(parts: list[tuple[PoissonSampled, float, int]], top: float, grid: float, delta: float) -> None:
    """Refuses losses on more cells than memory should be filled with, and deltas near the 1e-12 that rounding adds."""
    if delta < FINEST:
        todo = "Use a larger delta, or a method without sampling (sketch, dp-merf): its price is exact."
        raise UnsupportedEvent(f"a delta of at least {FINEST:g} for releases on samples", f"{delta:g}", todo)
    terms = [(step.rate, min(mu * mu, 700.0), times) for step, mu, times in parts]
    variance = sum(n * rate * min(rate * math.expm1(square), square + square**2 / 4) for rate, square, n in terms)
    cells = (16 * math.sqrt(variance) + max(square for _, square, _ in terms) / 2 + 2 * top) / grid
    if cells > CELLS:
        found = f"{cells:.2g}, for {sum(n for *_, n in parts):,} releases on samples and all others together"
        raise UnsupportedEvent(f"losses on at most {CELLS:.2g} cells", found, "Use fewer releases or more noise.")


def _add_remove_pld(step: PoissonSampled, mu: float, grid: float) -> Any:
    return _dp_accounting().pld.privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, sampling_prob=step.rate, value_discretization_interval=grid
    )


def _replace_pld(step: PoissonSampled, mu: float, grid: float) -> Any:
    """Poisson sampling under replace, by advanced joint convexity (Balle, Barthe and Gaboardi 2018, theorem 2).

    The draw without the record is common to both worlds. With e' = log(1 + (exp(e) - 1) / rate), b = exp(e - e'):
    H(e) <= rate * ((1 - b) * delta of (record, no record) + b * delta of (record, other record)), each at e'.
    Both directions obey it, so the symmetrised curve dominates.
    """
    top = math.ceil(math.log1p(step.rate * math.expm1(min(mu * mu / 2 + 12 * mu, 700.0))) / grid)
    epsilons = np.arange(top + 1) * grid
    inner = np.log1p(np.expm1(epsilons) / step.rate)
    share = np.exp(epsilons - inner)
    absent, other = gaussian_deltas(step.absence * mu, inner), gaussian_deltas(mu, inner)
    return _symmetric_pld(step.rate * ((1 - share) * absent + share * other), grid)


def _symmetric_pld(positive: NDArray[np.float64], grid: float) -> Any:
    """Of a curve H(e) at e = 0, grid, 2 grid, ... that both directions obey; H(-e) follows from H(e)."""
    pld, top = _dp_accounting().pld, len(positive) - 1
    epsilons = np.arange(top + 1) * grid
    negative = (-np.expm1(-epsilons) + np.exp(-epsilons) * positive)[:0:-1]
    deltas = np.minimum.accumulate(np.concatenate([negative, positive]).clip(0, 1))
    return pld.privacy_loss_distribution.PrivacyLossDistribution(
        pld.pld_pmf.create_pmf_pessimistic_connect_dots(grid, np.arange(-top, top + 1), deltas)
    )


def renyi_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float | None:
    """The same tree priced by Renyi accounting: other code, looser bound. None where that code has no proof either."""
    dp = _dp_accounting()
    relation = "REPLACE_ONE" if adjacency is Adjacency.REPLACE else "ADD_OR_REMOVE_ONE"
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation[relation])
    try:
        accountant.compose(_dp_event(from_steps(steps(_touches(event, adjacency)))))
    except (dp.UnsupportedEventError, UnsupportedEvent):
        return None
    return float(accountant.get_epsilon(delta))


def _dp_event(event: Event) -> Any:
    dp = _dp_accounting()
    match event:
        case Gaussian(noise_multiplier):
            return dp.GaussianDpEvent(noise_multiplier)
        case PoissonSampled(rate, inner):
            return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(single_mu_square(inner) ** -0.5))
        case Repeated(count, inner):
            return dp.SelfComposedDpEvent(_dp_event(inner), count)
        case Composed(events):
            return dp.ComposedDpEvent([_dp_event(inner) for inner in events])
        case _:
            raise UnsupportedEvent("an event Renyi accounting knows", f"{event}", "There is no cross-check for it.")


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise MissingExtra("dp-accounting", "", "pricing sampled releases") from error
    return dp_accounting


def calibrate(event_for: Callable[[float], Event], epsilon: float, delta: float, adjacency: Adjacency) -> float:
    """The smallest noise multiplier at which `event_for(it)` costs at most `epsilon`; lands on the private side."""
    counts, mu = steps(event_for(1.0)), gaussian_mu(epsilon, delta)
    if all(isinstance(step, Gaussian) for step in counts):
        exact = math.sqrt(single_mu_square(event_for(1.0))) / mu
        if price(event_for(exact), delta, adjacency).epsilon <= epsilon:
            return exact

    def excess(multiplier: float) -> float:
        return price(event_for(multiplier), delta, adjacency).epsilon - epsilon

    sampled = [(step, n) for step, n in counts.items() if isinstance(step, PoissonSampled)]
    square = sum(n * step.rate**2 * single_mu_square(step.event) for step, n in sampled)
    # Begun at the central limit: far below it losses spread so wide that pricing them could take all memory.
    high = max(1.0, math.sqrt(square) / mu)
    low = high / 2
    while excess(high) > 0:
        low, high = high, high * 2
        if high > 1e7:
            raise ConfigError("an epsilon that can be reached", f"{epsilon}", "Use fewer steps or a larger epsilon.")
    while low > 1e-3 and excess(low) <= 0:
        low, high = low / 2, low
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
    return high
