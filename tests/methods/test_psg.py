"""PSG: reference values of its noise, its loops as the paper has them, and what its set may depend on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import TINY, make_images, tiny_plan
from contract.sensitivity import run_world

import veilset
from veilset.data.spec import ImageSpec
from veilset.engines import sampled_sets
from veilset.engines.noisy_counts import NoisyCounts
from veilset.errors import BudgetExceeded, ConfigError
from veilset.methods import psg
from veilset.methods.base import PublicFacts, make_config
from veilset.methods.plan import Plan
from veilset.methods.psg import Psg, PsgConfig
from veilset.nets.classifiers import ConvNet
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import PoissonSampled, steps
from veilset.privacy.noise import SeededNoise
from veilset.run import execute, resume

ALL = {"expected_batch": 20}
"""A sample of everybody: priced at once, where the price is not what a test is about."""
MNIST = ImageSpec(height=28, width=28, channels=1, class_names=tuple("0123456789"))
FACTS = PublicFacts(spec=MNIST, declared_size=60_000, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)


def mnist_plan(**options: Any) -> Plan:
    return veilset.plan(MNIST, method="psg", declared_size=60_000, **options)


def tiny_config(**options: Any) -> PsgConfig:
    config = make_config(Psg(), {**TINY["psg"], **options})
    assert isinstance(config, PsgConfig)
    return config


# --- what is released ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "runs", "noise"), [(1.0, 200, 2.369), (10.0, 1000, 0.932)])
def test_the_proven_noise_is_that_of_privacy_loss_accounting(epsilon: float, runs: int, noise: float) -> None:
    """10 images a class, samples of 256 of 60,000, delta 1e-5: dp-accounting's PLD in another program, four digits."""
    assert mnist_plan(epsilon=epsilon, runs=runs).noise_multiplier == pytest.approx(noise, rel=5e-4)


@pytest.mark.parametrize(
    ("per_class", "epsilon", "runs", "noise"),
    [(10, 1.0, 200, 2.553), (10, 10.0, 1000, 0.966), (1, 10.0, 1000, 0.604), (20, 1.0, 200, 3.533)],
)
def test_the_published_noise_is_that_of_the_authors_accountant(
    per_class: int, epsilon: float, runs: int, noise: float
) -> None:
    """Opacus' Renyi accountant with the conversion of Canonne et al. 2020, three digits; its orders are coarser."""
    plan = mnist_plan(epsilon=epsilon, runs=runs, images_per_class=per_class, accounting="published")
    assert plan.noise_multiplier == pytest.approx(noise, rel=1.5e-3)
    assert plan.published is not None
    assert plan.published.status == "conservative"
    assert plan.published.epsilon == pytest.approx(epsilon, rel=1e-4)
    assert plan.epsilon_planned is not None
    assert plan.epsilon_planned < epsilon


@pytest.mark.parametrize(
    ("options", "rounds", "epochs", "releases"),
    [
        ({"images_per_class": 1}, 1, None, 10_000),
        ({"images_per_class": 10}, 10, 50, 100_000),
        ({"images_per_class": 20}, 20, 25, 200_000),
        ({"images_per_class": 50}, 50, 10, 500_000),
        ({"images_per_class": 20, "runs": 200}, 20, 25, 40_000),
        ({"prior": True}, 2, 10, 20_000),
    ],
)
def test_the_loops_are_as_long_as_the_papers(
    options: dict[str, Any], rounds: int, epochs: int | None, releases: int
) -> None:
    config = PsgConfig(**options)
    assert config.schedule[0] == rounds
    assert epochs in (None, config.schedule[1]), "with one round there is nothing to train between rounds"
    assert config.releases == releases


def test_the_small_preset_is_short_and_single_options_win() -> None:
    config = make_config(Psg(), {"preset": "small", "runs": 3})
    assert (config.releases, config.width) == (60, 32)
    assert make_config(Psg(), {"preset": "small"}).releases == 800


def test_every_release_is_one_sampled_gaussian_at_the_declared_rate() -> None:
    ((event, count),) = steps(mnist_plan(epsilon=10.0).planned).items()
    assert count == 100_000
    assert isinstance(event, PoissonSampled)
    assert event.rate == 256 / 60_000


def test_one_run_more_than_planned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authors' loop does a run more than their accountant counts."""
    plan = tiny_plan(make_images(), "psg", **ALL)
    monkeypatch.setattr(sampled_sets, "last_step", lambda *_, planned, **__: planned + tiny_config().steps_of_a_run)
    with pytest.raises(BudgetExceeded):
        execute(make_images(), plan, tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()


@pytest.mark.parametrize(
    "settings", [{"runs": 0}, {"rounds": -1}, {"clip_norm": 0.0}, {"deviation": 0.0}, {"pixel_momentum": 1.0},
     {"count_weight": -0.1}, {"count_weight": 1e-9}, {"count_weight": float("nan")}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        tiny_config(**settings)


def test_memory_grows_with_the_images_that_are_moved_together() -> None:
    few, many = (Psg().forecast(PsgConfig(images_per_class=each), FACTS, 1.0).megabytes for each in (10, 20))
    assert many - few == pytest.approx(1000, rel=0.2), "as measured"


def test_a_single_class_is_refused_before_pure_noise_is_bought() -> None:
    with pytest.raises(ConfigError, match="two or more classes for psg"):
        tiny_plan(make_images((9,)), "psg")


def test_a_release_is_a_gradient_of_all_classes_and_a_count_of_each_in_one_row() -> None:
    door, _ = world(make_images((7, 5, 3)))
    numbers = sum(value.numel() for value in ConvNet(make_images().spec, torch.Generator(), width=16).parameters())
    assert [tuple(out.shape) for out in door.outputs] == [(1, numbers + 3)] * 4
    assert {capture.allowed for capture in door.captures} == {math.hypot(0.1, 0.015)}
    door, _ = world(make_images((7, 5, 3)), count_weight=0.0)
    assert [tuple(out.shape) for out in door.outputs] == [(1, numbers)] * 4
    assert {capture.allowed for capture in door.captures} == {0.1}


def test_counts_cost_one_percent_more_noise_and_the_published_construction_has_none() -> None:
    """The paper's sensitivity is the clip, 0.1; sqrt(0.1^2 + 0.015^2) is 0.1011."""
    proven, paper = mnist_plan(epsilon=10.0), mnist_plan(epsilon=10.0, accounting="published")
    assert (proven.config["count_weight"], paper.config["count_weight"]) == (0.15, 0.0)
    assert "each with a noisy count of every class" in proven.forecast.released
    assert proven.forecast.released.endswith("by at most 0.1012")
    assert "count" not in paper.forecast.released
    assert paper.forecast.released.endswith("by at most 0.1")
    even = mnist_plan(epsilon=10.0, count_weight=0.0)
    assert even.noise_multiplier == proven.noise_multiplier, "of the sensitivity"
    assert even.forecast.signal_to_noise / proven.forecast.signal_to_noise == pytest.approx(1.0112, abs=1e-4)
    with pytest.raises(ConfigError, match=r"count_weight 0\.0, as in the paper"):
        mnist_plan(epsilon=10.0, accounting="published", count_weight=0.15)


# --- what is done with it --------------------------------------------------------------------------------------------


def world(images: Any, *, transcript: Any = None, **options: Any) -> tuple[Any, Any]:
    """A fit without noise that is shown a given transcript: its door, and the set it made."""
    made = []

    class Keeping(Psg):
        def fit(self, *arguments: Any) -> Any:
            made.append(super().fit(*arguments))

    facts = PublicFacts(
        spec=images.spec, declared_size=20, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD, **options.pop("facts", {})
    )
    door = run_world(Keeping(), tiny_config(**options), facts, images, transcript=transcript)
    return door, made[0].values


@pytest.mark.parametrize(
    "options", [{}, {"prior": True, "channels": 8}, {"count_weight": 0.0}], ids=["pixels", "prior", "even shares"]
)
def test_given_the_same_releases_the_set_is_the_same_whatever_the_private_images_are(options: dict[str, Any]) -> None:
    door, made = world(make_images((7, 5, 3)), **options)
    other, same = world(make_images((2, 9, 9), seed=1), transcript=door.outputs, **options)
    assert torch.equal(made, same)
    assert any(not torch.equal(a.values, b.values) for a, b in zip(door.captures, other.captures, strict=True))
    _, different = world(make_images((2, 9, 9), seed=1), **options)
    assert not torch.equal(made, different)


def shares_shown(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[list[float] | None]:
    """By which classes were weighted in each match while `act` was done."""
    shown: list[list[float] | None] = []
    plain = psg.GradientMatching.match

    def noting(self: Any, gradients: Any, weights: Any) -> None:
        shown.append(None if weights is None else weights.tolist())
        plain(self, gradients, weights)

    with monkeypatch.context() as patch:
        patch.setattr(psg.GradientMatching, "match", noting)
        act()
    return shown


def test_classes_of_the_set_weigh_as_all_counts_so_far_say_they_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images((14, 4, 2))
    shown = shares_shown(monkeypatch, lambda: world(images, runs=20, expected_batch=20))
    assert len(shown) == 40
    assert shown[-1] == pytest.approx([2.1, 0.6, 0.3], abs=0.15)
    distances = [abs(shares[0] - 2.1) for shares in shown if shares]
    assert distances[0] > 2 * distances[-1], "at first even shares count, too"
    even = shares_shown(monkeypatch, lambda: world(images, count_weight=0.0))
    assert even == [None] * 4


def test_counts_of_before_a_crash_are_counted_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, options = make_images((14, 4, 2)), {**ALL, "runs": 20, "epsilon": 1000.0}
    monkeypatch.setattr(sampled_sets, "steps_between", lambda *_: 2)

    def dies(message: str, done: int, total: int) -> None:
        if (message, done) == (psg.DOING, 30):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, tiny_plan(images, "psg", **options), tmp_path / "run", progress=dies)
    found: list[tuple[int, float]] = []
    plain = NoisyCounts.shares_after

    def noting(self: NoisyCounts, counts: torch.Tensor, batches: int) -> torch.Tensor:
        found.append((batches, float(self.sums.sum())))
        return plain(self, counts, batches)

    monkeypatch.setattr(NoisyCounts, "shares_after", noting)
    resume(images, tmp_path / "run")
    batches, counted = found[0]
    assert batches > 20
    assert counted == pytest.approx(20 * (batches - 1), rel=0.1)


def test_each_run_has_a_new_network_that_is_trained_between_rounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for owner, name in ((psg, "restart"), (psg.GradientMatching, "match"), (psg.GradientMatching, "train")):
        plain = getattr(owner, name)

        def noting(*arguments: Any, name: str = name, plain: Any = plain) -> None:
            seen.append(name)
            plain(*arguments)

        monkeypatch.setattr(owner, name, noting)
    world(make_images(), runs=2, rounds=3, steps=2)
    one_run = ["restart", "match", "match", "train", "match", "match", "train", "match", "match"]
    assert seen == one_run * 2


def test_the_private_network_sees_images_standardised_by_declared_constants() -> None:
    standard = PsgConfig(mean=0.2, deviation=0.5).standard
    shown: list[torch.Tensor] = []

    def network(batch: torch.Tensor) -> torch.Tensor:
        shown.append(batch)
        return torch.zeros(len(batch), 2)

    psg.standardised_losses(standard)(network, torch.full((3, 1, 2, 2), 0.7), torch.zeros(3, dtype=torch.int64))
    assert torch.allclose(shown[0], torch.ones(3, 1, 2, 2))


@pytest.mark.parametrize("prior", [False, True])
def test_a_fit_that_crashed_in_a_run_does_not_buy_its_releases_again(
    prior: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_sets, "steps_between", lambda *_: 2)
    images, run = make_images(), tmp_path / "run"
    plan = tiny_plan(images, "psg", **ALL, runs=3, prior=prior, channels=8)
    planned = steps(plan.planned)

    def dies(message: str, done: int, total: int) -> None:
        if (message, done) == (psg.DOING, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, run, progress=dies, noise=SeededNoise(0))
    done: list[tuple[int, int]] = []
    model = resume(images, run, progress=lambda message, *at: done.append(at) if psg.DOING in message else None)
    # Two of the three releases before the crash are in the checkpoint; the third is lost, and so the last step is.
    assert done[0] == (2, 5)
    assert done[-1] == (5, 5)
    assert model.privacy.record.charged == planned


def test_the_released_model_is_the_whole_set_and_says_so(tmp_path: Path) -> None:
    images = make_images()
    model = execute(images, tiny_plan(images, "psg", **ALL), tmp_path / "run")
    assert model.size == 12
    once = model.sample(12)
    assert torch.bincount(once.labels).tolist() == [4, 4, 4]
    assert len(once.pixels.flatten(1).unique(dim=0)) == 12
    assert len(model.sample(40).pixels.flatten(1).unique(dim=0)) == 12


def test_the_history_of_a_fit_stays_in_the_vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psg, "HISTORY_EVERY", 2)
    images = make_images()
    execute(images, tiny_plan(images, "psg", **ALL), tmp_path / "run")
    lines = (tmp_path / "run" / "vault" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]
    assert not (tmp_path / "run" / "release" / "history.jsonl").exists()
