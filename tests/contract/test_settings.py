"""The suite covers every method, or fails."""

import pytest

from .cases import METHODS, QUICKEST, TINY


def test_there_is_a_method_to_test() -> None:
    assert "dp-merf" in METHODS


@pytest.mark.parametrize("method", METHODS)
def test_every_registered_method_has_tiny_settings_for_the_contract_suite(method: str) -> None:
    assert method in TINY, f"add an entry for {method} to tests/contract/cases.py"
    assert method in QUICKEST, f"add an entry for {method} to QUICKEST, {{}} if it has none"


def test_tiny_settings_name_no_method_that_is_gone() -> None:
    assert set(TINY) == set(QUICKEST) == set(METHODS)
