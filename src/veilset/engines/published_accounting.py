"""The papers' own epsilon formulas. SOME OF THEM ARE REFUTED: never use this file to make a privacy claim.

It exists so that a report can print the epsilon a paper would have stated beside the one the kernel proves
(``Published`` in ``privacy.claim``), and so that a published noise can be reproduced. The kernel imports nothing from
here. What is wrong is how GS-WGAN and its successors use the first bound, not the bound itself: they amplify every row
of a step on its own although all rows of a step share one shard, and keep state between steps. At their published
noise the formula gives 9.99 where 610 can be proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp

from veilset.errors import ConfigError
from veilset.privacy.accounting import renyi_epsilon
from veilset.privacy.bounds import Adjacency
from veilset.privacy.events import Gaussian, PoissonSampled, Repeated

Renyi = Callable[[Any], Any]
"""Order, or an array of orders -> Renyi divergence."""
Stage = tuple[float, float, int]
"""Noise multiplier, sampling rate and number of releases."""
ORDERS = range(2, 257)


def wbk_renyi(order: int, rate: float, base: Renyi) -> float:
    """Renyi divergence of `base` on a subset drawn without replacement, under replace-one.

    The general upper bound of Wang, Balle and Kasiviswanathan (2019), theorem 9 with an unbounded pure epsilon; never
    more than without sampling. The sum stands inside the logarithm (two of the papers print it outside).
    """
    if not (isinstance(order, int) and order >= 2):
        raise ConfigError("a whole order of at least 2", f"{order}", "The bound is proven for whole orders only.")
    at_two = base(2)
    pair_choices = math.log(order * (order - 1) / 2)
    # min(4 (e^x - 1), 2 e^x) in logs: the first is smaller while e^x < 2.
    pair = math.log(4 * math.expm1(at_two)) if at_two < math.log(2) else math.log(2) + at_two
    j = np.arange(3, order + 1)
    choices = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    moments = (j - 1) * np.array(base(j))
    terms = [0.0, 2 * math.log(rate) + pair_choices + pair, *(math.log(2) + j * math.log(rate) + choices + moments)]
    return min(float(logsumexp(terms)) / (order - 1), base(order))


def classic_epsilon(rdp_of_order: Renyi, delta: float, orders: Iterable[float] = ORDERS) -> float:
    """The best of rdp + log(1 / delta) / (order - 1) over `orders` (Mironov 2017, proposition 3)."""
    return min(rdp_of_order(order) + math.log(1 / delta) / (order - 1) for order in orders)


def wbk_epsilon(noise_multiplier: float, rate: float, count: int, delta: float) -> float:
    """`count` Gaussian releases, each amplified on its own by `wbk_renyi`: the accounting of the GS-WGAN code.

    Between whole orders that code interpolates so that no other order can be better.
    """
    return wbk_composed_epsilon([(noise_multiplier, rate, count)], delta)


def wbk_composed_epsilon(stages: Iterable[Stage], delta: float) -> float:
    """Several such stages in a row: theorem 6 of DPAF."""
    stages = tuple(stages)

    def renyi(order: float) -> float:
        return sum((count * wbk_renyi(int(order), rate, _gaussian(noise)) for noise, rate, count in stages), 0.0)

    return classic_epsilon(renyi, delta)


def _gaussian(noise_multiplier: float) -> Renyi:
    return lambda order: order / (2 * noise_multiplier**2)


def calibrate_wbk(epsilon: float, rate: float, count: int, delta: float) -> float:
    """The noise multiplier at which `wbk_epsilon` is `epsilon`, rounded up."""
    return calibrate_wbk_composed(epsilon, lambda noise: [(noise, rate, count)], delta)


def calibrate_wbk_composed(epsilon: float, stages: Callable[[float], Iterable[Stage]], delta: float) -> float:
    """The noise at which `wbk_composed_epsilon` of the stages that belong to it is `epsilon`, rounded up."""

    def excess(noise: float) -> float:
        return wbk_composed_epsilon(stages(noise), delta) - epsilon

    low, high = 1.0, 1.0
    while excess(low) < 0:
        low /= 2
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, low, high, rtol=1e-9)) * (1 + 1e-6)


def classic_gaussian_epsilon(noise_multiplier: float, count: float, delta: float) -> float:
    """`count` plain Gaussian releases by Renyi accounting with the best real order, in closed form.

    `count` may be a fraction: the federated GS-WGAN paper counts steps * rows / clients.
    """
    cost = count / (2 * noise_multiplier**2)
    return cost + 2 * math.sqrt(cost * math.log(1 / delta))


def calibrate_classic_gaussian(epsilon: float, delta: float) -> float:
    """The noise multiplier at which `classic_gaussian_epsilon` of one release is `epsilon`, rounded up."""
    log_delta = math.log(1 / delta)
    root_cost = epsilon / (math.sqrt(log_delta + epsilon) + math.sqrt(log_delta))
    return 1 / (math.sqrt(2) * root_cost) * (1 + 1e-12)


def sampled_gaussian_epsilon(noise_multiplier: float, rate: float, count: int, delta: float) -> float:
    """`count` Gaussian releases on Poisson samples, by Renyi accounting under add/remove as Opacus and the PSG code do.

    Converted as by Canonne, Kamath and Steinke (2020). Sound, and looser than the kernel's price.
    """
    event = Repeated(count, PoissonSampled(rate, Gaussian(noise_multiplier)))
    epsilon = renyi_epsilon(event, delta, Adjacency.ADD_REMOVE)
    assert epsilon is not None, "this event has a Renyi bound"
    return epsilon


def calibrate_sampled_gaussian(epsilon: float, rate: float, count: int, delta: float) -> float:
    """The noise multiplier at which `sampled_gaussian_epsilon` is `epsilon`."""

    def excess(log_noise: float) -> float:
        return sampled_gaussian_epsilon(math.exp(log_noise), rate, count, delta) - epsilon

    return math.exp(brentq(excess, math.log(0.05), math.log(1e5), xtol=1e-6))
