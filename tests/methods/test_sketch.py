"""The sketch method: shares of the budget, what is released, and what the open side makes of it."""

from __future__ import annotations

import math

import pytest
import torch
from contract.cases import TINY, make_images, tiny_plan
from contract.sensitivity import run_world

import veilset
from veilset.engines.sketch_settings import MOST_KINDS, SketchConfig, clear_kinds
from veilset.engines.targets import Released
from veilset.errors import ConfigError
from veilset.methods.base import PublicFacts, get_method, make_config
from veilset.nets.mixed_features import MIXTURES
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.gaussian import gaussian_mu
from veilset.sketch_file import Round

SKETCH = get_method("sketch")


def facts_of(images, adjacency=Adjacency.ADD_REMOVE) -> PublicFacts:
    return PublicFacts(spec=images.spec, declared_size=len(images), adjacency=adjacency, unit=Unit.RECORD)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_rounds_share_mu_squared_and_cost_together_what_one_round_would(rounds: int) -> None:
    config = SketchConfig(rounds=rounds)
    assert sum(config.shares) == pytest.approx(1)
    facts = facts_of(make_images())
    cost = price(SKETCH.events(config, facts, 1 / gaussian_mu(1.0, 1e-5)), 1e-5, Adjacency.ADD_REMOVE)
    assert cost.epsilon == pytest.approx(1.0, rel=1e-6)


def test_noise_free_targets_are_the_mean_features_of_each_class() -> None:
    images = make_images((40, 30, 20))
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    sums = run_world(SKETCH, config, facts_of(images), images).outputs[0].float()
    measured = Round(SKETCH.layout(config).random_bank(images.spec), sums)
    targets = Released([measured], [1.0], config.total_weight, len(images)).of_kinds(torch.device("cpu"))
    for (bank, _), target in zip(measured.bank.parts, targets, strict=True):
        features = bank.exact(images.pixels.float() / 255)
        for label in range(3):
            expected = features[images.labels == label].mean(0).float()
            assert torch.allclose(target.means[label], expected, atol=2e-3)


@pytest.mark.parametrize(("accounting", "rounds_evened"), [("proven", [1, 2]), ("none", [])])
def test_noise_is_evened_over_classes_in_every_round_where_there_is_any(
    accounting: str, rounds_evened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    evened, plain = [], Released.sums

    def noticed(self: Released, number: int) -> torch.Tensor:
        evened.extend([number + 1] if self.evening is not None else [])
        return plain(self, number)

    monkeypatch.setattr(Released, "sums", noticed)
    epsilon = 1.0 if accounting == "proven" else None
    veilset.fit(make_images((40, 30, 20)), method="sketch", epsilon=epsilon, accounting=accounting, **TINY["sketch"])
    assert evened == rounds_evened


def test_networks_of_the_second_round_are_seen_from_the_middle_of_synthetic_images() -> None:
    images = make_images((40, 30, 20))
    config = make_config(SKETCH, TINY["sketch"])
    kept = run_world(SKETCH, config, facts_of(images), images)
    first, second = kept.captures
    tones = 7 * 7 * 25
    assert first.values.shape == (3, config.networks * 9 * config.width + tones + 1), "with a count"
    assert second.values.shape == (3 * config.kinds, config.trained_networks * MIXTURES + tones + 1)


def test_one_record_moves_a_release_by_its_own_length_and_no_more() -> None:
    images = make_images((9, 8, 7))
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    whole = run_world(SKETCH, config, facts_of(images), images).captures[0]
    without = run_world(SKETCH, config, facts_of(images), images.subset(torch.arange(1, len(images)))).captures[0]
    moved = ((whole.values - without.values).double() * whole.grid_step).norm()
    assert float(moved) == pytest.approx(math.hypot(1, config.total_weight), rel=1e-4)


def test_one_record_enters_the_sum_of_one_kind_of_its_class() -> None:
    images = make_images((9, 8, 7))
    config = make_config(SKETCH, TINY["sketch"])
    outputs = run_world(SKETCH, config, facts_of(images), images).outputs
    whole, without = (
        run_world(SKETCH, config, facts_of(images), some, transcript=outputs).captures[1].values
        for some in (images, images.subset(torch.arange(1, len(images))))
    )
    moved = (whole != without).any(1).reshape(3, config.kinds)
    assert moved.sum() == 1
    assert moved[int(images.labels[0])].sum() == 1


def test_kinds_are_as_many_as_the_noise_allows_and_the_owner_can_decide_otherwise() -> None:
    facts = facts_of(make_images((400, 400, 400)))
    numbers = [clear_kinds(SketchConfig(), facts, noise) for noise in (1e-3, 0.5, 1e3)]
    assert numbers[0] == MOST_KINDS
    assert MOST_KINDS > numbers[1] > numbers[2] == 1
    assert SKETCH.settled(SketchConfig(), facts, 1e-3).kinds == MOST_KINDS
    assert SKETCH.settled(SketchConfig(kinds=3), facts, 1e-3).kinds == 3


def test_a_forecast_counts_what_every_kind_of_a_class_takes() -> None:
    spec = veilset.ImageSpec(height=28, width=28, channels=1, class_names=tuple(map(str, range(100))))
    facts = PublicFacts(spec=spec, declared_size=60_000, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    none, few, many = (SKETCH.forecast(SketchConfig(kinds=kinds), facts, 1.0).megabytes for kinds in (1, 2, 12))
    numbers = 4 * MIXTURES + 7 * 7 * 25
    assert many - few == pytest.approx(16e-6 * 100 * 10 * numbers)
    assert few - none > 8e-6 * SketchConfig().training_images * numbers


@pytest.mark.parametrize("kinds", [1, 2, 4, 8])
def test_a_step_shows_as_many_images_whatever_the_number_of_kinds(kinds: int) -> None:
    for config in (SketchConfig(), SketchConfig(images_per_class=16)):
        groups, each = config.groups_of_a_step(10, kinds)
        assert groups * each == 10 * config.images_per_class
        assert groups <= 10 * kinds


@pytest.mark.parametrize("kinds", [1, 3, 6])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_few_classes_do_not_starve_a_step(classes: int, kinds: int) -> None:
    config = SketchConfig()
    groups, each = config.groups_of_a_step(classes, kinds)
    assert 1 <= groups <= classes * kinds
    assert 30 < groups * each <= 40


@pytest.mark.parametrize("preset", ["fast", "balanced", "best"])
def test_a_preset_sets_what_is_not_given_beside_it(preset: str) -> None:
    chosen = make_config(SKETCH, {"preset": preset, "steps": 7})
    assert (chosen.preset, chosen.steps) == (preset, 7)
    assert chosen.networks == {**{"networks": SketchConfig().networks}, **SKETCH.presets[preset]}["networks"]


def test_only_the_preset_for_two_cores_tells_kinds_of_a_class_apart() -> None:
    facts = facts_of(make_images((400, 400, 400)))
    kinds = {name: SKETCH.settled(make_config(SKETCH, {"preset": name}), facts, 1e-3).kinds for name in SKETCH.presets}
    assert kinds.pop("fast") > 1
    assert kinds == {"balanced": 1, "best": 1}


def test_an_unknown_preset_names_its_neighbours() -> None:
    with pytest.raises(ConfigError, match="balanced"):
        make_config(SKETCH, {"preset": "balance"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"networks": 0}, {"rounds": 0}, {"rounds": 11}, {"first_share": 1.0}, {"tone_share": 0.0},
        {"images_per_class": 1}, {"kinds": -1}, {"learning_rate": 0.0}, {"total_weight": 0.0}, {"jitter": "letters"},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        SketchConfig(**wrong)


def test_a_sketch_that_would_not_fit_is_refused_at_plan_time() -> None:
    images = make_images((1,) * 3)
    with pytest.raises(ConfigError, match="networks"):
        tiny_plan(images, "sketch", networks=10**6, width=100)


def test_samples_are_jittered_as_declared_and_survive_saving(tmp_path) -> None:
    images = make_images()
    still, moved = (
        veilset.fit(
            images, epsilon=5.0, method="sketch", declared_size=20, **{**TINY["sketch"], "jitter": kind, "rounds": 1}
        )
        for kind in ("none", "handwriting")
    )
    assert moved._module.jitter.degrees == 15
    assert still._module.jitter.degrees == 0
    saved = veilset.from_pretrained(moved.save(tmp_path / "model"))
    assert saved._module.jitter == moved._module.jitter
    assert torch.equal(saved.sample(6, seed=1).pixels, moved.sample(6, seed=1).pixels)
