from __future__ import annotations

import torch
from bar_images import SPEC, bars

from veilset.engines.trained_features import centred, features_of, train_bank
from veilset.nets.feature_bank import FeatureBank, shapes, soft_features
from veilset.nets.jitter import STILL
from veilset.randomness import named_generator


def trained(steps: int) -> FeatureBank:
    images, labels = bars(120)
    return train_bank(
        images, labels, SPEC, count=2, width=8, steps=steps, jitter=STILL, draws=named_generator(0, "networks"),
        progress=lambda done, total: None,
    )  # fmt: skip


def between_classes(bank: FeatureBank) -> float:
    """Share of the features' squared length by which the class means differ from their mean."""
    images, labels = bars(200, seed=5)
    features = centred(bank, images).exact(images)
    means = torch.stack([features[labels == label].mean(0) for label in (0, 1)])
    return float((means - means.mean(0)).square().sum(-1).mean())


def test_training_makes_features_tell_the_classes_apart() -> None:
    assert between_classes(trained(150)) > 1.5 * between_classes(trained(0))


def test_a_centred_bank_is_seen_from_the_mean_of_the_images() -> None:
    images, _ = bars(120)
    plain = trained(20).exact(images)
    bank = centred(trained(20), images)
    assert torch.allclose(bank.centre.double(), plain.mean(0), atol=1e-6)
    assert float(bank.exact(images).mean(0).norm(dim=-1).max()) < float(plain.mean(0).norm(dim=-1).min())


def test_the_same_draws_train_the_same_networks() -> None:
    assert all(torch.equal(a, b) for a, b in zip(trained(10).weights, trained(10).weights, strict=True))


def test_networks_one_after_the_other_have_the_features_and_gradients_of_all_at_once() -> None:
    images, _ = bars(10)
    draws = named_generator(0, "weights")
    weights = [torch.randn(shape, generator=draws).requires_grad_() for shape in shapes(SPEC, 3, 8)]
    alone, together = features_of(images, weights), soft_features(images, weights)
    torch.testing.assert_close(alone, together)
    gradients = [torch.autograd.grad(features.square().sum(), weights) for features in (alone, together)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-2)
