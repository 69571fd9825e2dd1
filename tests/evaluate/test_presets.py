import dataclasses

import pytest
import torch
from utility_toys import hard, toy

from veilset.errors import ConfigError
from veilset.evaluate.classifiers import CLASSIFIERS, RECIPES, THIRTEEN
from veilset.evaluate.fitting import Classifier
from veilset.evaluate.presets import PRESETS, run_preset
from veilset.nets.classifiers import LeNet5


@pytest.fixture
def _constant_guesses(monkeypatch):
    """Classifiers that always say the class of their own number: fast, and different from each other."""
    for number, name in enumerate(dict.fromkeys(name for preset in PRESETS.values() for name in preset.classifiers)):

        def fit(train, ctx, guess=number % 2):
            ctx.tick("fitted")
            return lambda images: torch.full((len(images),), guess)

        monkeypatch.setitem(CLASSIFIERS, name, Classifier(fit=fit, notes=(f"note of {name}",)))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_known_classifiers_and_describes_itself(name):
    preset = PRESETS[name]
    assert set(preset.classifiers) <= set(CLASSIFIERS)
    assert len(set(preset.seeds)) == len(preset.seeds)
    assert preset.description


def test_gs_wgan_is_the_thirteen_with_the_network_of_its_code():
    assert set(PRESETS["gs-wgan"].classifiers) == {*THIRTEEN, "lenet"} - {"cnn"}
    assert set(PRESETS["quick"].classifiers) < set(THIRTEEN)


@pytest.mark.usefixtures("_constant_guesses")
def test_the_benchmark_preset_reports_all_three_networks_and_their_mean_never_the_best():
    test = toy("test", 40).subset(torch.arange(30))
    scores = run_preset("dpimagebench", toy("train", 20), test)
    singles, mean = scores[:-1], scores[-1]
    assert [score.metric for score in scores] == [
        *("gen2real/resnet-110", "gen2real/wrn-40-4", "gen2real/resnext-29"),
        "gen2real/dpimagebench",
    ]
    assert mean.mean == pytest.approx(sum(score.mean for score in singles) / 3)
    assert set(mean.details["classifiers"]) == {score.metric for score in singles}
    assert list(mean.details["per_class"]) == ["left", "right"]


def test_the_benchmark_preset_trains_end_to_end(monkeypatch):
    for name in PRESETS["dpimagebench"].classifiers:
        small = dataclasses.replace(RECIPES[name], network=LeNet5, learning_rate=0.003, epochs=30)
        monkeypatch.setitem(RECIPES, name, small)
    scores = run_preset("dpimagebench", toy("train", 120), toy("test", 40))
    assert scores[-1].mean > 0.9


@pytest.mark.usefixtures("_constant_guesses")
def test_a_preset_uses_its_own_seeds_unless_others_are_given():
    train, test = toy("train", 20), toy("test", 20)
    assert {score.n for score in run_preset("gs-wgan", train, test)} == {5}
    fewer = run_preset("gs-wgan", train, test, seeds=(7,))
    assert {score.n for score in fewer} == {1}
    assert "1 seeds, where the protocol asks for 5" in fewer[0].details["notes"]


@pytest.mark.usefixtures("_constant_guesses")
def test_a_score_says_which_protocol_it_follows_and_what_was_not_as_asked():
    lopsided = toy("train", 40).subset(torch.tensor([0, 1, 2, 4, 6]))
    (first, *_, mean) = run_preset("dpimagebench", lopsided, toy("test", 20))
    assert first.details["preset"] == "dpimagebench"
    assert first.details["notes"] == [
        "note of resnet-110",
        "5 synthetic images, where the protocol asks for 60,000",
        "the classes of the synthetic images are not balanced, which the protocol asks for",
    ]
    assert "gen2real/resnet-110: note of resnet-110" in mean.details["notes"]


def test_the_quick_preset_runs():
    scores = run_preset("quick", hard("train", count=60), hard("test", count=60))
    assert scores[-1].metric == "gen2real/quick"


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match="dpimagebench"):
        run_preset("best-of-three", toy("a", 10), toy("b", 10))
