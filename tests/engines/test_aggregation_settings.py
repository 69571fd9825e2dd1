"""How the budget of DPAF is divided, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from veilset.data.spec import ImageSpec
from veilset.engines.aggregation_settings import DRIFT, AggregationSettings
from veilset.engines.contexts import PublicFacts
from veilset.errors import ConfigError
from veilset.privacy.accounting import renyi_epsilon
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import Repeated
from veilset.randomness import named_generator

MNIST = ImageSpec(height=28, width=28, channels=1, class_names=tuple("0123456789"))
FACTS = PublicFacts(spec=MNIST, declared_size=60_000, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)


@pytest.mark.parametrize(
    "settings",
    [
        {"construction": "repared"}, {"layout": "C2"}, {"width": 24}, {"steps": 10, "asymmetry": 8}, {"topagg": -1},
        {"dense_width": 20},
        {"kept_share": 0.0}, {"kept_share": 1.1}, {"clip_norm": 0.0}, {"classifier_share": 0.7, "gradient_share": 0.3},
        {"classifier_share": 0.0}, {"expected_batch": 0}, {"critic_steps": 0}, {"head_rate": float("nan")},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AggregationSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kept_share": 1.5}, "kept_share 1.5"), ({"classifier_share": 0.8, "gradient_share": 0.3}, "0.8 \\+ 0.3"),
        ({"transfer": "all"}, "none, critic, both"), ({"transfer": "critic"}, "no public images"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_option_and_what_was_found(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AggregationSettings(**settings)


@pytest.mark.parametrize("construction", ["repaired", "published"])
def test_each_stage_costs_its_share_of_the_renyi_budget(construction: str) -> None:
    """To first order, where noise is large: the Renyi divergence of a stage alone, at a fixed order, by its share."""
    config = AggregationSettings(construction=construction, classifier_share=0.2, gradient_share=0.3, steps=800)
    costs = [count * (rate / noise) ** 2 for noise, rate, count in config.stages(FACTS, 50.0)]
    shares = [cost / sum(costs) for cost in costs]
    assert shares == pytest.approx([0.2, 0.5, 0.3], rel=1e-9)


def test_two_halves_of_the_budget_cost_about_the_same_by_the_accountant_too() -> None:
    """About: the shares are exact in the limit of large noise only."""
    config = AggregationSettings(classifier_share=0.5, gradient_share=0.25, steps=800)
    one, two = (
        renyi_epsilon(Repeated(count, event), 1e-5, Adjacency.ADD_REMOVE) for event, count in config.charges(FACTS, 5.0)
    )
    assert one == pytest.approx(two, rel=0.2)


def test_means_are_bounded_by_the_square_root_of_their_maps_times_the_side() -> None:
    assert AggregationSettings().feature_bound(MNIST) == pytest.approx(128**0.5 * 4)


def test_a_published_clip_does_not_depend_on_the_slope_which_is_private_there() -> None:
    for construction, ratio in (("published", 1.0), ("repaired", 10.0)):
        config = AggregationSettings(construction=construction)
        short, long = (config.clip_of(torch.full((2, 4), size)) for size in (0.1, 1.0))
        assert long == pytest.approx(ratio * short)
    assert AggregationSettings().clip_of(torch.zeros(2, 4)) > 0


def test_a_layout_too_deep_for_the_images_is_refused_before_anything_is_planned() -> None:
    with pytest.raises(ConfigError, match="one pixel"):
        AggregationSettings(layout="C3-C2-x").events(FACTS, 1.0)


@pytest.mark.parametrize("construction", ["repaired", "published"])
def test_noise_alone_leaves_weights_what_they_are(construction: str) -> None:
    """At the rates asked for, it would carry them many times as far as they are long."""
    config = AggregationSettings(construction=construction, width=16, steps=800, classifier_steps=200)
    draws = named_generator(0, "weights")
    classifier, critic = config.classifier(MNIST).drawn(draws), config.critic(MNIST).drawn(draws)
    rate, body_rate = config.steady_rates(FACTS, 4.0, classifier, critic)
    std = config.noises(4.0)[0] * config.clip_norm / config.expected_batch
    for weight in (value for value in classifier.parameters() if value.ndim > 1):
        noises = std * torch.randn(200, *weight.shape, generator=draws)
        moved = rate * noises.sum(dim=0)
        assert float(moved.norm()) <= 1.1 * DRIFT * float(weight.detach().norm())
    assert rate < config.classifier_rate
    assert body_rate < config.body_rate
    assert config.steady_rates(FACTS, 0.0, classifier, critic) == (config.classifier_rate, config.body_rate)


@pytest.mark.parametrize(("layout", "side", "warned"), [("C2-C2-C1", 32, True), ("C2-C1-C1", 32, False),
                                                        ("C2-C2-C1", 64, False)])  # fmt: skip
def test_a_layout_that_leaves_four_pixels_of_a_map_is_warned_of(layout: str, side: int, warned: bool) -> None:
    spec = ImageSpec(height=side, width=side, channels=3, class_names=("a", "b"))
    found = AggregationSettings(layout=layout).cautions(spec)
    assert any("2 x 2 pixels" in text for text in found) == warned
