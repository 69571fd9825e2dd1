"""Reference values are those of the privacy notes (claim or table in the id); all were computed there independently."""

import math

import dp_accounting
import pytest
from account_checks import (
    GS_WGAN_STEP,
    check_hidden_index_price,
    check_random_index_price,
    check_two_kinds_of_random_index_price,
)
from checks import ADD, DELTA, REPLACE
from dp_accounting.pld import privacy_loss_distribution

from veilset.engines.published_accounting import classic_gaussian_epsilon
from veilset.privacy.accounting import calibrate, price
from veilset.privacy.bounds import Adjacency
from veilset.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated, Schedule, ShardTouched
from veilset.privacy.gaussian import gaussian_epsilon

FEDERATED_DELTA = 1.15e-3
THREE_DIGITS = 2e-3
SECOND_BARRIER_FROM = 6000


def shard_steps(count: int, num_shards: int, schedule: Schedule, rows: float = 32, noise: float = 1.07) -> Repeated:
    return Repeated(count, ShardTouched(num_shards, schedule, Gaussian(noise / math.sqrt(rows)), fixed_slots=True))


def sampled(count: int, rate: float, noise: float, absence: float = 1.0) -> Repeated:
    return Repeated(count, PoissonSampled(rate, Gaussian(noise), absence))


# --- GS-WGAN and DPAC at their published noise -----------------------------------------------------------------------


def test_hidden_index_with_all_rows_of_a_step_in_one_draw() -> None:
    check_hidden_index_price()  # table 1, row d, lower value


def test_random_public_index() -> None:
    check_random_index_price()  # table 1, row g


@pytest.mark.parametrize(
    ("event", "delta", "adjacency", "epsilon"),
    [
        pytest.param(
            Repeated(20_000, PoissonSampled(1e-3, GS_WGAN_STEP)), DELTA, REPLACE, 346.7, id="table 1, row d, replace"
        ),
        pytest.param(
            Repeated(30_000, PoissonSampled(1 / 866, GS_WGAN_STEP)), FEDERATED_DELTA, ADD, 404.2, id="row d, federated"
        ),
        pytest.param(
            Repeated(30_000, PoissonSampled(1 / 866, GS_WGAN_STEP)), FEDERATED_DELTA, REPLACE, 434.2,
            id="row d, federated, replace",
        ),
        pytest.param(shard_steps(20_000, 1000, "round-robin"), DELTA, REPLACE, 379.4, id="row e, central"),
        pytest.param(shard_steps(30_000, 866, "round-robin"), FEDERATED_DELTA, REPLACE, 583.5, id="row e, federated"),
        pytest.param(
            shard_steps(20_000, 1000, "round-robin", noise=1.07 / 2), DELTA, REPLACE, 1318.7, id="row f, central"
        ),
        pytest.param(shard_steps(30_000, 866, "uniform"), FEDERATED_DELTA, REPLACE, 774.3, id="row g, federated"),
        pytest.param(Repeated(20_000, GS_WGAN_STEP), DELTA, REPLACE, 2.83e5, id="row h, central"),
        pytest.param(Repeated(30_000, GS_WGAN_STEP), FEDERATED_DELTA, REPLACE, 4.22e5, id="row h, federated"),
        pytest.param(
            Repeated(30_000, ShardTouched(866, "round-robin", Repeated(5, GS_WGAN_STEP), fixed_slots=True)),
            FEDERATED_DELTA, REPLACE, 2658, id="claim 1.7a, the server sees every inner iteration",
        ),
        pytest.param(shard_steps(30_000, 866, "round-robin"), DELTA, REPLACE, 621.6, id="claim 1.7a, delta 1e-5"),
    ],
)  # fmt: skip
def test_gs_wgan_at_its_published_noise(event: Event, delta: float, adjacency: Adjacency, epsilon: float) -> None:
    assert price(event, delta, adjacency).epsilon == pytest.approx(epsilon, rel=THREE_DIGITS)


def test_round_robin_mu_of_gs_wgan() -> None:
    # Table 1, row e: mu 23.64.
    assert price(shard_steps(20_000, 1000, "round-robin"), DELTA, REPLACE).mu == pytest.approx(23.64, rel=2e-4)


def test_rows_of_table_one_that_count_fractions_of_a_touch() -> None:
    touches = 30_000 / 866 * 32
    assert gaussian_epsilon(math.sqrt(touches) / 1.07, FEDERATED_DELTA) == pytest.approx(578.0, rel=1e-4)  # row e
    assert gaussian_epsilon(2 * math.sqrt(touches) / 1.07, FEDERATED_DELTA) == pytest.approx(2125, rel=1e-3)  # row f
    assert classic_gaussian_epsilon(1.07, 20 * 32, DELTA) == pytest.approx(392.95, rel=1e-4)  # row e', central
    assert classic_gaussian_epsilon(1.07, touches, FEDERATED_DELTA) == pytest.approx(598.6, rel=1e-4)  # row e'


@pytest.mark.parametrize(
    ("rows", "schedule", "epsilon"),
    [
        pytest.param(32, "uniform", 610.3, id="10.2: one barrier, random index"),
        pytest.param(64, "uniform", 1042, id="10.2: two barriers, random index"),
        pytest.param(2000, "uniform", 28_604, id="10.2: the code, random index"),
        pytest.param(32, "round-robin", 379.4, id="10.2: one barrier, round robin"),
        pytest.param(64, "round-robin", 605.7, id="claim 3.3: two barriers, round robin"),
        pytest.param(2000, "round-robin", 12_980, id="claim 3.4: the code, round robin"),
    ],
)
def test_dpac_at_its_published_noise(rows: int, schedule: Schedule, epsilon: float) -> None:
    first = shard_steps(SECOND_BARRIER_FROM, 1000, schedule)
    second = shard_steps(20_000 - SECOND_BARRIER_FROM, 1000, schedule, rows)
    assert price(Composed((first, second)), DELTA, REPLACE).epsilon == pytest.approx(epsilon, rel=THREE_DIGITS)


def test_dpac_with_the_default_of_its_code() -> None:
    # Claim 3.4: second barrier from step 15000 on, 4984.
    event = Composed((shard_steps(15_000, 1000, "round-robin"), shard_steps(5_000, 1000, "round-robin", 2000)))
    assert price(event, DELTA, REPLACE).epsilon == pytest.approx(4984, rel=THREE_DIGITS)


def test_two_kinds_of_touches_that_cost_the_same_together_keep_their_chances() -> None:
    check_two_kinds_of_random_index_price()


@pytest.mark.parametrize(
    ("shards", "count", "noise", "charged", "true"),
    [(1000, 1000, 2, 0.050, 3.584), (1000, 1000, 1.07, 0.129, 7.916), (1000, 20_000, 2, 0.253, 13.19),
     (1000, 20_000, 5, 0.089, 4.24), (20, 20, 1, 1.985, 8.418)],
    ids=lambda value: f"counterexample of claim 1.9: {value}",
)  # fmt: skip
def test_what_hiding_the_index_would_have_saved(
    shards: int, count: int, noise: float, charged: float, true: float
) -> None:
    assert price(sampled(count, 1 / shards, noise), DELTA, ADD).epsilon == pytest.approx(charged, abs=6e-4)
    event = shard_steps(count, shards, "uniform", rows=1, noise=noise)
    assert price(event, DELTA, REPLACE).epsilon == pytest.approx(true, rel=THREE_DIGITS)


@pytest.mark.parametrize(
    ("epsilon", "noise"), [(10, 12.65), (1, 94.4)], ids=["section 1.5, eps 10", "section 1.5, eps 1"]
)
def test_honest_noise_for_round_robin(epsilon: float, noise: float) -> None:
    found = calibrate(lambda z: shard_steps(20_000, 1000, "round-robin", noise=z), epsilon, DELTA, REPLACE)
    assert found == pytest.approx(noise, rel=THREE_DIGITS)


# --- sums over all shards, sampled sums, DP-SGD ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "count", "noise"),
    [(1, 500, 83.42), (1, 2000, 166.84), (1, 10_000, 373.06), (10, 500, 11.18), (10, 2000, 22.36), (10, 10_000, 49.99)],
    ids=lambda value: f"table 2: {value}",
)
def test_noise_of_repeated_gaussians(epsilon: float, count: int, noise: float) -> None:
    found = calibrate(lambda z: Repeated(count, Gaussian(z)), epsilon, DELTA, ADD)
    assert found == pytest.approx(noise, rel=3e-4)


@pytest.mark.parametrize(
    ("target", "rate", "count", "noise", "replaced"),
    [
        pytest.param(10, 0.1, 2000, 2.36, 11.44, id="claims 1.11 and 1.14, q=.1, T=2000"),
        pytest.param(10, 0.1, 10_000, 5.06, 10.79, id="claims 1.11 and 1.14, q=.1, T=10000"),
        pytest.param(10, 0.5, 2000, 11.21, 10.19, id="claims 1.11 and 1.14, q=.5, T=2000"),
        pytest.param(10, 0.5, 10_000, 25.03, None, id="claim 1.14, q=.5, T=10000"),
        pytest.param(1, 0.1, 2000, 16.74, 1.021, id="claims 1.11 and 1.14, eps 1, q=.1"),
        pytest.param(1, 0.5, 2000, 83.49, None, id="claim 1.14, eps 1, q=.5"),
    ],
)
def test_poisson_over_shards_and_its_price_under_replace(
    target: float, rate: float, count: int, noise: float, replaced: float | None
) -> None:
    # Pricing the tabled noise instead of calibrating keeps this quick; the slope of epsilon in log noise is about -1.
    assert price(sampled(count, rate, noise), DELTA, ADD).epsilon == pytest.approx(target, rel=THREE_DIGITS)
    if replaced is not None:
        assert price(sampled(count, rate, noise), DELTA, REPLACE).epsilon == pytest.approx(replaced, rel=THREE_DIGITS)


@pytest.mark.parametrize(
    ("epsilon", "batch", "count", "noise"),
    [(10, 512, 5000, 0.655), (10, 1024, 10_000, 1.087), (10, 2048, 10_000, 1.850), (10, 2048, 20_000, 2.520),
     (1, 512, 5000, 2.380), (1, 1024, 10_000, 6.423), (1, 2048, 10_000, 12.77), (1, 2048, 20_000, 18.04)],
    ids=lambda value: f"section 1.7: {value}",
)  # fmt: skip
def test_dp_sgd_critics(epsilon: float, batch: int, count: int, noise: float) -> None:
    assert price(sampled(count, batch / 60_000, noise), DELTA, ADD).epsilon == pytest.approx(epsilon, rel=THREE_DIGITS)


PSG_RATE = 256 / 60_000


@pytest.mark.parametrize(
    ("target", "count", "published", "of_published", "needed"),
    [
        pytest.param(1, 20_000, 3.056, 0.741, 2.369, id="table 3, epsilon 1"),
        pytest.param(10, 100_000, 1.009, 8.53, 0.932, id="table 3, epsilon 10"),
    ],
)
def test_private_set_generation(
    target: float, count: int, published: float, of_published: float, needed: float
) -> None:
    assert price(sampled(count, PSG_RATE, published), DELTA, ADD).epsilon == pytest.approx(
        of_published, rel=THREE_DIGITS
    )
    found = calibrate(lambda z: sampled(count, PSG_RATE, z), target, DELTA, ADD)
    assert found == pytest.approx(needed, rel=5e-4)


@pytest.mark.parametrize(
    ("count", "noise", "pair", "ours"),
    [
        pytest.param(20_000, 4.504, 1.0, 1.081, id="table 3, replace, epsilon 1"),
        pytest.param(100_000, 1.379, 10.0, 12.87, id="10.7, replace, epsilon 10"),
        pytest.param(20_000, 3.056, 1.535, 1.720, id="table 3, published noise read as replace, epsilon 1"),
        pytest.param(100_000, 1.009, 15.79, 21.66, id="table 3, published noise read as replace, epsilon 10"),
    ],
)
def test_proven_replace_price_is_above_the_unproven_pair(count: int, noise: float, pair: float, ours: float) -> None:
    """dp-accounting's (+C, -C) pair is not proven to be the worst case for vectors; our bound is, and is above it."""
    library = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=PSG_RATE,
        value_discretization_interval=1e-4 if noise > 2 else 5e-4,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
    theirs = library.self_compose(count).get_epsilon_for_delta(DELTA)
    proven = price(sampled(count, PSG_RATE, noise / 2, absence=0.5), DELTA, REPLACE).epsilon
    assert theirs == pytest.approx(pair, rel=THREE_DIGITS)
    assert proven == pytest.approx(ours, rel=THREE_DIGITS)
    assert proven >= theirs


@pytest.mark.parametrize(
    ("noise", "epsilon"),
    [(2.1, 3.767), (1.05, 10.8)],
    ids=["10.6: DP-CGAN with Poisson batches", "10.6: DP-CGAN clipped per tensor"],
)
def test_dp_cgan(noise: float, epsilon: float) -> None:
    assert price(sampled(30_000, 0.01, noise), DELTA, ADD).epsilon == pytest.approx(epsilon, rel=3e-3)
