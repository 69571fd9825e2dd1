"""What the contract suite runs under."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from veilset.privacy import accounting


@pytest.fixture(scope="package", autouse=True)
def _prices_known() -> Iterator[None]:
    """Sampled releases take a second to price, and the suite prices the same few of them hundreds of times."""
    plain, known = accounting._pld_epsilon, {}

    def remembered(sampled: Any, squares: Any, *terms: Any) -> float:
        key = (frozenset(sampled.items()), frozenset(squares.items()), *terms)
        if key not in known:
            known[key] = plain(sampled, squares, *terms)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "_pld_epsilon", remembered)
        yield
