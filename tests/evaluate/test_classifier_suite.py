import dataclasses
import sys

import pytest
import torch
from utility_toys import hard, numbers, toy

from veilset.data.spec import Source
from veilset.errors import DataError, MissingExtra
from veilset.evaluate import sklearn_suite
from veilset.evaluate.classifiers import CLASSIFIERS, RECIPES, THIRTEEN
from veilset.evaluate.utility import gen2real, real2gen, real2real

NAMES = tuple("abc")
DEEP = ("resnet-110", "wrn-40-4", "resnext-29")


@pytest.fixture(autouse=True)
def _few_epochs(monkeypatch):
    """The published numbers of epochs are for a GPU."""
    for name, recipe in RECIPES.items():
        epochs = 1 if name in DEEP else 30 if name == "lenet" else 12
        short = dataclasses.replace(recipe, epochs=epochs, small_set_epochs=None, batch=24)
        monkeypatch.setitem(RECIPES, name, short)


def train(**options):
    return toy("train", 72, names=NAMES, width=9, **options)


def test_the_thirteen_are_those_of_the_paper():
    paper = "mlp cnn adaboost bagging bernoulli-nb decision-tree gaussian-nb gbm lda linear-svc logistic-regression"
    assert sorted(THIRTEEN) == sorted([*paper.split(), "random-forest", "xgboost"])


@pytest.mark.parametrize("channels", [1, 3], ids=["grey", "rgb"])
@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name not in DEEP])
def test_every_classifier_learns_separable_classes(name, channels):
    (score,) = gen2real(
        train(channels=channels), toy("test", 60, names=NAMES, width=9, channels=channels), classifiers=(name,)
    )
    assert score.metric == f"gen2real/{name}"
    assert score.mean > 0.9, score
    assert list(score.details["per_class"]) == list(NAMES)
    assert score.details["notes"] == list(CLASSIFIERS[name].notes)


@pytest.mark.parametrize("name", DEEP)
def test_the_deep_networks_run_on_a_cpu_and_on_tiny_images(name):
    (score,) = gen2real(toy("train", 26), toy("test", 10), classifiers=(name,))
    assert 0 <= score.mean <= 1
    assert any("benchmark" in note for note in score.details["notes"])


@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name != "resnext-29"])  # large, and like resnet-110
def test_the_same_seed_repeats(name):
    count = 26 if name in DEEP else 60
    first, again = (gen2real(hard("train", count=count), hard("test", count=60), classifiers=(name,)) for _ in range(2))
    assert numbers(first) == numbers(again)


@pytest.mark.parametrize("name", ["random-forest", "gbm", "xgboost", "lenet", "resnet", "bagging"])
def test_another_seed_gives_another_fit(name):
    (score,) = gen2real(hard("train", count=60), hard("test", count=400), classifiers=(name,), seeds=(0, 1, 2))
    assert len(set(score.details["per_seed"])) > 1


def test_a_collapsed_generator_is_scored_and_not_an_error():
    images = toy("train", 60)
    collapsed = dataclasses.replace(images, pixels=torch.zeros_like(images.pixels))
    scores = gen2real(collapsed, toy("test", 40), classifiers=[*THIRTEEN, "lenet", "convnet", "resnet"])
    assert max(score.mean for score in scores) < 0.65
    (lda,) = (score for score in scores if score.metric == "gen2real/lda")
    assert "cannot be fitted" in lda.details["warnings"][0]


def test_removed_settings_of_scikit_learn_are_named_in_the_score():
    scores = gen2real(train(), train(), classifiers=("adaboost", "logistic-regression"))
    adaboost, logistic = (score.details["notes"][0] for score in scores)
    assert "SAMME.R" in adaboost
    assert "multi_class" in logistic


@pytest.mark.parametrize(("name", "package"), [("lda", "sklearn"), ("xgboost", "xgboost")])
def test_a_missing_package_is_named_with_its_extra(name, package, monkeypatch):
    for module in [key for key in sys.modules if key.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"veilset\[eval\]"):
        gen2real(toy("a", 10), toy("b", 10), classifiers=(name,))


def test_real2gen_trains_on_real_images_and_tests_on_synthetic_ones():
    real, synthetic = train(), toy("synthetic", 60, names=NAMES, width=9)
    shown = dataclasses.replace(synthetic, labels=(synthetic.labels + 1) % 3)
    (good,) = real2gen(real, synthetic, classifiers=("lda",))
    (bad,) = real2gen(real, shown, classifiers=("lda",))
    assert (good.metric, good.details["num_real"]) == ("real2gen/lda", 72)
    assert good.mean > 0.9
    assert bad.mean < 0.1
    assert bad.details["vanished"] == list(NAMES)


def test_real2gen_gives_full_marks_to_one_prototype_per_class_and_gen2real_does_not():
    real = hard("train", count=400)
    prototypes = toy("few", 2)
    many = prototypes.subset(torch.arange(60) % 2)
    (forward,), (backward,) = (
        gen2real(many, real, classifiers=("decision-tree",)),
        real2gen(real, many, classifiers=("lda",)),
    )
    assert backward.mean == 1.0
    assert forward.mean < 0.9


def test_real2gen_is_private_unless_the_real_images_are_a_public_benchmark():
    real, synthetic = toy("real", 40), toy("synthetic", 20)
    public = dataclasses.replace(real, source=Source(benchmark="mnist"))
    assert real2gen(real, synthetic, classifiers=("lda",))[0].touched_private_data
    assert not real2gen(public, synthetic, classifiers=("lda",))[0].touched_private_data
    assert real2real(public, real, classifiers=("lda",))[0].touched_private_data
    assert real2real(real, public, classifiers=("lda",))[0].touched_private_data
    assert not real2real(public, public, classifiers=("lda",))[0].touched_private_data


def test_a_synthetic_set_cannot_make_its_scores_public():
    """Whoever samples could name a benchmark as source: only the real side decides."""
    named = dataclasses.replace(toy("synthetic", 20), source=Source(benchmark="mnist"))
    assert gen2real(named, toy("real", 20), classifiers=("lda",))[0].touched_private_data
    assert real2gen(toy("real", 20), named, classifiers=("lda",))[0].touched_private_data


def test_real2gen_refuses_sets_that_do_not_fit_together():
    with pytest.raises(DataError, match="synthetic test set with images"):
        real2gen(toy("real", 10), toy("synthetic", 0), classifiers=("lda",))
    with pytest.raises(DataError, match="real images of every class"):
        real2gen(toy("real", 1), toy("synthetic", 10), classifiers=("lda",))
    with pytest.raises(DataError, match="like the other set's: 9x8 grey"):
        real2gen(toy("real", 10), toy("synthetic", 10, height=9), classifiers=("lda",))


def test_boosted_trees_have_the_defaults_of_the_papers_time():
    settings = sklearn_suite._ENTRIES["xgboost"].build(0).get_params()
    assert {name: settings[name] for name in ("max_depth", "learning_rate", "tree_method", "n_estimators")} == {
        "max_depth": 3, "learning_rate": 0.1, "tree_method": "exact", "n_estimators": 50,
    }  # fmt: skip
