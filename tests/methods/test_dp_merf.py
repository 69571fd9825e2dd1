"""DP-MERF: the reference value of the paper's noise, and what is particular to one mean embedding."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import TINY, digest, make_images, tiny_plan
from torch import Tensor

import veilset
from veilset.data.spec import ImageSet, to_unit_range
from veilset.errors import ConfigError
from veilset.methods import dp_merf
from veilset.methods.base import PublicFacts
from veilset.methods.dp_merf import DpMerf, DpMerfConfig, FourierFeatures, class_means, matching_loss
from veilset.privacy.bounds import Adjacency, GroupedSum, Unit
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import NoNoise, SeededNoise
from veilset.privacy.release import Door
from veilset.randomness import initialise, named_generator
from veilset.run import execute, resume

CONFIG = DpMerfConfig(**TINY["dp-merf"])


def facts_of(images: ImageSet, declared_size: int = 15, **options: Any) -> PublicFacts:
    terms = {"adjacency": Adjacency.ADD_REMOVE, "unit": Unit.RECORD, **options}
    return PublicFacts(spec=images.spec, declared_size=declared_size, **terms)


def test_the_papers_noise_for_epsilon_one_is_reproduced() -> None:
    """Renyi accounting with the classic conversion at (1, 1e-5), one release: cost + 2 sqrt(cost log(1/delta)) = 1."""
    multiplier = DpMerf().published_noise(CONFIG, facts_of(make_images()), 1.0, 1e-5)
    cost = 1 / (2 * multiplier**2)
    assert cost + 2 * math.sqrt(cost * math.log(1e5)) == pytest.approx(1.0, rel=1e-9)
    assert multiplier == pytest.approx(4.90, rel=5e-3)
    plan = tiny_plan(make_images(), "dp-merf", epsilon=1.0, accounting="published")
    assert plan.published is not None
    assert plan.published.status == "conservative"
    assert plan.epsilon_planned is not None
    assert plan.epsilon_planned < 1.0


def test_the_published_construction_takes_the_size_as_public_and_releases_no_count() -> None:
    plan = tiny_plan(make_images(), "dp-merf", accounting="published")
    assert plan.config["total_weight"] == 0.0
    assert tiny_plan(make_images(), "dp-merf", total_weight=0.5).config["total_weight"] == 0.5


def test_features_are_of_length_one_and_come_from_the_public_seed() -> None:
    images = make_images()
    features = FourierFeatures(CONFIG, images.spec)(to_unit_range(images.pixels))
    assert features.shape == (15, 16)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(15))
    torch.manual_seed(5)
    again = FourierFeatures(CONFIG, images.spec).frequencies
    torch.manual_seed(6)
    assert torch.equal(again, FourierFeatures(CONFIG, images.spec).frequencies)
    other = DpMerfConfig(**{**TINY["dp-merf"], "feature_seed": 1})
    assert not torch.equal(again, FourierFeatures(other, images.spec).frequencies)


def test_features_approximate_the_gaussian_kernel() -> None:
    config = DpMerfConfig(frequencies=4000)
    images = make_images()
    values = to_unit_range(images.pixels)
    rows = FourierFeatures(config, images.spec)(values)
    distances = torch.cdist(values.flatten(1), values.flatten(1)).square()
    kernel = torch.exp(-distances / (2 * config.width_per_value * images.spec.num_values))
    torch.testing.assert_close(rows @ rows.t(), kernel, atol=0.05, rtol=0)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[tuple[GroupedSum, float, Tensor]]:
    """Everything that went through the door: the sum, its noise multiplier and the result."""
    seen: list[tuple[GroupedSum, float, Tensor]] = []
    original = Door.release_sum

    def watching(self: Door, total: GroupedSum, noise_multiplier: float, **options: Any) -> Tensor:
        result = original(self, total, noise_multiplier, **options)
        seen.append((total, noise_multiplier, result))
        return result

    monkeypatch.setattr(Door, "release_sum", watching)
    return seen


def test_one_sum_is_released_once_with_the_declared_bound(released: list[Any], tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "dp-merf", total_weight=0.5)
    execute(images, plan, tmp_path / "run")
    ((total, multiplier, result),) = released
    assert multiplier == plan.noise_multiplier
    assert total.bound == pytest.approx(math.hypot(1, 0.5))
    assert result.shape == (3, 17)


@pytest.mark.parametrize(("unit", "cap", "factor"), [("record", None, 1), ("user", 3, 3)])
@pytest.mark.parametrize(("adjacency", "sides"), [("add-remove", 1), ("replace", 2)])
def test_noise_grows_with_the_cap_per_user_and_with_the_neighbours(
    unit: str, cap: int | None, factor: int, adjacency: str, sides: int, released: list[Any], tmp_path: Path
) -> None:
    images = make_images(per_user=4)
    plan = tiny_plan(images, "dp-merf", unit=unit, images_per_user=cap, adjacency=adjacency)
    execute(images, plan, tmp_path / "run")
    ((total, _, _),) = released
    expected = math.hypot(1, 0.25) * factor * sides
    assert total.sensitivity(Adjacency(adjacency)) == pytest.approx(expected)


def test_noise_of_the_declared_size_is_really_added(released: list[Any], tmp_path: Path) -> None:
    """600 frequencies and 3 classes: 3603 draws, whose spread is known to about 1 %; the band is four times that."""
    images = make_images()
    plan = tiny_plan(images, "dp-merf", frequencies=600, steps=1)
    execute(images, plan, tmp_path / "run", noise=SeededNoise(1))
    ((total, multiplier, result),) = released
    noise = result - total.grid_total.to(torch.float64) * total.grid_step
    expected = multiplier * math.hypot(1, 0.25)
    assert float(noise.std()) == pytest.approx(expected, rel=0.05)
    assert abs(float(noise.mean())) < 4 * expected / math.sqrt(noise.numel())


def test_means_are_divided_by_the_noisy_count_and_never_by_the_exact_one() -> None:
    images = make_images(counts=(4, 2))
    config = DpMerfConfig(**{**TINY["dp-merf"], "total_weight": 0.5})
    sums = torch.tensor([[8.0, 4.0, 2.0], [6.0, 3.0, 1.5]], dtype=torch.float64)
    means = class_means(sums, config, facts_of(images))
    torch.testing.assert_close(means, torch.tensor([[2.0, 1.0], [2.0, 1.0]]))


def test_a_noisy_count_near_or_below_zero_is_raised_to_a_tenth_of_the_even_share() -> None:
    images = make_images(counts=(4, 2))
    config = DpMerfConfig(**{**TINY["dp-merf"], "total_weight": 1.0})
    sums = torch.tensor([[1.0, -3.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(class_means(sums, config, facts_of(images, 40)), torch.tensor([[0.5], [0.5]]))


def test_without_a_count_means_are_divided_by_the_declared_size() -> None:
    images = make_images(counts=(4, 2))
    config = DpMerfConfig(**{**TINY["dp-merf"], "total_weight": 0.0})
    sums = torch.tensor([[10.0, 5.0], [2.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(class_means(sums, config, facts_of(images, 20)), sums.float() / 10)


def test_matching_a_noiseless_embedding_lowers_the_loss(tmp_path: Path) -> None:
    images = make_images(counts=(30, 30))
    method = DpMerf()
    config = DpMerfConfig(**{**TINY["dp-merf"], "frequencies": 50, "images_per_step": 40})
    rows = FourierFeatures(config, images.spec)(to_unit_range(images.pixels))
    targets = torch.stack([rows[images.labels == label].mean(0) for label in range(2)])
    features = FourierFeatures(config, images.spec)

    def loss_after(steps: int) -> float:
        plan = tiny_plan(
            images, "dp-merf", accounting="none", epsilon=None, steps=steps, frequencies=50, images_per_step=40
        )
        module = execute(images, plan, tmp_path / str(steps))._module
        assert isinstance(module, dp_merf.ConvGenerator)
        with torch.no_grad():
            return float(matching_loss(module, features, targets, 400, named_generator(0, "test")))

    assert loss_after(60) < 0.7 * loss_after(1)
    assert method.published_adjacency is Adjacency.REPLACE


def test_with_many_classes_each_step_matches_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_merf, "CLASSES_PER_STEP", 2)
    images = make_images(counts=(1,) * 5)
    generator = DpMerf().build(CONFIG, images.spec)
    initialise(generator, named_generator(0, "weights"))
    seen: set[int] = set()
    original = generator.forward

    def watching(latents: Tensor, labels: Tensor) -> Tensor:
        seen.update(labels.tolist())
        assert len(labels.unique()) == 2
        return original(latents, labels)

    generator.forward = watching  # type: ignore[method-assign]
    draws = named_generator(0, "draws")
    for _ in range(20):
        matching_loss(generator, FourierFeatures(CONFIG, images.spec), torch.zeros(5, 16), 6, draws)
    assert seen == set(range(5))


@pytest.mark.parametrize("killed_at", range(6))
def test_a_run_killed_at_any_training_step_ends_with_the_same_weights(
    killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp_merf, "CHECKPOINT_EVERY", 2)
    images = make_images()
    plan = tiny_plan(images, "dp-merf")

    def progress(message: str, done: int, total: int) -> None:
        if message.startswith("training") and done == killed_at:
            raise KeyboardInterrupt

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    whole = execute(images, plan, tmp_path / "whole", noise=SeededNoise(2))
    with monkeypatch.context() as patch:
        if killed_at == 0:  # between the release and the first step
            patch.setattr(DpMerf, "_train", dies)
        with pytest.raises(KeyboardInterrupt):
            execute(images, plan, tmp_path / "killed", noise=SeededNoise(2), progress=progress)
    resumed = resume(images, tmp_path / "killed")
    assert digest(resumed._module.state_dict()) == digest(whole._module.state_dict())


def test_a_resume_before_the_release_draws_fresh_noise_and_releases_once(released: list[Any], tmp_path: Path) -> None:
    images = make_images()

    def dies(message: str, done: int, total: int) -> None:
        if message.startswith("measuring"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run", progress=dies)
    assert released == []
    resume(images, tmp_path / "run")
    assert len(released) == 1


def test_training_uses_nothing_but_the_released_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Post-processing: with the same released sums, entirely different images give the same model."""
    first, second = make_images(counts=(7, 5, 3)), make_images(counts=(100, 0, 2), seed=3)
    sums = torch.randn(3, 17, generator=named_generator(0, "sums"), dtype=torch.float64)
    monkeypatch.setattr(DpMerf, "_release", lambda *_: sums)
    monkeypatch.setattr(PrivacyLedger, "close", lambda self: self._file.append({"close": {}}))
    models = [
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / name) for name, images in (("a", first), ("b", second))
    ]
    assert digest(models[0]._module.state_dict()) == digest(models[1]._module.state_dict())


def test_the_matching_loss_goes_into_the_vault_and_not_into_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp_merf, "HISTORY_EVERY", 2)
    images = make_images((6, 6))
    execute(images, tiny_plan(images, "dp-merf", steps=5), tmp_path / "run")
    lines = [json.loads(text) for text in (tmp_path / "run/vault/history.jsonl").read_text().splitlines()]
    assert [(line["name"], line["step"]) for line in lines] == [("matching loss", 2), ("matching loss", 4)]
    assert all(line["value"] > 0 for line in lines)
    assert not any(b"matching loss" in path.read_bytes() for path in (tmp_path / "run/release").iterdir())


@pytest.mark.parametrize(
    "settings",
    [
        {"frequencies": 0}, {"latent_size": 0}, {"hidden_size": -1}, {"map_channels": 0}, {"steps": 0},
        {"images_per_step": 0}, {"width_per_value": 0.0}, {"width_per_value": float("inf")}, {"learning_rate": -1.0},
        {"decay": 0.0}, {"decay": float("nan")}, {"total_weight": -0.1}, {"total_weight": 11.0},
        {"total_weight": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DpMerfConfig(**settings)


def test_no_noise_is_only_for_runs_that_claim_nothing(tmp_path: Path) -> None:
    images = make_images()
    model = execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run", noise=NoNoise())
    assert model.claim.epsilon is None
    assert "dp-merf" in veilset.all_methods()
