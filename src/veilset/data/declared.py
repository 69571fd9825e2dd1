"""The public size of a private collection."""

from __future__ import annotations

from veilset.errors import ConfigError


def suggest_declared_size(n: int) -> int:
    """A round number near ``n``: a multiple of ten below 100, else two significant digits (8514 becomes 8500).

    Under add/remove neighbours the exact number of records is private. Plans are made from a declared size instead, and
    this is only a suggestion for it: the owner makes the number public by accepting it.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError("a positive number of records", f"{n!r}", "Count the images first.")
    unit = 10 ** max(1, len(str(n)) - 2)
    return max(unit, (n + unit // 2) // unit * unit)
