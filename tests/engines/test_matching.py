"""Matching recovers a distribution from its mean features, and its loss is the distance of means and nothing else."""

from __future__ import annotations

import pytest
import torch
from bar_images import SPEC, bars

from veilset.engines import matching
from veilset.engines.matching import Effort, Streams, Target, distance, match
from veilset.nets.feature_bank import Bank, FeatureBank
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.tone_bank import ToneBank
from veilset.randomness import initialise, named_generator


class Memory(dict):
    def save(self, name, tensors):
        self[name] = {key: value.detach().clone() for key, value in tensors.items()}

    def load(self, name):
        return self.get(name)


def target(bank: Bank, weight: float) -> Target:
    images, labels = bars(200)
    features = bank.exact(images)
    return Target(bank, torch.stack([features[labels == label].mean(0) for label in (0, 1)]).float(), weight)


def targets() -> list[Target]:
    networks = FeatureBank.draw(SPEC, 4, 8, named_generator(0, "bank"))
    return [target(networks, 0.8), target(ToneBank(1), 0.2)]


def effort(**changes) -> Effort:
    fields = {"steps": 60, "images_per_class": 8, "networks_per_step": 2, "learning_rate": 0.01, "checkpoint_every": 10}
    return Effort(**(fields | changes))


def new_generator() -> UpsamplingGenerator:
    return initialise(UpsamplingGenerator(SPEC, latent_size=4, channels=16), named_generator(0, "weights"))


def streams(seed: int = 0) -> Streams:
    return Streams(draws=named_generator(seed, "draws"), order=named_generator(seed, "order"))


def matched(checkpoints=None, progress=lambda done, total: None, **changes) -> UpsamplingGenerator:
    checkpoints = Memory() if checkpoints is None else checkpoints
    return match(
        new_generator(), targets(), effort(**changes), streams=streams(), checkpoints=checkpoints, name="g",
        progress=progress,
    )  # fmt: skip


def test_the_expected_loss_is_the_squared_distance_of_means_and_not_the_variance_too() -> None:
    draws = named_generator(0, "features")
    means = torch.randn(3, 2, 5, generator=draws)
    spread = 3.0 * torch.randn(20_000, 3, 8, 2, 5, generator=draws)
    losses = [distance((draw + means[:, None] + 0.1).flatten(0, 1), means) for draw in spread]
    # 0.1 in each of 5 coordinates and 3 classes; the plain squared distance would add 9 / 8 x 15.
    assert float(torch.stack(losses).mean()) == pytest.approx(0.01 * 5 * 3, abs=0.05)


def test_a_generator_learns_what_the_classes_look_like_from_mean_features_alone() -> None:
    generator = matched(steps=500, images_per_class=16, networks_per_step=4, learning_rate=0.005)
    with torch.no_grad():
        images = generator.sample(torch.tensor([0] * 50 + [1] * 50), named_generator(3, "samples"))
    upright = images.mean(2).std(-1).flatten() > images.mean(3).std(-1).flatten()
    assert upright[:50].float().mean() > 0.8
    assert upright[50:].float().mean() < 0.2


def test_an_interrupted_match_ends_with_the_weights_of_an_undisturbed_one() -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 37:
            raise Stop

    kept = Memory()
    with pytest.raises(Stop):
        matched(kept, stop)
    undisturbed, resumed = matched(), matched(kept)
    for one, other in zip(undisturbed.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_a_finished_match_is_just_loaded() -> None:
    kept = Memory()
    first = matched(kept)
    steps = []
    again = matched(kept, lambda done, total: steps.append(done))
    assert steps == [60]
    for one, other in zip(first.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_many_classes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "CLASSES_PER_STEP", 1)
    seen = []

    def watch(self, classes, networks, loss=matching._Matching.loss):
        seen.append(int(classes))
        assert len(classes) == 1
        return loss(self, classes, networks)

    monkeypatch.setattr(matching._Matching, "loss", watch)
    matched(steps=20)
    assert set(seen) == {0, 1}
