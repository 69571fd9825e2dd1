"""NDPDC: what is released of a class, and that the set follows from the releases alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract.cases import TINY, make_images
from contract.sensitivity import run_world

import veilset
from veilset.data.spec import ImageSpec
from veilset.engines.gradient_matching import FreePixels, Standard
from veilset.errors import ConfigError
from veilset.methods.base import PublicFacts, make_config
from veilset.methods.ndpdc import Ndpdc, NdpdcConfig, features_of, match_means
from veilset.nets import half_precision
from veilset.nets.classifiers import ConvNet
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import PoissonSampled, steps
from veilset.randomness import named_generator

MNIST = ImageSpec(height=28, width=28, channels=1, class_names=tuple("0123456789"))


def world(images: Any, transcript: Any = None) -> tuple[Any, Any]:
    """A fit without noise that is shown a given transcript: its door, and the set it made."""
    made = []

    class Keeping(Ndpdc):
        def fit(self, *arguments: Any) -> Any:
            made.append(super().fit(*arguments))

    facts = PublicFacts(spec=images.spec, declared_size=20, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    door = run_world(Keeping(), make_config(Ndpdc(), TINY["ndpdc"]), facts, images, transcript=transcript)
    return door, made[0].values


def test_all_records_are_drawn_at_one_public_rate() -> None:
    plan = veilset.plan(MNIST, method="ndpdc", epsilon=1.0, declared_size=60_000)
    ((event, count),) = steps(plan.planned).items()
    assert count == 10_000
    assert isinstance(event, PoissonSampled)
    assert event.rate == 500 / 60_000


def test_given_the_same_releases_the_set_is_the_same_whatever_the_private_images_are() -> None:
    door, made = world(make_images((7, 5, 3)))
    other, same = world(make_images((2, 9, 9), seed=1), door.outputs)
    assert torch.equal(made, same)
    assert any(not torch.equal(a.values, b.values) for a, b in zip(door.captures, other.captures, strict=True))


def test_a_release_has_a_row_of_features_and_a_count_for_every_class() -> None:
    door, _ = world(make_images((7, 5, 3)))
    assert [tuple(out.shape) for out in door.outputs] == [(3, 16 + 1)] * 4
    assert door.captures[0].allowed == pytest.approx((1 + 0.15**2) ** 0.5)


def test_matching_brings_the_mean_features_of_a_class_to_their_targets() -> None:
    spec, standard = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b")), Standard(0.5, 0.25)
    network = ConvNet(spec, named_generator(0, "weights"), width=4).requires_grad_(False)
    made = FreePixels(spec, 3, standard, named_generator(0, "set"))
    other = FreePixels(spec, 3, standard, named_generator(1, "set"))
    features = network.features(other().detach())
    targets = (features / features.norm(dim=1, keepdim=True).clamp(min=1)).reshape(2, 3, -1).mean(1)
    optimiser = torch.optim.SGD(made.parameters(), lr=1.0, momentum=0.5)
    distances = [float(match_means(network, made, optimiser, targets, 1.0)) for _ in range(40)]
    assert distances[-1] < 0.2 * distances[0]


@pytest.mark.parametrize("multiplies", [True, False])
@pytest.mark.parametrize(("batch", "width"), [(8, 128), (64, 32)])
def test_a_record_has_the_same_features_at_every_place_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, multiplies: bool, batch: int, width: int
) -> None:
    monkeypatch.setattr(half_precision, "multiplies_bfloat16", lambda: multiplies)
    network = ConvNet(MNIST, named_generator(0, "network"), width=width).requires_grad_(False)
    images = torch.rand(batch, *MNIST.shape, generator=named_generator(0, "images"))
    others = torch.rand(batch, *MNIST.shape, generator=named_generator(1, "images"))
    expected = features_of(network, images)
    assert expected.dtype is torch.float32
    for shift in (1, batch // 2, batch - 1):
        assert torch.equal(features_of(network, images.roll(shift, 0)), expected.roll(shift, 0))
        others[shift] = images[0]
        assert torch.equal(features_of(network, others)[shift], expected[0])


@pytest.mark.parametrize("settings", [{"steps": 0}, {"clip_norm": 0.0}, {"total_weight": 0.0}, {"deviation": 0.0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        NdpdcConfig(**settings)


def test_a_group_that_is_too_large_is_refused_with_the_largest_that_is_not() -> None:
    facts = PublicFacts(spec=MNIST, declared_size=600, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    with pytest.raises(ConfigError, match=r"found 610 \(10 times --group 61\)\n.*--group from 1 to 60"):
        Ndpdc().terms(NdpdcConfig(group=61), facts)
    assert Ndpdc().terms(NdpdcConfig(group=60), facts).rate == 1


def test_its_claim_speaks_of_features_and_of_samples_only_where_not_everybody_is_in_them() -> None:
    batches, rows, *_ = Ndpdc.assumptions
    assert "features" in rows
    assert batches.endswith("unless every record is in them")


def test_the_small_preset_is_short_and_single_options_win() -> None:
    config = make_config(Ndpdc(), {"preset": "small", "width": 32})
    assert (config.releases, config.width, config.pixel_rate) == (1000, 32, 30.0)
    assert make_config(Ndpdc(), {}).releases == 10_000
