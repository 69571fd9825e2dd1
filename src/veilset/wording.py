"""Numbers in the words of people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

WEAK_ABOVE = 10.0
"""Above this epsilon the word "private" alone would mislead: an attacker may become e^10 times surer."""


def meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """A suggestion for a misspelt name.

    >>> meant("epsiln", ["epsilon", "delta"], "Look it up."), meant("x", ["epsilon", "delta"], "Look it up.")
    ("Did you mean 'epsilon'?", 'Look it up.')
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"Did you mean '{close[0]}'?" if close else otherwise


def duration(seconds: float) -> str:
    """In the unit that people would use.

    >>> duration(90), duration(1000), duration(745_051)
    ('90 s', '17 minutes', '9 days')
    """
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def time_taken(seconds: float) -> str:
    """A duration that was measured: no work takes no time."""
    return duration(seconds) if seconds >= 1 else "under 1 s"
