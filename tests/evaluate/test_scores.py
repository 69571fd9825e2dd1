import dataclasses
import json

import pytest

from veilset.errors import ConfigError
from veilset.evaluate import Score


def score(values=(0.5, 0.75)):
    return Score.over_seeds(
        "gen2real/cnn", list(values), touched_private_data=True, details={"per_class": {"a": 0.5}, "warnings": []}
    )


@pytest.mark.parametrize("values", [(0.5,), (0.5, 0.75)])
def test_a_score_survives_json(values):
    original = score(values)
    assert Score.from_json(json.loads(json.dumps(original.to_json()))) == original


def test_sd_is_the_sample_standard_deviation():
    assert score([0.5, 0.75, 1.0]).sd == pytest.approx(0.25)


def test_a_single_seed_has_no_standard_deviation():
    assert score([0.5]).sd is None


def test_a_score_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        score().mean = 1.0


@pytest.mark.parametrize(
    "change", [{"n": 0}, {"n": 1}, {"sd": None}, {"mean": float("nan")}, {"sd": float("inf")}], ids=str
)
def test_a_score_with_impossible_numbers_is_refused(change):
    with pytest.raises(ConfigError):
        dataclasses.replace(score(), **change)


def test_no_values_are_no_score():
    with pytest.raises(ConfigError, match="at least one value"):
        score([])


@pytest.mark.parametrize("flag", ["false", 0, None])
def test_a_damaged_privacy_flag_is_refused_instead_of_converted(flag):
    with pytest.raises(ConfigError, match="touched_private_data"):
        Score.from_json(score().to_json() | {"touched_private_data": flag})
