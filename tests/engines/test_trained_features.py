from __future__ import annotations

import pytest
import torch
from bar_images import SPEC, bars

from veilset.engines import trained_features
from veilset.engines.trained_features import ALIVE, BATCH, centred, groups_of, train_bank
from veilset.nets.feature_bank import FeatureBank
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


def test_networks_learn_side_by_side_what_they_learn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = trained(20)
    monkeypatch.setattr(trained_features, "groups_of", lambda count, values, device: [slice(0, count)])
    for one, other in zip(alone.weights, trained(20).weights, strict=True):
        assert float((one.float() - other.float()).abs().max()) <= 1, "but for rounding to the grid"


@pytest.mark.parametrize(("count", "side"), [(1, 28), (24, 28), (96, 28), (96, 128), (7, 128)])
def test_networks_are_grouped_so_that_a_gpu_of_any_size_can_train_them(count: int, side: int) -> None:
    values = 128 * side * side
    groups = groups_of(count, values, torch.device("cuda"))
    assert [number for some in groups for number in range(count)[some]] == list(range(count))
    largest = max(len(range(count)[some]) for some in groups)
    assert largest == 1 or largest * values * BATCH <= ALIVE
    assert len(groups_of(count, values, torch.device("cpu"))) == count
