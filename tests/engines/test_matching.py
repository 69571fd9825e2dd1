"""Matching recovers a distribution from its mean features, and its loss is the distance of means and nothing else."""

from __future__ import annotations

import pytest
import torch
from bar_images import SPEC, bars

from veilset.engines import matching
from veilset.engines.matching import Effort, Streams, Target, match
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


class Coordinates(Bank):
    """The first pixels themselves: a bank whose mean features are the images' means."""

    def __init__(self) -> None:
        super().__init__(1, 4)

    def soft(self, images: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, None, :4]


def residual_gradient(matching_: matching._Matching, images: torch.Tensor) -> torch.Tensor:
    pixels = images.clone().requires_grad_()
    loss = matching_._along_residuals(0, pixels, torch.tensor([0, 1]), torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient.flatten(1)[:, :4]


def coordinates(means: torch.Tensor) -> matching._Matching:
    return matching._Matching(new_generator(), [Target(Coordinates(), means, 1.0)], effort(), streams())


def test_the_expected_gradient_is_that_of_the_squared_distance_and_the_variance_has_no_part_in_it() -> None:
    draws = named_generator(0, "pixels")
    means = torch.randn(2, 1, 4, generator=draws)
    true_means = (means + 0.1).repeat_interleave(8, dim=0)[:, 0]
    found = []
    for _ in range(4_000):
        spread = torch.randn(16, 4, generator=draws)
        images = torch.zeros(16, 64)
        images[:, :4] = true_means + spread
        gradient = residual_gradient(coordinates(means), images.reshape(16, 1, 8, 8))
        # Of |mean - target|^2: 2 (0.1) / 8 for every image. The plain square would add 2 / 8 of its own spread / 8.
        found.append(torch.stack([gradient.mean(), (gradient * spread).mean()]))
    along, with_own_spread = torch.stack(found).mean(0).tolist()
    assert along == pytest.approx(2 * 0.1 / 8, rel=0.1)
    assert with_own_spread == pytest.approx(0, abs=2 / 8 / 8 / 10)


def test_what_earlier_steps_showed_is_remembered_and_lowers_the_chance_in_a_step() -> None:
    draws = named_generator(0, "pixels")
    matching_ = coordinates(torch.zeros(2, 1, 4))
    gradients = [residual_gradient(matching_, torch.randn(16, 1, 8, 8, generator=draws)) for _ in range(300)]
    first = torch.stack(
        [
            residual_gradient(coordinates(torch.zeros(2, 1, 4)), torch.randn(16, 1, 8, 8, generator=draws))
            for _ in range(300)
        ]
    )
    assert float(torch.stack(gradients[20:]).std()) < 0.5 * float(first.std())


def test_a_class_that_had_no_turn_remembers_nothing() -> None:
    matching_ = coordinates(torch.zeros(2, 1, 4))
    matching_._along_residuals(0, torch.ones(8, 1, 8, 8), torch.tensor([1]), torch.tensor([0]))
    assert matching_.estimates[0].flatten().tolist() == [0, 1]
    assert float(matching_.residuals[0][0].abs().max()) == 0
    assert torch.equal(matching_.residuals[0][1], torch.ones(1, 4))


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
