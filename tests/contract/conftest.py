"""Fixtures of the contract suite."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from veilset.privacy.release import Door


@pytest.fixture
def noise_drawn(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often the door really added noise."""
    counts: Counter[str] = Counter()
    original = Door._noisy

    def counting(self: Door, *arguments: Any) -> Any:
        counts["releases"] += 1
        return original(self, *arguments)

    monkeypatch.setattr(Door, "_noisy", counting)
    return counts
