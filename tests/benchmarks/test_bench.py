"""Options that benchmarks share."""

from __future__ import annotations

import argparse

import pytest
from bench import setting


def test_a_setting_is_a_name_and_all_that_follows_the_first_equals_sign() -> None:
    assert setting("mix=cat=3,dog=1") == ("mix", "cat=3,dog=1")


@pytest.mark.parametrize("words", ["steps", "=4", ""])
def test_a_setting_without_name_or_equals_sign_is_refused(words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=VALUE"):
        setting(words)
