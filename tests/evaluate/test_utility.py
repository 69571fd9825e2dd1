import dataclasses
import sys

import numpy as np
import pytest
import torch
from devices import NEEDS_CUDA
from utility_toys import hard, numbers, toy

from veilset.data.spec import Source
from veilset.errors import ConfigError, DataError, MissingExtra
from veilset.evaluate import gen2real, released2real
from veilset.evaluate.classifiers import CLASSIFIERS, CNN_EPOCHS
from veilset.evaluate.fitting import Classifier


@pytest.mark.parametrize(
    ("height", "width", "channels"), [(8, 8, 1), (9, 13, 3), (28, 28, 1)], ids=["small grey", "odd rgb", "mnist-like"]
)
def test_separable_classes_are_learnt(height, width, channels):
    shape = {"height": height, "width": width, "channels": channels}
    scores = gen2real(toy("train", **shape), toy("test", 60, **shape))
    assert [score.metric for score in scores] == ["gen2real/cnn", "gen2real/mlp"]
    for score in scores:
        assert score.mean > 0.95
        assert score.details["vanished"] == []
        assert score.details["num_synthetic"] == 240


def test_classes_the_generator_confuses_are_named_as_vanished():
    names = tuple("abcd")
    train = toy("train", names=names)
    confused = torch.tensor([0, 1, 3, 2])[train.labels]
    (score,) = gen2real(dataclasses.replace(train, labels=confused), toy("test", 80, names=names), classifiers=("cnn",))
    assert score.details["vanished"] == ["c", "d"]
    assert "class 'c' has vanished" in score.details["warnings"][0]
    assert score.details["per_class"]["b"] > 0.95


def test_confusion_counts_every_test_image_once_a_seed_and_names_the_class_it_was_taken_for():
    names = tuple("abcd")
    train, test = toy("train", names=names), toy("test", 80, names=names)
    confused = dataclasses.replace(train, labels=torch.tensor([0, 1, 3, 2])[train.labels])
    (score,) = gen2real(confused, test, classifiers=("cnn",), seeds=(0, 1))
    table = torch.tensor(score.details["confusion"])
    assert table.sum(1).tolist() == [40] * 4
    assert int(table.diagonal().sum()) == round(score.mean * 160)
    assert table.argmax(1).tolist() == [0, 1, 3, 2]


def test_a_confusion_matrix_that_nobody_could_read_is_left_out(monkeypatch):
    monkeypatch.setattr("veilset.evaluate.utility.MAX_CONFUSED", 1)
    (score,) = gen2real(toy("train"), toy("test", 20), classifiers=("lda",))
    assert score.details["confusion"] == []


def test_the_same_seed_repeats_and_another_seed_does_not():
    train, test = hard("train"), hard("test", count=200)
    first, again = gen2real(train, test, seeds=(0, 1)), gen2real(train, test, seeds=(0, 1))
    assert numbers(first) == numbers(again)
    for score in first:
        assert score.n == 2
        assert score.details["per_seed"][0] != score.details["per_seed"][1]
        assert score.sd == pytest.approx(np.std(score.details["per_seed"], ddof=1))
    (alone,) = gen2real(train, test, classifiers=("cnn",), seeds=(1,))
    assert alone.mean == first[0].details["per_seed"][1], "a seed's result depends on the seeds before it"


def test_global_seeds_neither_change_a_score_nor_are_used_up_by_it():
    train, test = hard("train"), hard("test", count=100)
    results = []
    numpy_state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            for seed in (1, 2):
                torch.manual_seed(seed)
                np.random.seed(seed)  # noqa: NPY002
                before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
                results.append(numbers(gen2real(train, test)))
                assert torch.equal(torch.get_rng_state(), before[0])
                assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
    assert results[0] == results[1]


def test_null_records_of_the_real_set_are_left_out():
    test = toy("test", 60)
    wrong_labels = test.labels.clone()
    wrong_labels[:30] = 1 - wrong_labels[:30]
    valid = torch.arange(60) >= 30
    (score,) = gen2real(toy("train"), dataclasses.replace(test, labels=wrong_labels, valid=valid), classifiers=("mlp",))
    assert score.mean > 0.95


def test_scores_on_real_images_are_private_unless_they_are_a_public_benchmark():
    train, test = toy("train", 40), toy("test", 20)
    (private,) = gen2real(train, test, classifiers=("mlp",))
    public_test = dataclasses.replace(test, source=Source(benchmark="mnist"))
    (public,) = gen2real(train, public_test, classifiers=("mlp",))
    assert private.touched_private_data
    assert not public.touched_private_data


def test_a_class_without_test_images_is_reported_and_not_scored():
    test = toy("test", 40)
    (score,) = gen2real(toy("train"), test.subset((test.labels == 0).nonzero().flatten()), classifiers=("mlp",))
    assert list(score.details["per_class"]) == ["left"]
    assert any("'right' has no test images" in warning for warning in score.details["warnings"])


def test_progress_counts_every_classifier_and_seed():
    calls = []
    gen2real(toy("train", 20), toy("test", 10), seeds=(0, 1), progress=lambda *call: calls.append(call))
    total = 2 * (CNN_EPOCHS + 1)
    assert {call[2] for call in calls} == {total}
    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert done[-1] == total
    assert calls[0] == ("gen2real/cnn, seed 0: fitting", 0, total)


def test_another_classifier_needs_one_registry_entry(monkeypatch):
    def fit_constant(train, ctx):
        ctx.tick("fitted")
        return lambda images: torch.zeros(len(images), dtype=torch.int64)

    monkeypatch.setitem(CLASSIFIERS, "constant", Classifier(fit=fit_constant))
    (score,) = gen2real(toy("train"), toy("test", 60), classifiers=("constant",))
    assert (score.metric, score.mean) == ("gen2real/constant", 0.5)
    assert score.details["vanished"] == ["right"]


@pytest.mark.parametrize(
    ("synthetic", "test", "message"),
    [
        (toy("a", 10), toy("b", 10, height=9), r"8x8 grey\n  found 9x8 grey\n.*--size 8x8 --color grey"),
        (toy("a", 10, channels=3), toy("b", 10), "--color rgb"),
        (toy("a", 10), toy("b", 10, names=("left", "mid", "right")), r"3 real ones: \[\] are missing, \['mid'\]"),
        (toy("a", 10, names=("all",)), toy("b", 10, names=("all",)), "two or more classes"),
        (toy("a", 10), toy("b", 10, names=("right", "left")), "Renumber"),
        (toy("a", 10), toy("b", 10, names=("left", "up")), r"\['right'\] are missing, \['up'\] are unknown"),
        (toy("a", 1), toy("b", 10), r"none of \['right'\]"),
        (toy("a", 0), toy("b", 10), r"none of \['left', 'right'\]"),
        (toy("a", 10), toy("b", 0), "no readable image"),
        (toy("a", 10), toy("b", 10, valid=torch.zeros(10, dtype=torch.bool)), "no readable image"),
        (toy("a", 10, valid=torch.arange(10) % 2 == 0), toy("b", 10), r"none of \['right'\]"),
    ],
)
def test_sets_that_do_not_fit_together_are_refused(synthetic, test, message):
    with pytest.raises(DataError, match=message) as caught:
        gen2real(synthetic, test)
    assert all((caught.value.expected, caught.value.found, caught.value.todo))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classifiers": ("cnn", "svm")}, "cnn, mlp"),
        ({"classifiers": ()}, "cnn, mlp"),
        ({"classifiers": "cnn"}, "distinct classifiers"),
        ({"classifiers": ("cnn", "cnn")}, "distinct"),
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": (1, 1)}, "none of them twice"),
    ],
    ids=str,
)
def test_unusable_choices_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        gen2real(toy("a", 10), toy("b", 10), **options)


def test_advice_never_sends_anybody_to_the_training_images():
    for test in (toy("b", 10, height=9), toy("b", 10, names=("up", "down")), toy("b", 10, names=("right", "left"))):
        with pytest.raises(DataError) as caught:
            gen2real(toy("a", 10), test)
        assert "fitted on" not in caught.value.todo


def test_a_missing_package_is_noticed_before_the_first_classifier_is_fitted(monkeypatch):
    def refuse(train, ctx):
        raise AssertionError("a classifier was fitted")

    monkeypatch.setitem(CLASSIFIERS, "first", Classifier(fit=refuse))
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingExtra, match="xgboost"):
        gen2real(toy("a", 10), toy("b", 10), classifiers=("first", "xgboost"))


def test_without_scikit_learn_the_cnn_works_and_the_mlp_says_what_to_install(monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    gen2real(toy("a", 10), toy("b", 10), classifiers=("cnn",))
    with pytest.raises(MissingExtra, match=r"veilset\[eval\]"):
        gen2real(toy("a", 10), toy("b", 10), classifiers=("mlp",))


@NEEDS_CUDA
def test_a_cuda_device_gives_the_same_score_twice():
    train, test = hard("train"), hard("test", count=200)
    first, again = (gen2real(train, test, classifiers=("cnn",), device="cuda") for _ in range(2))
    assert numbers(first) == numbers(again)
    (easy,) = gen2real(toy("train"), toy("test", 60), classifiers=("cnn",), device="cuda")
    assert easy.mean > 0.95


@pytest.mark.parametrize("benchmark", [None, "toys"])
def test_a_released_classifier_is_judged_as_it_is(benchmark):
    test = toy("test", 60, source=Source(benchmark=benchmark))
    score = released2real(lambda pixels: torch.zeros(len(pixels), dtype=torch.int64), test, metric="continual/zeros")
    assert score.mean == 0.5
    assert score.details["per_class"] == {"left": 1.0, "right": 0.0}
    assert score.details["vanished"] == ["right"]
    assert score.touched_private_data == (benchmark is None)
    with pytest.raises(DataError, match="images"):
        released2real(lambda pixels: pixels, test.subset(torch.zeros(60, dtype=torch.bool)), metric="continual/none")
