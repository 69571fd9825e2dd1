"""Critic and generator of DPAF: each step moves what it should and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.engines.aggregated_adversary import Adversary, fake_loss, real_loss
from veilset.engines.aggregation_settings import AggregationSettings
from veilset.nets.generators import UpsamplingGenerator
from veilset.randomness import initialise, named_generator

SPEC = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b"))
CONFIG = AggregationSettings(layout="C1-C1-C1", width=16, dense_width=16, kept_share=1.0)


def adversary(**options: Any) -> Adversary:
    critic = CONFIG.critic(SPEC).drawn(named_generator(0, "critic"))
    critic.conv1.requires_grad_(False)
    generator = UpsamplingGenerator(SPEC, latent_size=3, channels=8)
    initialise(generator, named_generator(0, "generator"))
    defaults = {
        "batch": 16, "noise_std": 0.0, "slope_noise_std": 0.0, "draws": named_generator(0, "draws"),
        "clip_of": lambda slope: 1e3,
        "compression": lambda gradients, _: gradients, "body_rate": 0.1, "head_rate": 0.1, "generator_rate": 1e-3,
    }  # fmt: skip
    return Adversary(generator, critic, **{**defaults, **options})  # type: ignore[arg-type]


def snapshot(made: Adversary) -> dict[str, list[Tensor]]:
    critic = made.critic
    parts = {"conv1": critic.conv1.parameters(), "before": critic.before_average(), "after": critic.after_average(),
             "generator": made.generator.parameters()}  # fmt: skip
    return {name: [value.detach().clone() for value in values] for name, values in parts.items()}


def moved(made: Adversary, before: dict[str, list[Tensor]]) -> set[str]:
    after = snapshot(made)
    return {
        name for name in before if any(not torch.equal(a, b) for a, b in zip(before[name], after[name], strict=True))
    }


def real_mean(made: Adversary) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(made.critic.feature_shape).numel()).reshape(made.critic.feature_shape)


def test_each_step_moves_its_own_part_alone() -> None:
    made = adversary()
    before = snapshot(made)
    made.judge(real_mean(made))
    assert moved(made, before) == {"after"}
    before = snapshot(made)
    made.collect([torch.zeros_like(g) for g in made.collected[:-1]])
    made.improve()
    assert moved(made, before) == {"before"}
    before = snapshot(made)
    made.teach()
    assert moved(made, before) == {"generator"}


def test_judging_again_and_again_tells_real_means_from_generated_ones() -> None:
    made = adversary()
    mean = real_mean(made)
    for _ in range(100):
        made.judge(mean)
    _, fake = made._fakes(made._labels(), 0.0)
    real_score, fake_score = made.critic.score(torch.stack([mean, fake])).detach()
    assert float(real_score) > 1 > -1 > float(fake_score)


def test_the_slope_is_the_gradient_of_the_loss_of_a_real_mean() -> None:
    made = adversary()
    mean = real_mean(made)
    step = 1e-3 * torch.randn(mean.shape, generator=named_generator(1, "step"))
    change = real_loss(made.critic.score((mean + step)[None])) - real_loss(made.critic.score((mean - step)[None]))
    assert float(change.detach()) == pytest.approx(float(2 * (made.real_slope(mean) * step).sum()), rel=1e-2)


def test_collected_gradients_are_averaged_and_then_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made = adversary(body_rate=0.5)
    monkeypatch.setattr(made, "_fake_gradients", lambda: [torch.zeros_like(g) for g in made.collected[:-1]])
    before = snapshot(made)["before"]
    for value in (1.0, 3.0):
        made.collect([torch.full_like(g, value) for g in made.collected[:-1]])
    made.collect(None)
    made.improve()
    for old, new in zip(before, made.critic.before_average(), strict=True):
        assert torch.allclose(new, old - 0.5 * 2.0)
    assert not any(bool(g.any()) for g in made.collected)


def test_gradients_of_generated_images_are_clipped_as_those_of_real_ones() -> None:
    lengths = []
    for clip in (1e-3, 2e-3):
        found = adversary(clip_of=lambda slope, clip=clip: clip)._fake_gradients()
        lengths.append(float(torch.cat([g.flatten() for g in found]).norm()))
    assert lengths[0] <= 1e-3
    assert lengths[1] == pytest.approx(2 * lengths[0], rel=1e-2)


def test_without_a_clip_gradients_of_generated_images_are_those_of_their_loss() -> None:
    made = adversary()
    again = adversary()
    labels = again._labels()
    images = again.generator.sample(labels, again.draws).detach()
    mean = again.critic.features(images, labels).mean(dim=0)
    wanted = torch.autograd.grad(fake_loss(again.critic.score(mean[None])), again.critic.before_average())
    for ours, theirs in zip(made._fake_gradients(), wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-2 * float(theirs.abs().max()) + 1e-3)


def test_means_of_generated_images_get_the_noise_of_released_ones() -> None:
    plain, noisy = (adversary()._fakes(torch.zeros(16, dtype=torch.int64), std)[1] for std in (0.0, 2.0))
    assert float((noisy - plain).std()) == pytest.approx(2.0, rel=0.2)


def test_gradients_are_taken_at_means_with_the_noise_that_real_ones_have_there() -> None:
    """As published there is none, whatever the released means have."""
    clean, published, repaired = (
        torch.cat([value.flatten() for value in adversary(**options)._fake_gradients()])
        for options in ({}, {"noise_std": 2.0}, {"noise_std": 2.0, "slope_noise_std": 2.0})
    )
    assert torch.equal(clean, published)
    assert not torch.allclose(clean, repaired, rtol=0.1)
