"""Critic and generator of DPAF: each step moves what it should and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.engines.aggregated_adversary import Adversary, fake_loss, real_loss
from veilset.engines.aggregation_settings import AggregationSettings
from veilset.engines.group_means import GroupMeans
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
        "batch": 16, "class_shares": torch.ones(2), "noisy_slopes": True, "draws": named_generator(0, "draws"),
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


def real_means(made: Adversary, noise_std: float = 0.0) -> GroupMeans:
    shape = torch.Size((2, *made.critic.feature_shape))
    return GroupMeans(
        torch.linspace(-1, 1, shape.numel()).reshape(shape), torch.full((2,), noise_std), torch.full((2,), 2.0)
    )


def test_each_step_moves_its_own_part_alone() -> None:
    made = adversary()
    before = snapshot(made)
    made.judge(real_means(made))
    assert moved(made, before) == {"after"}
    before = snapshot(made)
    made.collect([torch.zeros_like(g) for g in made.collected[:-1]])
    made.improve()
    assert moved(made, before) == {"before"}
    before = snapshot(made)
    made.teach()
    assert moved(made, before) == {"generator"}


@pytest.mark.parametrize("shares", [[1, 1], [3, 1], [9, 1], [0, 2]], ids=str)
def test_a_batch_has_as_many_labels_of_a_class_as_its_share_says_up_to_one(shares: list[float]) -> None:
    made = adversary(batch=15, class_shares=torch.tensor(shares, dtype=torch.float32))
    counts = torch.stack([made._labels().bincount(minlength=2) for _ in range(200)]).float()
    wanted = 15 * torch.tensor(shares) / sum(shares)
    assert bool(((counts - wanted).abs() < 1).all())
    assert counts.mean(0).tolist() == pytest.approx(wanted.tolist(), abs=0.2), "over many batches exactly its share"


def test_the_generator_learns_to_make_images_whose_own_class_takes_them_for_real() -> None:
    made = adversary()
    made.judge(real_means(made))  # a critic that tells its classes apart
    labels, before = torch.arange(16) % 2, snapshot(made)["generator"]
    images = made.generator.sample(labels, named_generator(0, "latents"))
    scores = made.critic.scored(made.critic.features(images, labels))[torch.arange(16), labels]
    wanted = torch.autograd.grad(torch.log1p(torch.exp(-scores)).mean(), list(made.generator.parameters()))
    made.draws.set_state(named_generator(0, "latents").get_state())
    made._teach_step(labels)
    for gradient, old, new in zip(wanted, before, made.generator.parameters(), strict=True):
        clear = gradient.abs() > 1e-6  # of Adam's first step only the signs tell
        assert torch.equal((new - old).sign()[clear], -gradient.sign()[clear])


def test_the_owner_is_told_which_scores_are_of_real_means() -> None:
    made = adversary()
    for _ in range(100):
        made.judge(real_means(made))
    real, fake = made.last_scores.tolist()
    assert real > 1 > -1 > fake


def test_judging_again_and_again_tells_real_means_from_generated_ones() -> None:
    made = adversary()
    means = real_means(made)
    for _ in range(100):
        made.judge(means)
    _, fake = made._fakes(made._labels(), torch.zeros(2))
    real_scores, fake_scores = (made.critic.score_means(of.values).detach() for of in (means, fake))
    assert float(real_scores.min()) > 1 > -1 > float(fake_scores.max()), "of each class"


def test_the_means_of_two_classes_that_are_exchanged_are_not_taken_for_real() -> None:
    """A score that all classes share could not tell them apart, and a generator would learn no class."""
    made = adversary()
    means = real_means(made)
    for _ in range(100):
        made.judge(means)
    right, exchanged = (made.critic.score_means(values).detach() for values in (means.values, means.values.flip(0)))
    assert float(right.min()) > float(exchanged.max())


def test_the_slope_is_the_gradient_of_the_loss_of_real_means() -> None:
    made = adversary()
    made.critic.double()
    means = real_means(made).values.double()
    step = 1e-4 * torch.randn(means.shape, generator=named_generator(1, "step"))
    change = real_loss(made.critic.score_means(means + step)) - real_loss(made.critic.score_means(means - step))
    assert float(change.detach()) == pytest.approx(float(2 * (made.real_slope(means) * step).sum()), rel=1e-2)


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
    made, again = (adversary(class_shares=torch.tensor([5.0, 3.0])) for _ in range(2))
    labels = again._labels()
    images = again.generator.sample(labels, again.draws).detach()
    assert len(labels.bincount().unique()) == 2, "classes are uneven, or the weights of gradients were not tested"
    features = again.critic.features(images, labels)
    means = torch.stack([features[labels == label].mean(dim=0) for label in range(2)])
    wanted = torch.autograd.grad(fake_loss(again.critic.score_means(means)), again.critic.before_average())
    for ours, theirs in zip(made._fake_gradients(), wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-2 * float(theirs.abs().max()) + 1e-3)


def test_means_of_generated_images_get_the_noise_of_released_ones() -> None:
    """Each class its own: fewer real images leave more noise in their mean."""
    labels = torch.arange(16) % 2
    plain, noisy = (adversary()._fakes(labels, torch.tensor(std))[1].values for std in ((0.0, 0.0), (2.0, 8.0)))
    assert (noisy - plain).flatten(1).std(dim=1).tolist() == pytest.approx([2.0, 8.0], rel=0.2)


def test_gradients_are_taken_at_means_with_the_noise_that_real_ones_have_there() -> None:
    """As published there is none, whatever the released means have."""

    def gradients(noise_std: float, noisy_slopes: bool) -> Tensor:
        made = adversary(noisy_slopes=noisy_slopes, head_rate=0.0)
        made.judge(real_means(made, noise_std))
        return torch.cat([value.flatten() for value in made._fake_gradients()])

    clean, published, repaired = gradients(0.0, True), gradients(2.0, False), gradients(2.0, True)
    assert torch.equal(clean, published)
    assert not torch.allclose(clean, repaired, rtol=0.1)
