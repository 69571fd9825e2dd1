"""Unequal preparation of real and synthetic images, done on purpose: the check beside it must notice.

A check is a function that passes for the evaluation as it is, and fails where one of the two sets, or training and
test images, are scaled, resized or quantised in another way.
"""

import dataclasses
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import veilset
from veilset.data.spec import ImageSet, ImageSpec
from veilset.errors import DataError
from veilset.evaluate import fidelity, gen2real, sklearn_suite
from veilset.evaluate.cached import extract
from veilset.evaluate.classifiers import CLASSIFIERS, RECIPES
from veilset.evaluate.extractors import RandomConvExtractor
from veilset.evaluate.training import Training
from veilset.randomness import named_generator

seen: list = []
"""What the noting classifiers below were given, in the order they were made."""

UNEQUAL = {
    "one grey level": lambda pixels: pixels.clamp_max(254) + 1,
    "fewer grey levels": lambda pixels: pixels // 16 * 16,
    "another scale": lambda pixels: (pixels.float() * 0.9).to(torch.uint8),
    "resized and back": lambda pixels: F.interpolate(
        F.interpolate(pixels.float(), scale_factor=0.5, mode="bilinear", antialias=True), size=pixels.shape[2:]
    ).to(torch.uint8),
}
"""What one of the two sets might go through, and the other not."""


def spotted(count=300, name="real"):
    """Bright spots at random places, on noise."""
    spec = ImageSpec(height=16, width=16, channels=1, class_names=("a", "b"))
    draws = named_generator(0, f"spots/{name}")
    pixels = torch.randint(0, 64, (count, *spec.shape), generator=draws, dtype=torch.uint8)
    for row, (top, left) in enumerate(torch.randint(0, 9, (count, 2), generator=draws).tolist()):
        pixels[row, 0, top : top + 8, left : left + 8] += 180
    return ImageSet(spec=spec, pixels=pixels, labels=torch.arange(count) % 2)


def check_features_of_equal_images_are_equal():
    """Also the other way round: FID of two sets does not depend on which is called real, and precision is recall."""
    metrics = ("fid", "kid", "precision", "recall", "coverage")

    def measured(synthetic, real):
        found = fidelity(synthetic, real, extractor=RandomConvExtractor(), metrics=metrics)
        return {score.metric: score.mean for score in found}

    same = measured(spotted(), spotted())
    assert same["fid"] < 1e-6, "equal images at a distance"
    assert same["kid"] <= 0
    assert (same["precision"], same["recall"], same["coverage"]) == (1, 1, 1)
    there, back = measured(spotted(), spotted(name="other")), measured(spotted(name="other"), spotted())
    assert there["fid"] == pytest.approx(back["fid"], rel=1e-6)
    assert (there["precision"], there["recall"]) == (back["recall"], back["precision"])


def test_fidelity_treats_both_sets_alike():
    check_features_of_equal_images_are_equal()


@pytest.mark.parametrize("change", UNEQUAL)
@pytest.mark.parametrize("side", ["extract", "extract_cached"], ids=["synthetic", "real"])
def test_fidelity_that_prepares_one_set_otherwise_is_noticed(change, side, monkeypatch):
    def careless(pixels, extractor, tick, folder=None):
        return extract(UNEQUAL[change](pixels), extractor, tick)

    monkeypatch.setattr(sys.modules["veilset.evaluate.fidelity"], side, careless)
    with pytest.raises(AssertionError, match="equal images at a distance"):
        check_features_of_equal_images_are_equal()


class SeenRows:
    """A classifier of scikit-learn's kind that only notes what it is given."""

    def fit(self, rows, labels):
        self.fitted = rows.copy()
        seen.append(self)

    def predict(self, rows):
        self.asked = rows.copy()
        return np.zeros(len(rows), dtype=np.int64)


class SeenImages(torch.nn.Module):
    """A network that only notes what it is given."""

    def __init__(self, spec, generator):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(spec.num_classes))
        self.fitted, self.asked = [], []
        seen.append(self)

    def forward(self, images, masks=None):
        (self.fitted if self.training else self.asked).append(images.detach().clone())
        return self.weight.expand(len(images), -1)


def check_classifiers_see_equal_images_equally(monkeypatch, scaling):
    """Images that are both trained and tested on must reach a classifier as the same numbers."""
    seen.clear()
    recipe = dataclasses.replace(RECIPES["lenet"], network=SeenImages, epochs=1, scaling=scaling)
    monkeypatch.setitem(RECIPES, "lenet", recipe)
    entry = sklearn_suite._Entry(module=__name__, estimator="SeenRows", seeded=False)
    monkeypatch.setitem(CLASSIFIERS, "lda", sklearn_suite._classifier("lda", entry))
    gen2real(spotted(64), spotted(64), classifiers=("lda", "lenet"))
    rows, network = seen
    assert np.array_equal(rows.fitted, rows.asked), "scikit-learn sees other test images"
    fitted, asked = (sorted(torch.cat(images).flatten(1).tolist()) for images in (network.fitted, network.asked))
    assert fitted == asked, "the network sees other test images"


@pytest.mark.parametrize("scaling", ["unit", "symmetric", "mnist", "training-set"])
def test_classifiers_see_training_and_test_images_alike(monkeypatch, scaling):
    check_classifiers_see_equal_images_equally(monkeypatch, scaling)


@pytest.mark.parametrize("change", UNEQUAL)
def test_a_network_that_is_tested_on_otherwise_prepared_images_is_noticed(change, monkeypatch):
    honest = Training.logits
    monkeypatch.setattr(Training, "logits", lambda self, pixels, *rest: honest(self, UNEQUAL[change](pixels), *rest))
    with pytest.raises(AssertionError, match="the network sees other"):
        check_classifiers_see_equal_images_equally(monkeypatch, "unit")


@pytest.mark.parametrize("change", UNEQUAL)
def test_a_classifier_that_is_trained_on_otherwise_prepared_images_is_noticed(change, monkeypatch):
    honest, calls = sklearn_suite.flat_rows, []

    def first_call_differs(pixels):
        calls.append(len(pixels))
        return honest(UNEQUAL[change](pixels) if len(calls) == 1 else pixels)

    monkeypatch.setattr(sklearn_suite, "flat_rows", first_call_differs)
    with pytest.raises(AssertionError, match="scikit-learn sees other"):
        check_classifiers_see_equal_images_equally(monkeypatch, "unit")


def test_floats_and_bytes_of_the_same_images_are_the_same_set():
    images = spotted(200)
    pixels, labels = images.pixels[:, 0].numpy(), images.labels.numpy()
    by_bytes, by_floats = (veilset.load(one, labels, class_names=["a", "b"]) for one in (pixels, pixels / 255.0))
    assert torch.equal(by_bytes.pixels, by_floats.pixels)
    with pytest.raises(DataError, match="uint8"):
        dataclasses.replace(images, pixels=images.pixels.float())
