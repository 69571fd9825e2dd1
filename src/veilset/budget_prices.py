"""What the entries of a data set's account cost together, and what is left of its budget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from veilset.errors import UnsupportedEvent
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency
from veilset.privacy.events import Composed, Event, Gaussian, from_json
from veilset.privacy.gaussian import gaussian_epsilon, gaussian_mu


@dataclass(frozen=True)
class BudgetTerms:
    """Of an account: what all runs together may cost, and in which terms."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    def price(self, events: Iterable[Event]) -> float:
        return price(Composed(tuple(events)), self.delta, self.adjacency).epsilon

    def left(self, charged: Iterable[Event]) -> float:
        """The epsilon of the largest Gaussian release that can still be paid, to three digits and never too large."""
        charged = tuple(charged)
        if not charged:
            return _rounded_down(self.epsilon)
        low, high = 0.0, gaussian_mu(self.epsilon, self.delta)
        for _ in range(12):
            middle = (low + high) / 2
            try:
                fits = self.price((*charged, Gaussian(1 / middle))) <= self.epsilon
            except UnsupportedEvent:  # beside samples a huge loss has no price, so it would be refused as well
                fits = False
            low, high = (middle, high) if fits else (low, middle)
        return _rounded_down(gaussian_epsilon(low, self.delta)) if low else 0.0


def charges_in(entries: Iterable[dict[str, Any]]) -> dict[str, Event]:
    """By reservation: what is reserved, or, once a ledger was closed, what ledgers say was spent."""
    charged, settled = dict[str, Event](), set[str]()
    for entry in entries:
        name = str(entry.get("reserve", entry.get("settle")))
        if "reserve" in entry:
            charged[name] = from_json(entry["of"])
        elif "settle" in entry:
            before = (charged[name],) if name in settled else ()
            charged[name] = Composed((*before, from_json(entry["of"])))
            settled.add(name)
    return charged


def _rounded_down(epsilon: float) -> float:
    """Three digits, as people are told it: who plans exactly that must not be refused.

    >>> _rounded_down(2.7556), _rounded_down(9.9999), _rounded_down(0.3)
    (2.75, 9.99, 0.3)
    """
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return float(f"{math.floor(epsilon / step + 1e-9) * step:.3g}")
