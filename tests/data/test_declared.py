from __future__ import annotations

import pytest

from veilset.data import suggest_declared_size
from veilset.errors import ConfigError


@pytest.mark.parametrize(
    ("records", "declared"),
    [(1, 10), (7, 10), (12, 10), (15, 20), (99, 100), (100, 100), (104, 100), (105, 110), (8514, 8500), (60000, 60000)],
)
def test_sizes_are_rounded(records: int, declared: int) -> None:
    assert suggest_declared_size(records) == declared


def test_one_record_rarely_changes_the_suggestion() -> None:
    changes = sum(suggest_declared_size(n) != suggest_declared_size(n + 1) for n in range(1000, 9999))
    assert changes == 90


@pytest.mark.parametrize("records", [0, -3, 1.5, None, True])
def test_other_numbers_are_refused(records: object) -> None:
    with pytest.raises(ConfigError):
        suggest_declared_size(records)  # type: ignore[arg-type]
