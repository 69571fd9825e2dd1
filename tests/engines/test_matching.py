"""Matching recovers a distribution from its mean features: its gradient is that of the distance of means alone."""

from __future__ import annotations

import math

import pytest
import torch
from bar_images import SPEC, bars
from devices import NEEDS_CUDA

from veilset.engines import matching
from veilset.engines.matching import Effort, Streams, Target, match
from veilset.nets import half_precision
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
    fields = {
        "steps": 60, "groups_per_step": 2, "images_per_group": 8, "networks_per_step": 2, "learning_rate": 0.01,
        "checkpoint_every": 10,
    }  # fmt: skip
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


def assert_upright(generator: UpsamplingGenerator, device: torch.device | str = "cpu") -> None:
    """Bars of the first class stand, those of the second lie."""
    labels = torch.tensor([0] * 50 + [1] * 50, device=device)
    with torch.no_grad():
        images = generator.sample(labels, named_generator(3, "samples", device))
    upright = images.mean(2).std(-1).flatten() > images.mean(3).std(-1).flatten()
    assert upright[:50].float().mean() > 0.8
    assert upright[50:].float().mean() < 0.2


class Coordinates(Bank):
    """The first pixels themselves: a bank whose mean features are the images' means."""

    def __init__(self) -> None:
        super().__init__(1, 4)

    def soft(self, images: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, None, :4]


def coordinates(means: torch.Tensor) -> matching._Matching:
    return matching._Matching(new_generator(), [Target(Coordinates(), means, 1.0)], effort(), streams())


def residual_gradient(matching_: matching._Matching, images: torch.Tensor) -> torch.Tensor:
    """Of one step without an update: for every image, of its coordinates."""
    pixels = images.clone().requires_grad_()
    loss = matching_._along_residuals(0, pixels, torch.tensor([0, 1]), torch.tensor([0]))
    matching_.now += 1
    (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient.flatten(1)[:, :4]


def gradients(remembering: bool, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of many steps, and how far each image was from the mean of its class, which is 0.1 off the target."""
    draws = named_generator(0, "pixels")
    means = torch.randn(2, 1, 4, generator=draws)
    true_means = (means + 0.1).repeat_interleave(8, dim=0)[:, 0]
    matching_, found = coordinates(means), []
    for _ in range(number):
        if not remembering:
            matching_.seen[0].fill_(-torch.inf)
        spread = torch.randn(16, 4, generator=draws)
        images = torch.zeros(16, 64)
        images[:, :4] = true_means + spread
        found.append((residual_gradient(matching_, images.reshape(16, 1, 8, 8)), spread))
    one, other = zip(*found[50:], strict=True)
    return torch.stack(one), torch.stack(other)


@pytest.mark.parametrize("remembering", [False, True])
def test_the_expected_gradient_is_that_of_the_squared_distance_and_the_variance_has_no_part_in_it(remembering) -> None:
    found, spread = gradients(remembering, 4_000)
    # Of |mean - target|^2: 2 (0.1) / 8 for every image.
    assert float(found.mean()) == pytest.approx(2 * 0.1 / 8, rel=0.1)
    # An image that helped to estimate its own residual would add 2 / 8 of its spread / 8, or a tenth of that.
    assert float((found * spread).mean()) == pytest.approx(0, abs=2 / 8 / 8 / (10 if remembering else 1) / 4)


def test_remembering_lowers_the_chance_in_a_step() -> None:
    fresh, _ = gradients(False, 1_000)
    remembered, _ = gradients(True, 1_000)
    assert float(remembered.std()) < 0.4 * float(fresh.std())


def test_what_is_remembered_fades_with_the_steps_since() -> None:
    matching_ = coordinates(torch.zeros(2, 1, 4))
    ones, zeros = torch.ones(16, 1, 8, 8), torch.zeros(16, 1, 8, 8)
    for steps, left in ((1, 0.9), (matching.HORIZON, 0.9 / math.e), (100 * matching.HORIZON, 0)):
        matching_.seen[0].fill_(-torch.inf)
        residual_gradient(matching_, ones)
        matching_.now += steps - 1
        assert float(residual_gradient(matching_, zeros).mean()) == pytest.approx(2 / 8 * left, rel=0.01, abs=1e-6)


def test_a_class_that_had_no_turn_remembers_nothing() -> None:
    matching_ = coordinates(torch.zeros(2, 1, 4))
    matching_._along_residuals(0, torch.ones(8, 1, 8, 8), torch.tensor([1]), torch.tensor([0]))
    assert matching_.seen[0].flatten().tolist() == [-math.inf, 0]
    assert float(matching_.residuals[0][0].abs().max()) == 0
    assert torch.equal(matching_.residuals[0][1], torch.ones(1, 4))


def test_classes_and_networks_in_any_order_are_moved_along_their_own_residuals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_precision, "multiplies_bfloat16", lambda: False)  # the two ways round differently in it
    networks = FeatureBank.draw(SPEC, 4, 8, named_generator(0, "bank"))
    goal = target(networks, 1.0)
    images = bars(6)[0][:6].clone().requires_grad_()
    classes, which = torch.tensor([1, 0]), torch.tensor([3, 1])
    loss = matching._Matching(new_generator(), [goal], effort(), streams())._along_residuals(0, images, classes, which)
    (found,) = torch.autograd.grad(loss, images)
    plain = torch.zeros(())
    for row, label in enumerate(classes.tolist()):
        for network in which.tolist():
            features = networks.soft(images[3 * row : 3 * row + 3], torch.tensor([network]))[:, 0]
            for number in range(3):
                others = torch.stack([features[other] for other in range(3) if other != number]).mean(0)
                residual = (others - goal.means[label, network]).detach()
                plain = plain + 2 * (features[number] * residual).sum() / 3 / 2
    (expected,) = torch.autograd.grad(plain, images)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@NEEDS_CUDA
def test_on_cuda_the_step_is_a_graph_and_learns(recwarn: pytest.WarningsRecorder) -> None:
    device = torch.device("cuda")
    goals = [Target(goal.bank.to(device), goal.means.to(device), goal.weight) for goal in targets()]
    draws = Streams(draws=named_generator(0, "draws", device), order=named_generator(0, "order"))
    generator = match(
        new_generator().to(device), goals, effort(steps=500, images_per_group=16, networks_per_step=4), streams=draws,
        checkpoints=Memory(), name="g", progress=lambda done, total: None,
    )  # fmt: skip
    assert not [warning for warning in recwarn if "graph" in str(warning.message)], "the step was not captured"
    assert_upright(generator, device)


def test_a_generator_learns_what_the_classes_look_like_from_mean_features_alone() -> None:
    assert_upright(matched(steps=500, images_per_group=16, networks_per_step=4, learning_rate=0.005))


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
    seen = []

    def watch(self, groups, networks, loss=matching._Matching.loss):
        seen.append(int(groups))
        assert len(groups) == 1
        return loss(self, groups, networks)

    monkeypatch.setattr(matching._Matching, "loss", watch)
    matched(steps=20, groups_per_step=1)
    assert set(seen) == {0, 1}
