"""What DPAF releases about a batch: at which mean a gradient is taken, what divides a sum, what two releases cost."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images
from contract.sensitivity import RecordingDoor, SameCoins, nulled
from torch import Tensor

from veilset.data.spec import ImageSet
from veilset.engines.aggregated_batches import (
    PublicBatches,
    PublishedBatches,
    RepairedBatches,
    feature_rows,
    published_pretraining,
    squared_errors,
)
from veilset.engines.aggregated_gradients import aligned_gradients
from veilset.engines.aggregation_settings import AggregationSettings
from veilset.engines.clipped_gradients import ClippedGradients
from veilset.engines.contexts import PublicFacts
from veilset.engines.noisy_counts import NoisyCounts
from veilset.engines.per_sample_gradients import PerSampleGradients
from veilset.errors import UnsupportedEvent
from veilset.nets.aggregating_critics import AggregatingCritic
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import NOTHING, Composed, Gaussian, PoissonSampled, steps
from veilset.privacy.ledger import PrivacyLedger
from veilset.randomness import named_generator

IMAGES = make_images((9, 8, 7))
FACTS = PublicFacts(spec=IMAGES.spec, declared_size=24, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
CPU = torch.device("cpu")


def settings(**options: Any) -> AggregationSettings:
    defaults = {"layout": "C1-C1-x", "width": 16, "dense_width": 16, "steps": 4, "asymmetry": 2, "classifier_steps": 1,
                "expected_batch": 12, "kept_share": 1.0}  # fmt: skip
    return AggregationSettings(**{**defaults, **options})


def door_for(config: AggregationSettings, folder: Path) -> RecordingDoor:
    ledger = PrivacyLedger.open_new(
        folder / "ledger.jsonl", planned=config.events(FACTS, 1.0), reserve=NOTHING, adjacency=FACTS.adjacency,
        unit=FACTS.unit, delta=1e-5, not_private="test",
    )  # fmt: skip
    return RecordingDoor(ledger, SameCoins(0))


def critic_of(config: AggregationSettings) -> AggregatingCritic:
    return config.critic(IMAGES.spec).drawn(named_generator(0, "critic"))


def repaired(config: AggregationSettings, door: RecordingDoor, images: ImageSet = IMAGES) -> RepairedBatches:
    _, mean_noise, gradient_noise = config.noises(1.0)
    critic = critic_of(config)
    return RepairedBatches(
        private=ClippedGradients(images, config.terms(FACTS), device=CPU), critic=critic, door=door,
        features=ClippedGradients(images, config.feature_terms(FACTS), device=CPU),
        counts=NoisyCounts(torch.zeros(critic.num_groups, dtype=torch.float64), config.expected_batch, noise_std=2.0),
        mean_noise=mean_noise, gradient_noise=gradient_noise, clip_of=config.clip_of, noise_std=1.0,
        compression=config.compression(named_generator(0, "coins")),
    )  # fmt: skip


def published(config: AggregationSettings, door: RecordingDoor, images: ImageSet = IMAGES) -> PublishedBatches:
    _, mean_noise, gradient_noise = config.noises(1.0)
    merged = config.terms(FACTS, batches=config.asymmetry)
    return PublishedBatches(
        private=ClippedGradients(images, config.terms(FACTS), device=CPU),
        merged=ClippedGradients(images, merged, device=CPU), critic=critic_of(config), door=door, mean_noise=mean_noise,
        gradient_noise=gradient_noise, clip_of=config.clip_of, asymmetry=config.asymmetry, noise_std=1.0,
        compression=config.compression(named_generator(0, "coins")),
    )  # fmt: skip


def some_slope(mean: Tensor) -> Tensor:
    return mean + torch.linspace(-1, 1, mean.numel()).reshape(mean.shape)


def test_a_batch_is_charged_once_for_both_of_its_releases_composed_inside_the_sample(tmp_path: Path) -> None:
    config = settings()
    door = door_for(config, tmp_path)
    repaired(config, door)(0, some_slope)
    _, means, gradients = config.noises(1.0)
    event = PoissonSampled(0.5, Composed((Gaussian(means), Gaussian(gradients))))
    assert door.ledger.charged == {event: 1}
    assert len(door.captures) == 2
    assert event in steps(config.events(FACTS, 1.0))


def test_the_gradient_is_taken_at_the_released_mean_and_at_no_other(tmp_path: Path) -> None:
    """World B is shown another mean than its own: its slope must be at that one."""
    config, shown = settings(), []
    door = door_for(config, tmp_path)
    pretended = torch.randn(3, 129, generator=named_generator(4, "mean"), dtype=torch.float64)
    door = RecordingDoor(door.ledger, door.noise, transcript=[pretended])

    def noting(mean: Tensor) -> Tensor:
        shown.append(mean)
        return some_slope(mean)

    batches = repaired(config, door)
    means, _ = batches(0, noting)
    sums, counts = pretended[:, :-1], pretended[:, -1] / batches.features.terms.total_weight
    wanted = sums / NoisyCounts(torch.zeros(3, dtype=torch.float64), 12, 2.0).after(counts, 1)[:, None]
    assert torch.equal(shown[0], wanted.float().reshape(means.values.shape))
    assert torch.equal(shown[0], means.values)


def test_sums_of_gradients_are_divided_by_the_expected_batch_and_not_by_that_which_came(tmp_path: Path) -> None:
    config = settings(expected_batch=6)
    door = door_for(config, tmp_path)
    _, gradients = repaired(config, door)(0, some_slope)
    gradient = door.captures[1].values[0] * door.captures[1].grid_step
    assert gradients is not None
    assert torch.allclose(torch.cat([g.flatten() for g in gradients]).double(), gradient.double() / 6, atol=1e-9)


def test_without_noise_and_clip_the_gradient_is_that_of_the_loss_of_the_mean(tmp_path: Path) -> None:
    """The chain rule: the sum over records of (gradient of its features along the slope of its class), each weighted by
    how much the mean of its class turns on it, is the gradient of the loss of all means."""
    config = settings(clip_norm=1e4, expected_batch=24)
    door = door_for(config, tmp_path)
    batches = repaired(config, door)
    batches.counts.sums += torch.tensor([9, 8, 7]) * 1e9
    means, found = batches(10**9 - 1, some_slope)
    critic = batches.critic
    inputs, labels = IMAGES.pixels / 255, IMAGES.labels
    features = critic.features(inputs, labels)
    mean = torch.stack([features[labels == label].mean(dim=0) for label in range(3)])
    assert torch.allclose(means.values, mean, atol=1e-3)
    wanted = torch.autograd.grad((mean * some_slope(means.values)).sum(), critic.before_average())
    assert found is not None
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=2e-2 * float(theirs.abs().max()) + 1e-4)


def test_gradients_are_clipped_in_proportion_to_the_public_length_of_the_slope(tmp_path: Path) -> None:
    bounds = []
    for number, factor in enumerate((1.0, 100.0)):
        (tmp_path / f"{number}").mkdir()
        door = door_for(settings(), tmp_path / f"{number}")
        repaired(settings(), door)(0, lambda means, factor=factor: factor * some_slope(torch.zeros_like(means)))
        bounds.append(door.captures[1].allowed)
    assert bounds[1] == pytest.approx(100 * bounds[0])


def test_the_slope_that_is_clipped_is_the_one_that_counts_images_of_a_small_class_more(tmp_path: Path) -> None:
    config = settings(expected_batch=24)
    door = door_for(config, tmp_path)
    batches = repaired(config, door)
    batches.counts.sums += torch.tensor([18, 3, 3]) * 1e9
    means, _ = batches(10**9 - 1, torch.ones_like)
    assert means.weights.tolist() == pytest.approx([24 / 18, 8, 8])
    length = config.clip_of(means.weights[:, None, None, None] * torch.ones_like(means.values))
    assert door.captures[1].allowed == pytest.approx(length, rel=1e-6)


def test_public_classes_stand_in_for_private_ones_modulo_their_number_and_count_by_their_sizes() -> None:
    config = settings(clip_norm=1e6)
    critic, asked = critic_of(config), []
    public = make_images((2, 0, 0, 6), height=8, width=8)  # the fourth class stands in for the first of three
    batches = PublicBatches(
        images=public, critic=critic, batch=32, draws=named_generator(0, "draws"), clip_of=config.clip_of,
        compression=lambda gradients, clip: asked.append(clip) or gradients,
    )  # fmt: skip
    means, gradients = batches(0, torch.ones_like)
    assert means.weights.tolist() == [1, 32, 32], "all images are of the first class, and none count as one"
    assert not bool(means.values[1:].any())
    assert asked == [pytest.approx(config.clip_of(means.weights[:, None, None, None] * torch.ones_like(means.values)))]
    assert gradients is not None


def test_a_gradient_on_a_draw_that_foresaw_only_the_mean_is_refused(tmp_path: Path) -> None:
    config = settings()
    door = door_for(config, tmp_path)
    batches = repaired(config, door)
    plain = batches.private.draw
    batches.private.draw = lambda door, *noise: plain(door, noise[0])  # type: ignore[method-assign]
    with pytest.raises(Exception, match="Nothing was released"):
        batches(0, some_slope)
    batches.private.draw = lambda door, *noise: plain(door)  # type: ignore[method-assign]
    with pytest.raises(Exception, match="Nothing was released"):
        batches(0, some_slope)
    draw = plain(door, *config.noises(1.0)[1:])
    rows, bound = feature_rows(batches.critic), config.feature_bound(IMAGES.spec)
    batches.private.release_mean(rows, draw, door, config.noises(1.0)[1], bound)
    with pytest.raises(UnsupportedEvent):
        batches.private.release_mean(rows, draw, door, config.noises(1.0)[1], bound)


def gradient_sums(construction: str, images: ImageSet, folder: Path, transcript: list[Tensor] | None) -> Any:
    """Sums of gradients before their noise, for a critic whose loss turns round where the mean passes a threshold."""
    folder.mkdir()
    config = settings(construction=construction, asymmetry=1, expected_batch=24)
    plain = door_for(config, folder)
    door = RecordingDoor(plain.ledger, plain.noise, transcript=transcript)

    def turning(mean: Tensor) -> Tensor:
        side = torch.linspace(-1, 1, mean.numel()).reshape(mean.shape)
        return side * torch.sign((mean * side).sum() - turning_point())

    made = repaired(config, door, images) if construction == "repaired" else published(config, door, images)
    made(0, turning)
    return door


@cache
def turning_point() -> float:
    """Between the means with and without the first record, of all the others."""
    config = settings(construction="published", expected_batch=24)
    critic, inputs = critic_of(config), IMAGES.pixels / 255
    features = critic.features(inputs, IMAGES.labels).detach().flatten(1)
    along = features @ torch.linspace(-1, 1, features.shape[1])
    return float(along.sum() + along[1:].sum()) / 2 / 24


def test_a_critic_that_one_record_turns_moves_all_published_gradients_and_no_repaired_one(tmp_path: Path) -> None:
    without = nulled(IMAGES, 0).second
    for construction in ("repaired", "published"):
        one = gradient_sums(construction, IMAGES, tmp_path / f"{construction} one", None)
        other = gradient_sums(construction, without, tmp_path / f"{construction} other", one.outputs)
        a, b = one.captures[1], other.captures[1]
        moved = float((a.values - b.values).double().norm()) * a.grid_step
        assert (moved <= a.allowed * (1 + 1e-6)) == (construction == "repaired"), f"{moved} of {a.allowed}"
        assert moved > 10 * a.allowed or construction == "repaired", "all 23 others turn"


def test_as_published_one_gradient_goes_with_so_many_batches_and_is_drawn_at_their_joint_rate(tmp_path: Path) -> None:
    config = settings(construction="published", expected_batch=6)
    door = door_for(config, tmp_path)
    _, mean_noise, gradient_noise = config.noises(1.0)
    batches = published(config, door)
    found = [batches(step, some_slope)[1] is not None for step in range(4)]
    assert found == [False, True, False, True]
    charged = {PoissonSampled(0.25, Gaussian(mean_noise)): 4, PoissonSampled(0.5, Gaussian(gradient_noise)): 2}
    assert door.ledger.charged == charged


def test_as_published_all_layers_after_the_first_learn_from_the_batch_without_noise(tmp_path: Path) -> None:
    config = settings(construction="published")
    door = door_for(config, tmp_path)
    classifier = config.classifier(IMAGES.spec).drawn(named_generator(0, "classifier"))
    private = ClippedGradients(IMAGES, config.terms(FACTS), device=CPU)
    compression = config.compression(named_generator(0, "coins"))
    found = published_pretraining(private, classifier, door, config.noises(1.0)[0], compression)
    assert [value.shape for value in found] == [value.shape for value in classifier.parameters()]
    (released,) = door.captures
    assert released.values.numel() == sum(value.numel() for value in classifier.conv1.parameters())


def test_rows_of_gradients_are_of_the_layers_before_the_mean_alone() -> None:
    critic = critic_of(settings())
    rows = aligned_gradients(critic, torch.ones(3, *critic.feature_shape))(IMAGES.pixels[:3] / 255, IMAGES.labels[:3])
    assert rows.shape == (3, sum(value.numel() for value in critic.before_average()))


@pytest.mark.parametrize("kind", ["classifier", "features", "gradients"])
@pytest.mark.parametrize("layout", ["C1-C1-x", "C2-C1-C1"])
def test_a_row_depends_to_the_last_bit_neither_on_other_records_nor_on_its_place(kind: str, layout: str) -> None:
    """A record that is taken out of a sample shifts all records after it by a place; what others are, and of which
    classes, is nothing to its row."""
    config = settings(layout=layout, kept_share=0.9)
    images = make_images((3, 3, 2), height=28, width=28)
    critic = config.critic(images.spec).drawn(named_generator(0, "critic"))
    classifier = config.classifier(images.spec).drawn(named_generator(0, "classifier"))
    compression = config.compression(named_generator(0, "coins"))
    slope = torch.randn(critic.num_groups, *critic.feature_shape, generator=named_generator(0, "slope"))
    rows_of = {
        "classifier": compression(PerSampleGradients(classifier, losses=squared_errors), 1.0),
        "features": feature_rows(critic),
        "gradients": compression(aligned_gradients(critic, slope), 1.0),
    }[kind]
    inputs, labels = images.pixels / 255, images.labels
    rows = rows_of(inputs, labels)
    for shift in range(1, 8):
        assert torch.equal(rows_of(inputs.roll(shift, 0), labels.roll(shift, 0)).roll(-shift, 0), rows)
    alone, others = (torch.cat([x[:1], y]) for x, y in ((inputs, 0 * inputs[1:]), (labels, (labels[1:] + 1) % 3)))
    assert torch.equal(rows_of(alone, others)[0], rows[0])
