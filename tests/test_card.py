"""The model card says what the claim says, in words, and nothing more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from veilset.card import model_card, plain_words
from veilset.model import Model
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim, Published
from veilset.privacy.gaussian import gaussian_epsilon

CONFIG: dict[str, Any] = {
    "veilset": "9.9",
    "method": "dp-merf",
    "config": {"steps": 3, "learning_rate": 0.01},
    "spec": {"height": 8, "width": 11, "channels": 3, "class_names": ["cat", "dog"]},
    "declared_size": 4200,
    "accounting": "proven",
}


def claim(**changes: Any) -> Claim:
    terms = {"epsilon": 1.0, "delta": 1e-5, "adjacency": Adjacency.ADD_REMOVE, "unit": Unit.RECORD, "mu": 0.268}
    return Claim(accountant="exact Gaussian", **{"assumptions": ("the moon is round",), **terms, **changes})


def test_a_card_states_epsilon_delta_neighbours_and_unit() -> None:
    words = " ".join(plain_words(claim()))
    assert "(1, 1e-05)-differentially private for adding or removing one image." in words
    words = " ".join(plain_words(claim(adjacency=Adjacency.REPLACE, unit=Unit.USER)))
    assert "for replacing all images of one person." in words


def said(words: list[str]) -> float:
    """The power of an attack, in percent."""
    return float(" ".join(words).partition("at most ")[2].partition(" %")[0])


def test_the_power_of_an_attack_is_the_one_of_gaussian_dp() -> None:
    power = 100 * norm.cdf(norm.ppf(0.01) + 0.268)
    assert power <= said(plain_words(claim())) < 1.001 * power, "never rounded down"


def test_without_a_mu_the_power_follows_from_epsilon() -> None:
    assert said(plain_words(claim(mu=None))) == pytest.approx(2.72, abs=0.005)
    assert said(plain_words(claim(mu=None, epsilon=20.0))) == 100
    further = {"mu": None, "epsilon": 20.0, "further": ((2.0, 0.1), (1.0, 0.3))}
    assert said(plain_words(claim(**further))) == pytest.approx(17.4, abs=0.05)


def test_the_epsilon_for_replacing_is_given_too_and_is_larger() -> None:
    words = " ".join(plain_words(claim()))
    replaced = float(words.split("the same noise gives epsilon ")[1].split(". ")[0])
    assert replaced == pytest.approx(gaussian_epsilon(2 * 0.268, 1e-5), rel=1e-3)
    assert replaced > 1.0
    assert "the same noise gives" not in " ".join(plain_words(claim(adjacency=Adjacency.REPLACE)))


@pytest.mark.parametrize("status", ["sound", "conservative", "refuted"])
def test_a_published_epsilon_comes_with_its_status(status: Any) -> None:
    words = " ".join(plain_words(claim(epsilon=610.3, mu=None, published=Published(9.99, status, "Chen 2020"))))
    assert "epsilon 9.99" in words
    assert f"formula: {status} (Chen 2020)" in words
    assert words.index("(610.") < words.index("9.99"), "proven first"


def test_a_model_without_a_claim_is_called_what_it_is() -> None:
    card = model_card(CONFIG, claim(epsilon=None, mu=None, assumptions=(), stamps=("NOT PRIVATE: no noise",)))
    assert "NOT PRIVATE: no noise" in card
    assert "No privacy can be claimed" in card
    assert "differentially private" not in card
    assert "none: there is no claim" in card


def test_stamps_come_before_everything_else() -> None:
    assert plain_words(claim(stamps=("public benchmark data (mnist)",)))[0] == "public benchmark data (mnist)"


def test_a_card_lists_assumptions_classes_settings_and_the_declared_size() -> None:
    card = model_card(CONFIG, claim())
    for part in ("- the moon is round", "cat, dog", "8 x 11 images with 3 channel(s)", "4200", "| steps | 3 |", "9.9"):
        assert part in card


def test_the_card_of_a_release_is_made_from_its_own_files(model: Model) -> None:
    folder: Path = model.folder
    config = json.loads((folder / "config.json").read_text())
    assert (folder / "README.md").read_text() == model_card(config, model.claim)
