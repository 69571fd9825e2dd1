"""Ways to make synthetic images look better than they are, each done on purpose: the check beside it must notice.
Here: wrong labels, and choices made on test images. Unequal preparation has a file of its own.

A check is a function that passes for the evaluation as it is. Its sabotage puts a broken piece in the place of a real
one, and the same check must then fail.
"""

import dataclasses
import statistics

import pytest
import torch
from utility_toys import toy

from veilset.evaluate import gen2real, presets, run_preset, utility
from veilset.evaluate.classifiers import CLASSIFIERS, RECIPES
from veilset.evaluate.fitting import Classifier
from veilset.evaluate.scores import Score
from veilset.evaluate.training import Training
from veilset.nets.classifiers import LeNet5
from veilset.randomness import named_generator

SLOW = (*presets.PRESETS["dpimagebench"].classifiers, "convnet-aug")


@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name not in SLOW])
def test_swapped_synthetic_labels_make_accuracy_collapse(name):
    train = toy("train", 60)
    swapped = dataclasses.replace(train, labels=1 - train.labels)
    (score,) = gen2real(swapped, toy("test", 40), classifiers=(name,))
    assert score.mean < 0.15
    assert score.details["vanished"] == ["left", "right"]


def test_labels_that_say_nothing_leave_chance_level():
    names = tuple("abcde")
    train = toy("train", 300, width=10, names=names)
    order = torch.randperm(300, generator=named_generator(0, "shuffle"))
    shuffled = dataclasses.replace(train, labels=train.labels[order])
    (score,) = gen2real(shuffled, toy("test", 100, width=10, names=names), classifiers=("cnn",))
    assert score.mean < 0.45, score.mean


class Watched(torch.Tensor):
    """A tensor that notes every use of it, or of what was made from it, while a classifier is being fitted."""

    fitting = False
    uses: list[str] = []  # noqa: RUF012 (one list for all, emptied by the fixture)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if cls.fitting:
            cls.uses.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.fixture
def watched_test(monkeypatch):
    """A test set that is watched during every fit of every classifier."""
    Watched.uses, Watched.fitting = [], False

    def watching(fit):
        def watched_fit(train, ctx):
            Watched.fitting = True
            try:
                return fit(train, ctx)
            finally:
                Watched.fitting = False

        return watched_fit

    for name, classifier in CLASSIFIERS.items():
        monkeypatch.setitem(CLASSIFIERS, name, dataclasses.replace(classifier, fit=watching(classifier.fit)))
    for name, recipe in RECIPES.items():  # the recipes' own schedules and hold-outs, with a network of no time
        quick = dataclasses.replace(recipe, network=LeNet5, epochs=2, small_set_epochs=2)
        monkeypatch.setitem(RECIPES, name, quick)
    test = toy("test", 40)
    return dataclasses.replace(test, pixels=test.pixels.as_subclass(Watched), labels=test.labels.as_subclass(Watched))


def check_nothing_is_chosen_on_test_images(name, test):
    gen2real(toy("train", 60), test, classifiers=(name,))
    assert Watched.uses == [], f"{name} looked at test images while it was fitted"


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_no_classifier_sees_a_test_image_before_it_is_finished(name, watched_test):
    check_nothing_is_chosen_on_test_images(name, watched_test)


@pytest.mark.parametrize("name", presets.PRESETS["dpimagebench"].classifiers)
def test_choosing_the_epoch_on_test_images_is_noticed(name, watched_test, monkeypatch):
    def hits_on_test_images(training, rows):
        return int((training.logits(watched_test.pixels).argmax(1) == watched_test.labels).sum())

    monkeypatch.setattr(Training, "hits", hits_on_test_images)
    with pytest.raises(AssertionError, match="looked at test images"):
        check_nothing_is_chosen_on_test_images(name, watched_test)


class Fits:
    """Classifiers whose accuracies are known beforehand, and which count how often they are fitted and asked."""

    def __init__(self, monkeypatch, names):
        self.made, self.asked = [], 0
        for name in names:
            monkeypatch.setitem(CLASSIFIERS, name, Classifier(fit=lambda train, ctx, name=name: self.fit(name, ctx)))

    @staticmethod
    def accuracy(name, seed):
        return (3 * len(name) + 7 * seed) % 20 / 20

    def fit(self, name, ctx):
        self.made.append((name, ctx.seed))
        wrong = round(20 * (1 - self.accuracy(name, ctx.seed)))
        ctx.tick("fitted")

        def predict(images):
            self.asked += 1
            labels = torch.arange(20) % 2
            labels[:wrong] = 1 - labels[:wrong]
            return labels

        return predict


def check_every_fit_counts(monkeypatch, name="dpimagebench", seeds=(0, 1, 2)):
    names = presets.PRESETS[name].classifiers
    fits = Fits(monkeypatch, names)
    scores = {score.metric: score for score in run_preset(name, toy("train", 20), toy("test", 20), seeds=seeds)}
    assert fits.made == [(one, seed) for one in names for seed in seeds], "a fit was left out, or made again"
    assert fits.asked == len(fits.made), "a fit was judged more than once"
    for one in names:
        expected = [Fits.accuracy(one, seed) for seed in seeds]
        assert scores[f"gen2real/{one}"].details["per_seed"] == pytest.approx(expected)
        assert scores[f"gen2real/{one}"].mean == pytest.approx(statistics.fmean(expected)), "not the mean of all seeds"
    mean = statistics.fmean(Fits.accuracy(one, seed) for one in names for seed in seeds)
    assert scores[f"gen2real/{presets.PRESETS[name].mean}"].mean == pytest.approx(mean), "not the mean of all fits"


@pytest.mark.parametrize("name", [name for name, preset in presets.PRESETS.items() if preset.mean])
def test_scores_are_means_over_all_classifiers_and_seeds(monkeypatch, name):
    check_every_fit_counts(monkeypatch, name)


def test_reporting_the_best_seed_is_noticed(monkeypatch):
    honest = Score.over_seeds
    monkeypatch.setattr(
        Score, "over_seeds", lambda metric, values, **more: honest(metric, [max(values)] * len(values), **more)
    )
    with pytest.raises(AssertionError, match="not the mean of all seeds"):
        check_every_fit_counts(monkeypatch)


def test_reporting_the_best_classifier_is_noticed(monkeypatch):
    def best(scores, metric):
        return dataclasses.replace(max(scores, key=lambda score: score.mean), metric=metric)

    monkeypatch.setattr(presets, "average", best)
    with pytest.raises(AssertionError, match="not the mean of all fits"):
        check_every_fit_counts(monkeypatch)


def test_fitting_again_until_the_test_score_is_good_is_noticed(monkeypatch):
    honest = utility._score

    def best_of_two(name, sides, seeds, run):
        return max((honest(name, sides, seeds, run) for _ in range(2)), key=lambda score: score.mean)

    monkeypatch.setattr(utility, "_score", best_of_two)
    with pytest.raises(AssertionError, match="made again"):
        check_every_fit_counts(monkeypatch)
