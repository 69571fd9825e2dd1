"""Properties, second accountants and refusals; the reference values are in test_accounting_reference.py."""

import math

import pytest
from account_checks import (
    check_prices_round_up,
)
from checks import ADD, DELTA, REPLACE
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from scipy.stats import binom

from veilset.errors import ConfigError, UnsupportedEvent
from veilset.privacy import accounting
from veilset.privacy.accounting import Price, calibrate, price, renyi_epsilon, single_mu_square
from veilset.privacy.bounds import Adjacency
from veilset.privacy.events import (
    NOTHING,
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    Repeated,
    Schedule,
    ShardTouched,
    steps,
)

FEDERATED_DELTA = 1.15e-3
THREE_DIGITS = 2e-3
SECOND_BARRIER_FROM = 6000


def shard_steps(count: int, num_shards: int, schedule: Schedule, rows: float = 32, noise: float = 1.07) -> Repeated:
    return Repeated(count, ShardTouched(num_shards, schedule, Gaussian(noise / math.sqrt(rows))))


def sampled(count: int, rate: float, noise: float, absence: float = 1.0) -> Repeated:
    return Repeated(count, PoissonSampled(rate, Gaussian(noise), absence))


# --- second accountants ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "rate", "count"), [(1.0, 0.01, 500), (2.1, 0.01, 1000), (0.8, 0.02, 100)])
def test_numerical_composition_by_other_code_brackets_the_price(noise: float, rate: float, count: int) -> None:
    # prv-accountant (Gopi, Lee and Wutschitz 2021): a certified interval.
    mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    other = PRVAccountant(prvs=[mechanism], max_self_compositions=[count], eps_error=0.02, delta_error=1e-9)
    low, _, high = other.compute_epsilon(delta=DELTA, num_self_compositions=[count])
    assert low <= price(sampled(count, rate, noise), DELTA, ADD).epsilon <= high


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(0.5),
        Repeated(50, Gaussian(7.0)),
        sampled(1000, 0.01, 1.0),
        PoissonSampled(0.2, Repeated(4, Gaussian(3.0))),
        Composed((sampled(300, 0.02, 1.5), Gaussian(4.0))),
        shard_steps(100, 10, "round-robin", rows=1, noise=5.0),
    ],
    ids=str,
)
def test_renyi_accounting_is_never_below_the_price(event: Event) -> None:
    assert renyi_epsilon(event, DELTA, ADD) >= price(event, DELTA, ADD).epsilon


def test_renyi_accounting_stays_silent_without_a_proof() -> None:
    assert renyi_epsilon(sampled(10, 0.1, 1.0), DELTA, REPLACE) is None
    assert renyi_epsilon(shard_steps(10, 5, "uniform"), DELTA, ADD) is None


def test_sampled_releases_compose_with_plain_ones() -> None:
    both = price(Composed((sampled(300, 0.02, 1.5), Gaussian(4.0))), DELTA, ADD).epsilon
    parts = [price(part, DELTA, ADD).epsilon for part in (sampled(300, 0.02, 1.5), Gaussian(4.0))]
    assert max(parts) < both < sum(parts)


def test_drawn_shards_and_sampled_records_cost_the_average_over_the_public_draws() -> None:
    """By hand: given how often the unit's shard was drawn, its releases there are plain Gaussians."""
    both = Composed((shard_steps(6, 3, "uniform", rows=1, noise=3.0), sampled(300, 0.02, 1.5)))
    epsilon = price(both, DELTA, ADD).epsilon
    sample = from_gaussian_mechanism(1.5, sampling_prob=0.02).self_compose(300)
    drawn = [sample, *(sample.compose(from_gaussian_mechanism(3 / math.sqrt(n))) for n in range(1, 7))]
    chances = binom.pmf(range(7), 6, 1 / 3)
    deltas = [chances @ [pld.get_delta_for_epsilon(epsilon * factor) for pld in drawn] for factor in (1.0001, 0.9999)]
    assert deltas[0] < DELTA < deltas[1]


def test_shards_that_are_always_drawn_are_plain_releases_beside_sampled_ones() -> None:
    always = Composed((shard_steps(5, 1, "uniform", rows=1, noise=3.0), sampled(300, 0.02, 1.5)))
    plain = Composed((Repeated(5, Gaussian(3.0)), sampled(300, 0.02, 1.5)))
    assert price(always, DELTA, ADD).epsilon == pytest.approx(price(plain, DELTA, ADD).epsilon, rel=1e-9)


def test_millions_of_large_samples_are_priced_to_the_last_digits() -> None:
    """Reference: one FFT of the same grid of losses in long doubles, raised to the number of releases."""
    found = price(sampled(5_000_000, 0.8333, 931.48), DELTA, ADD).epsilon
    assert found == pytest.approx(10.0124571, abs=2e-6)


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
def test_samples_are_not_priced_at_a_delta_that_rounding_can_be_seen_in(adjacency: Adjacency) -> None:
    """At 1e-12 float64 made epsilon smaller than it is by up to one in a hundred."""
    assert price(sampled(300, 0.02, 1.5), 1e-8, adjacency).epsilon > 0
    with pytest.raises(UnsupportedEvent, match="a delta of at least 1e-08"):
        price(sampled(300, 0.02, 1.5), 0.99e-8, adjacency)
    assert price(Gaussian(1.5), 1e-12, adjacency).epsilon > 0


# --- properties ------------------------------------------------------------------------------------------------------

noises = st.floats(0.6, 20)
counts = st.integers(1, 300)
rates = st.sampled_from([0.004, 0.05, 0.5])
kinds = st.sampled_from(["plain", "sampled", "round-robin", "uniform"])
adjacencies = st.sampled_from(list(Adjacency))


def of_kind(kind: str, count: int, noise: float, rate: float) -> Event:
    if kind == "plain":
        return Repeated(count, Gaussian(noise))
    if kind == "sampled":
        return sampled(count, rate, noise)
    return shard_steps(count, 7, "round-robin" if kind == "round-robin" else "uniform", noise=noise)


@given(kind=kinds, count=counts, noise=noises, rate=rates, adjacency=adjacencies)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_price_rises_with_count_and_falls_with_noise(
    kind: str, count: int, noise: float, rate: float, adjacency: Adjacency
) -> None:
    base = price(of_kind(kind, count, noise, rate), DELTA, adjacency).epsilon
    more = price(of_kind(kind, count + 7, noise, rate), DELTA, adjacency).epsilon
    quieter = price(of_kind(kind, count, noise * 1.05, rate), DELTA, adjacency).epsilon
    assert quieter <= base <= more


@given(kind=kinds, count=counts, rate=rates, epsilon=st.sampled_from([0.5, 1.0, 10.0]), adjacency=adjacencies)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_calibration_lands_on_the_private_side_and_close_to_it(
    kind: str, count: int, rate: float, epsilon: float, adjacency: Adjacency
) -> None:
    noise = calibrate(lambda z: of_kind(kind, count, z, rate), epsilon, DELTA, adjacency)
    assert price(of_kind(kind, count, noise, rate), DELTA, adjacency).epsilon <= epsilon
    assert price(of_kind(kind, count, noise * 0.999, rate), DELTA, adjacency).epsilon > epsilon


def test_calibration_of_many_large_samples_prices_nothing_far_below_the_noise_it_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def noted(event: Event, delta: float, adjacency: Adjacency) -> Price:
        tried.extend(step.event.noise_multiplier for step in steps(event))  # type: ignore[attr-defined]
        return price(event, delta, adjacency)

    monkeypatch.setattr(accounting, "price", noted)
    found = calibrate(lambda noise: sampled(5000, 0.5, noise), 1.0, DELTA, ADD)
    # At noise 1 the losses of these releases add up to thousands, and their distribution fills gigabytes.
    assert found > 100
    assert min(tried) > found / 4


@given(kind=kinds, count=st.integers(1, 12), noise=noises, rate=rates)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_repeating_equals_that_many_copies(kind: str, count: int, noise: float, rate: float) -> None:
    single = of_kind(kind, 1, noise, rate).event
    repeated, copies = (price(event, DELTA, ADD) for event in (Repeated(count, single), Composed((single,) * count)))
    if isinstance(single, ShardTouched) and single.schedule == "round-robin":
        assert copies.epsilon >= repeated.epsilon  # separate repetitions may all meet the same shard
    else:
        assert repeated == copies


def test_stretches_of_a_round_robin_are_rounded_up_one_by_one() -> None:
    """Fifty runs of one step over 1,000 shards may touch the same shard fifty times."""
    step = ShardTouched(1000, "round-robin", Gaussian(1.0))
    apart = price(Composed((step,) * 50), DELTA, ADD)
    assert apart == price(Repeated(50, Gaussian(1.0)), DELTA, ADD)
    assert price(Repeated(50, step), DELTA, ADD) == price(Gaussian(1.0), DELTA, ADD)


def test_a_replaced_record_may_change_its_shard_unless_slots_are_fixed() -> None:
    """privacy notes, 10.1: 701 instead of 379 for GS-WGAN's round robin with hashed shards."""
    hashed = Repeated(20_000, ShardTouched(1000, "round-robin", Repeated(32, Gaussian(1.07))))
    fixed = Repeated(20_000, ShardTouched(1000, "round-robin", Repeated(32, Gaussian(1.07)), fixed_slots=True))
    assert price(hashed, DELTA, REPLACE).epsilon == pytest.approx(701, abs=0.5)
    assert price(fixed, DELTA, REPLACE).epsilon == pytest.approx(379.4, abs=0.05)
    assert price(hashed, DELTA, ADD) == price(fixed, DELTA, ADD)


def test_one_draw_that_feeds_two_releases_costs_more_than_two_draws() -> None:
    together = Repeated(200, PoissonSampled(0.05, Composed((Gaussian(1.0), Gaussian(1.0)))))
    assert price(together, DELTA, ADD).epsilon > 1.1 * price(sampled(400, 0.05, 1.0), DELTA, ADD).epsilon


def test_sampling_everything_is_no_sampling() -> None:
    assert price(sampled(5, 1.0, 2.0), DELTA, ADD) == price(Repeated(5, Gaussian(2.0)), DELTA, ADD)


def test_a_smaller_absence_never_costs_more_under_replace() -> None:
    prices = [price(sampled(500, 0.02, 1.0, absence), DELTA, REPLACE).epsilon for absence in (0.5, 0.5**0.5, 1.0)]
    assert prices == sorted(prices)


def test_prices_round_up() -> None:
    check_prices_round_up()


def test_squares_of_mu_add() -> None:
    event = Composed((Repeated(3, Gaussian(2.0)), Gaussian(0.5), PoissonSampled(1.0, Gaussian(1.0))))
    assert single_mu_square(event) == pytest.approx(3 / 4 + 4 + 1)


def test_nothing_costs_nothing() -> None:
    assert price(NOTHING, DELTA, ADD).epsilon == 0


# --- refusals --------------------------------------------------------------------------------------------------------


def test_losses_that_would_fill_the_memory_are_refused_with_numbers() -> None:
    with pytest.raises(UnsupportedEvent, match=r"8.4e\+06 cells\n.*7.6e\+07, for 5,000,000 releases"):
        price(sampled(5_000_000, 10 / 12, 4.0), DELTA, ADD)
    with pytest.raises(UnsupportedEvent, match="5 releases on samples and all others together"):
        price(Composed((Gaussian(0.01), sampled(5, 0.1, 10.0))), DELTA, ADD)


@pytest.mark.parametrize(
    "inner",
    [PoissonSampled(0.1, Gaussian(1.0)), ShardTouched(5, "uniform", Gaussian(1.0))],
    ids=["sampling inside a draw", "shards inside a draw"],
)
def test_nestings_without_a_proof_are_refused(inner: Event) -> None:
    for outer in (PoissonSampled(0.1, inner), ShardTouched(5, "round-robin", inner)):
        with pytest.raises(UnsupportedEvent):
            price(outer, DELTA, ADD)


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(UnsupportedEvent):
        price("gaussian", DELTA, ADD)


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.0, -1e-5, math.nan])
def test_an_unusable_delta_is_refused(delta: float) -> None:
    with pytest.raises(ConfigError):
        price(Gaussian(1.0), delta, ADD)


def test_an_epsilon_out_of_reach_is_refused() -> None:
    with pytest.raises(ConfigError):
        calibrate(lambda z: ShardTouched(1, "round-robin", Gaussian(z / 1e9)), 1.0, DELTA, ADD)
