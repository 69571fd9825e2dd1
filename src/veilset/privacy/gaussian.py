"""The Gaussian mechanism, exactly: delta(epsilon), its inverses, and what an attacker can do with it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import norm

from veilset.errors import ConfigError

EPSILON_MAX = 1e6


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a mu-GDP Gaussian mechanism, exactly (Balle and Wang 2018, theorem 8)."""
    return float(gaussian_deltas(mu, epsilon)) if mu > 0 else 0.0


def gaussian_deltas(mus: NDArray[np.float64] | float, epsilons: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """`gaussian_delta` of many positive parameters at once."""
    gain = np.exp(log_ndtr(-epsilons / mus + mus / 2))
    loss = np.exp(np.minimum(epsilons + log_ndtr(-epsilons / mus - mus / 2), 700.0))
    return np.asarray(np.maximum(gain - loss, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at which a mu-GDP mechanism has this delta, rounded up."""
    return smallest_epsilon(lambda epsilon: gaussian_delta(mu, epsilon), delta)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose epsilon at `delta` is at most `epsilon`, rounded down.

    >>> round(gaussian_mu(1.0, 1e-5), 4), round(gaussian_mu(10.0, 1e-5), 4)
    (0.2681, 2.0004)
    """
    check_target(epsilon, delta)
    root = brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-12, 1e4, xtol=1e-14, rtol=1e-13)
    return float(root) * (1 - 1e-9)


def true_positive_rate(mu: float, false_positive_rate: float) -> float:
    """The best attack's power against mu-GDP at this false positive rate (Dong, Roth and Su 2022)."""
    return float(norm.cdf(norm.ppf(false_positive_rate) + mu))


def check_target(epsilon: float, delta: float) -> None:
    if not (isinstance(epsilon, int | float) and math.isfinite(epsilon) and 0 < epsilon <= EPSILON_MAX):
        raise ConfigError(f"an epsilon above 0 and up to {EPSILON_MAX:g}", f"{epsilon}", "Typical: between 0.5 and 10.")
    check_delta(delta)


def check_delta(delta: float) -> None:
    if not (isinstance(delta, int | float) and 0 < delta < 1):
        raise ConfigError("a delta between 0 and 1", f"{delta}", "Use well below 1 / number of records, e.g. 1e-5.")


def smallest_epsilon(delta_of: Callable[[float], float], delta: float) -> float:
    """The smallest epsilon with delta_of(epsilon) <= delta, rounded up; infinite where there is none."""
    if delta_of(0.0) <= delta:
        return 0.0
    if delta_of(EPSILON_MAX) > delta:
        return math.inf
    high = 1.0
    while delta_of(high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: delta_of(epsilon) - delta, 0.0, high, xtol=1e-12, rtol=1e-12)) * (1 + 1e-9)
