"""Numbers for the drawings in the template: points and lengths in the units of their SVG view boxes."""

from __future__ import annotations

from typing import Any

from veilset.privacy.claim import Claim, shown

SIDE = 200.0
"""Side of the square in which the attack curve is drawn."""
READINGS = (0.001, 0.01, 0.1)
"""Shares of false accusations at which the curve is also put into words."""
_POINTS = 100


def attack_curve(claim: Claim) -> dict[str, Any] | None:
    """The best any attacker can do: share of present records recognised against share of absent ones accused."""
    if claim.epsilon is None:
        return None
    # Squared spacing: the curve is steepest where few are accused, and that is the part that matters.
    rates = [(step / _POINTS) ** 2 for step in range(_POINTS + 1)]
    points = [(0.0, 0.0), *((rate, _power(claim, rate)) for rate in rates)]
    return {
        "points": " ".join(f"{SIDE * x:.2f},{SIDE * (1 - y):.2f}" for x, y in points),
        "readings": [[f"{100 * rate:g} %", f"{shown(100 * _power(claim, rate))} %"] for rate in READINGS],
    }


def _power(claim: Claim, rate: float) -> float:
    if rate >= 1:
        return 1.0
    # At rate 0 the bound itself may be undefined; just above it, it is not, and it only grows from there.
    return max(rate, claim.attack_power(max(rate, 1e-12)) or 0.0)
