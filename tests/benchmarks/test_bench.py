"""Options that benchmarks share."""

from __future__ import annotations

import argparse

import pytest
from bench import setting, typed


def test_a_setting_is_a_name_and_all_that_follows_the_first_equals_sign() -> None:
    assert setting("mix=cat=3,dog=1") == ("mix", "cat=3,dog=1")


@pytest.mark.parametrize("words", ["steps", "=4", ""])
def test_a_setting_without_name_or_equals_sign_is_refused(words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=VALUE"):
        setting(words)


def test_settings_in_words_are_recorded_as_the_method_reads_them() -> None:
    assert typed("gs-wgan", {"shards": "100", "jitter": "none"}) == {"shards": 100, "jitter": "none"}
