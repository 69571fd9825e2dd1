import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from veilset.errors import ConfigError
from veilset.privacy.gaussian import (
    check_delta,
    check_target,
    gaussian_delta,
    gaussian_deltas,
    gaussian_epsilon,
    gaussian_mu,
    smallest_epsilon,
    true_positive_rate,
)

DELTA = 1e-5


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(0.5, 0.1422), (1, 0.2680), (2, 0.5015), (3, 0.7191), (5, 1.1212), (8, 1.6660), (10, 2.0004)],
    ids=lambda value: f"privacy notes 0.1: {value}",
)
def test_mu_of_an_epsilon(epsilon: float, mu: float) -> None:
    assert gaussian_mu(epsilon, DELTA) == pytest.approx(mu, abs=6e-5)


def test_mu_of_epsilon_ten_is_rounded_down() -> None:
    # Privacy notes 10.7: mu(10, 1e-5) = 2.000446 rounded down.
    assert gaussian_mu(10.0, DELTA) == pytest.approx(2.000446, abs=1e-6)
    assert gaussian_delta(gaussian_mu(10.0, DELTA), 10.0) <= DELTA


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        pytest.param(math.sqrt(300) / 2.1, 68.4, id="DP-CGAN in fixed order, zeroed in place (privacy notes 10.6)"),
        pytest.param(2 * math.sqrt(300) / 2.1, 205.5, id="DP-CGAN in fixed order, replace (privacy notes 10.6)"),
        pytest.param(math.sqrt(86) / 3.056, 16.9, id="PSG shuffled, epsilon 1 (privacy notes table 3)"),
        pytest.param(math.sqrt(427) / 1.009, 296, id="PSG shuffled, epsilon 10 (privacy notes table 3)"),
        pytest.param(2 * math.sqrt(86) / 3.056, 43.5, id="PSG shuffled, replace (privacy notes 10.6)"),
        pytest.param(2 * math.sqrt(427) / 1.009, 1013, id="PSG shuffled, replace, epsilon 10 (privacy notes 10.6)"),
        pytest.param(math.sqrt(2 * 20 * 32) / 1.07, 701, id="hashed shards under replace (privacy notes 10.1)"),
    ],
)
def test_epsilon_of_a_mu(mu: float, epsilon: float) -> None:
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(epsilon, rel=2e-3)


@given(mu=st.floats(1e-3, 40), epsilon=st.floats(0, 60))
@settings(max_examples=60, deadline=None)
def test_delta_follows_the_formula_of_balle_and_wang(mu: float, epsilon: float) -> None:
    exact = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert gaussian_delta(mu, epsilon) == pytest.approx(max(exact, 0), abs=1e-13)


@given(epsilon=st.floats(0.01, 1e4), delta=st.floats(1e-12, 0.4))
@settings(max_examples=60, deadline=None)
def test_both_inverses_land_on_the_private_side(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    found = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, found) <= delta
    assert found == pytest.approx(epsilon, rel=1e-4)


def test_many_deltas_at_once_equal_single_ones() -> None:
    mus = np.array([0.01, 0.5, 2.0, 30.0])
    for epsilon in (0.0, 0.3, 5.0, 400.0):
        assert gaussian_deltas(mus, epsilon).tolist() == pytest.approx(
            [gaussian_delta(mu, epsilon) for mu in mus], rel=1e-12, abs=1e-300
        )


def test_no_release_costs_nothing_and_no_noise_costs_everything() -> None:
    assert gaussian_delta(0.0, 0.0) == 0
    assert gaussian_epsilon(0.0, DELTA) == 0
    assert smallest_epsilon(lambda _: 1.0, DELTA) == math.inf


@pytest.mark.parametrize(
    ("epsilon", "power"), [(1, 0.0198), (10, 0.37)], ids=lambda value: f"sketch notes, what the tool says: {value}"
)
def test_power_of_the_best_attack_at_one_percent_false_alarms(epsilon: float, power: float) -> None:
    assert true_positive_rate(gaussian_mu(epsilon, DELTA), 0.01) == pytest.approx(power, rel=1e-2)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 1e9, "1"])
def test_unusable_epsilons_are_refused(epsilon: object) -> None:
    with pytest.raises(ConfigError):
        check_target(epsilon, DELTA)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, math.nan, math.inf, "1e-5"])
def test_unusable_deltas_are_refused(delta: object) -> None:
    with pytest.raises(ConfigError):
        check_delta(delta)
