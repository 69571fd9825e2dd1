import dataclasses
import json

import pytest

from veilset.errors import ConfigError
from veilset.evaluate import Score
from veilset.evaluate.scores import average, calibrated


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


def accuracies(family, table, seeds=(0,), private=False):
    """Scores of classifiers; ``table`` holds one value per seed for each of them."""
    return [
        Score.over_seeds(
            f"{family}/{name}",
            values,
            touched_private_data=private,
            details={"per_seed": list(values), "seeds": list(seeds)},
        )
        for name, values in table.items()
    ]


# Table A1 of GS-WGAN (MNIST, real data and GS-WGAN), as far as a test needs it: three of the thirteen rows.
REAL = {"cnn": [0.99], "mlp": [0.98], "adaboost": [0.73]}
GEN = {"cnn": [0.80], "mlp": [0.79], "adaboost": [0.21]}


def test_calibrated_accuracy_is_a_mean_of_ratios_and_not_a_ratio_of_means():
    score = calibrated(accuracies("gen2real", GEN), accuracies("real2real", REAL))
    assert score.mean == pytest.approx((0.80 / 0.99 + 0.79 / 0.98 + 0.21 / 0.73) / 3)
    assert abs(score.mean - (0.80 + 0.79 + 0.21) / (0.99 + 0.98 + 0.73)) > 0.03
    assert score.details["classifiers"]["gen2real/cnn"] == pytest.approx(0.80 / 0.99)


def test_calibrated_accuracy_matches_classifiers_by_name_and_not_by_place():
    real = accuracies("real2real", REAL)
    gen = accuracies("gen2real", GEN)
    assert calibrated(gen, real[::-1]).mean == calibrated(gen, real).mean


def test_averages_have_their_own_spread_over_the_seeds():
    scores = accuracies("gen2real", {"cnn": [0.8, 0.6], "mlp": [0.6, 0.6]}, seeds=(3, 4))
    mean = average(scores)
    assert (mean.metric, mean.n) == ("gen2real/average", 2)
    assert mean.details["per_seed"] == pytest.approx([0.7, 0.6])
    ratio = calibrated(scores, accuracies("real2real", {"cnn": [1.0], "mlp": [0.5]}))
    assert ratio.details["per_seed"] == pytest.approx([(0.8 + 1.2) / 2, (0.6 + 1.2) / 2])
    assert ratio.sd == pytest.approx(0.1 / 2**0.5)


def test_a_mean_is_private_as_soon_as_one_score_is():
    public, private = accuracies("gen2real", GEN), accuracies("real2real", REAL, private=True)
    assert not average(public).touched_private_data
    assert average([*public, *private]).touched_private_data
    assert calibrated(public, private).touched_private_data
    assert calibrated(accuracies("gen2real", GEN, private=True), accuracies("r", REAL)).touched_private_data


@pytest.mark.parametrize(
    "real", [{}, {"cnn": [0.9]}, REAL | {"lda": [0.8]}, REAL | {"cnn": [0.0]}], ids=["none", "fewer", "more", "zero"]
)
def test_calibration_by_other_classifiers_or_by_zero_is_refused(real):
    with pytest.raises(ConfigError):
        calibrated(accuracies("gen2real", GEN), accuracies("real2real", real))


def test_an_average_over_different_seeds_is_refused():
    one, other = accuracies("gen2real", {"cnn": [0.8]}, (0,)), accuracies("gen2real", {"mlp": [0.8]}, (1,))
    for scores in ([*one, *other], []):
        with pytest.raises(ConfigError, match="same seeds"):
            average(scores)
