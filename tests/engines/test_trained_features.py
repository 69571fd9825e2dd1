from __future__ import annotations

import pytest
import torch
from bar_images import SPEC, bars

from veilset.engines import trained_features
from veilset.engines.trained_features import ALIVE, BATCH, centred, pieces_of, train_bank
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


@pytest.mark.parametrize("images", [128, 50])
def test_networks_learn_in_pieces_what_they_learn_at_once(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_features, "pieces_of", lambda count, *_: [(slice(0, BATCH), slice(0, count))])
    whole = trained(20)
    pieces = [slice(start, start + images) for start in range(0, BATCH, images)]
    monkeypatch.setattr(
        trained_features,
        "pieces_of",
        lambda count, *_: [(few, slice(one, one + 1)) for one in range(count) for few in pieces],
    )
    one, other = (torch.cat([weight.flatten().float() for weight in bank.weights]) for bank in (whole, trained(20)))
    assert float((one - other).abs().max()) <= 1, "but for rounding to the grid"
    assert float((one != other).float().mean()) < 0.01, "leaving a piece out changes one weight in fourteen"


@pytest.mark.parametrize("device", ALIVE)
@pytest.mark.parametrize(("count", "side"), [(1, 8), (1, 28), (24, 28), (96, 28), (96, 128), (7, 512)])
def test_pieces_are_all_networks_on_all_images_and_bounded_in_memory(count: int, side: int, device: str) -> None:
    values = 128 * side * side
    pieces = pieces_of(count, values, torch.device(device))
    met = [(image, one) for few, some in pieces for image in range(BATCH)[few] for one in range(count)[some]]
    assert sorted(met) == [(image, one) for image in range(BATCH) for one in range(count)]
    largest = max(len(range(BATCH)[few]) * len(range(count)[some]) for few, some in pieces)
    assert largest * values <= ALIVE[device]
