"""DPAC: a classifier changes what a teacher wants, and neither how much is released nor what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import TINY, digest, make_images, tiny_plan
from contract.sensitivity import neighbours, nulled, violations
from torch import Tensor

import veilset
from veilset.data.spec import ImageSet, ImageSpec
from veilset.engines import teaching_settings
from veilset.engines.classifying_teachers import ClassifyingTeachers
from veilset.engines.critic_training import CriticStack
from veilset.engines.shard_batches import ImageShards
from veilset.engines.teaching import InTurn, Together
from veilset.errors import BudgetExceeded, ConfigError, UnsupportedEvent
from veilset.methods.base import PublicFacts, make_config
from veilset.methods.dpac import Dpac, DpacConfig
from veilset.methods.plan import Plan
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, Bounded, GroupedSum, Unit
from veilset.privacy.events import Gaussian, Repeated, ShardTouched
from veilset.privacy.noise import SeededNoise
from veilset.privacy.release import Door
from veilset.run import execute, resume

TOGETHER = DpacConfig(**TINY["dpac"])
IN_TURN = replace(TOGETHER, teachers="in-turn", schedule="round-robin", critic="conv", steps=6)
MNIST = ImageSpec(height=28, width=28, channels=1, class_names=tuple("0123456789"))
FACTS = PublicFacts(spec=MNIST, declared_size=60_000, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
ABLATIONS: dict[str, dict[str, Any]] = {
    "full": {}, "w/o g2r": {"fake_steps": 0}, "w/o r2g": {"real_steps": 0}, "w/o seq": {"in_sequence": False},
    "w/o init": {"fresh_classifiers": False},
}  # fmt: skip
every_ablation = pytest.mark.parametrize("changes", ABLATIONS.values(), ids=ABLATIONS)
both_ways = pytest.mark.parametrize("accounting", ["proven", "published"])


@cache
def planned(method: str, accounting: str, **settings: Any) -> Plan:
    return veilset.plan(MNIST, method=method, epsilon=10.0, declared_size=60_000, accounting=accounting, **settings)


def search(config: DpacConfig, sizes: tuple[int, ...] = (1, 7)) -> list[str]:
    """The sensitivity search of the contract suite."""

    def collection(size: int) -> ImageSet:
        return make_images(counts=(size - size // 3, size // 3), seed=size)

    facts = replace(FACTS, spec=collection(1).spec)
    pairs = neighbours(collection, sizes, Adjacency.ADD_REMOVE)
    return violations(Dpac(), config, facts, chain(pairs, (nulled(collection(size), 0) for size in sizes)))


def fitted(accounting: str, path: Path, **settings: Any) -> Any:
    images = make_images()
    plan = tiny_plan(images, "dpac", accounting=accounting, **settings)
    return execute(images, plan, path, allow_published=True, noise=SeededNoise(5))


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whatever went through the door."""
    seen: list[Any] = []

    def watching(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def release(self: Door, values: Any, *arguments: Any, **options: Any) -> Tensor:
            seen.append(values)
            return original(self, values, *arguments, **options)

        return release

    for name in ("release_sum", "release_rows"):
        monkeypatch.setattr(Door, name, watching(getattr(Door, name)))
    return seen


@both_ways
@every_ablation
def test_noise_events_and_epsilon_are_those_of_gs_wgan(accounting: str, changes: dict[str, Any]) -> None:
    mine, theirs = planned("dpac", accounting, **changes), planned("gs-wgan", accounting)
    assert mine.planned == theirs.planned
    assert mine.reserve == theirs.reserve
    assert mine.noise_multiplier == theirs.noise_multiplier
    assert mine.epsilon_planned == theirs.epsilon_planned


def test_a_step_is_one_release_in_the_plan() -> None:
    assert Dpac().events(TOGETHER, FACTS, 2.0) == Repeated(4, Gaussian(2.0))
    assert Dpac().events(IN_TURN, FACTS, 2.0) == Repeated(6, ShardTouched(5, "round-robin", Gaussian(2.0)))


def test_the_published_epsilon_is_refuted_and_the_proven_one_stands_beside_it() -> None:
    """Privacy notes, 10.2: 610 with one sanitiser and 32 images; the code's two of 1000 images would be 28,604."""
    config = make_config(Dpac(), {}, published=True)
    claim = Dpac().published_claim(config, FACTS, 1.07 / math.sqrt(32), 1e-5)
    assert claim.epsilon == pytest.approx(9.993, abs=5e-4)
    assert claim.status == "refuted"
    assert claim.source.startswith("Chen et al. 2023")
    event = Dpac().events(config, FACTS, 1.07 / math.sqrt(32))
    assert price(event, 1e-5, Adjacency.ADD_REMOVE).epsilon == pytest.approx(610.3, abs=0.1)


def test_published_settings_are_the_papers_unless_others_are_given() -> None:
    config = planned("dpac", "published").config
    papers = {"critic_share": 0.8, "classifier_start": 0.3, "fake_steps": 10, "real_steps": 10, "in_sequence": True}
    papers |= {"fresh_classifiers": True, "classifier_rate": 1e-4, "teachers": "in-turn", "steps": 20_000}
    assert {**config, **papers, "images_per_step": 32, "critic_width": 64} == config
    celeba = planned("dpac", "published", classifier_start=0.05, critic_share=0.95).config
    assert (DpacConfig(**celeba).first_lesson, celeba["critic_share"]) == (1000, 0.95)


@every_ablation
def test_together_a_step_is_one_sum_of_a_unit_row_for_each_shard(
    changes: dict[str, Any], released: list[Any], tmp_path: Path
) -> None:
    fitted("proven", tmp_path / "run", frequencies=4, **changes)
    assert len(released) == 4
    for total in released:
        assert isinstance(total, GroupedSum)
        assert total.sensitivity(Adjacency.ADD_REMOVE) == 2.0
        assert total.grid_total is not None
        assert total.grid_total.shape == (1, 3 * 16)


@every_ablation
def test_in_turn_a_step_is_one_clipped_row_for_each_image_before_and_after_the_first_lesson(
    changes: dict[str, Any], released: list[Any], tmp_path: Path
) -> None:
    fitted("published", tmp_path / "run", **changes)
    assert len(released) == 4
    for rows in released:
        assert isinstance(rows, Bounded)
        assert rows.bound == pytest.approx(1 / 3)
        assert rows.grid_rows.shape == (3, 64)


def test_what_is_released_has_the_classifiers_part_from_its_first_step_on(released: list[Any], tmp_path: Path) -> None:
    for share in (0.8, 0.1):
        fitted("proven", tmp_path / str(share), critic_share=share)
    first, second = ([total.grid_total for total in some] for some in (released[:4], released[4:]))
    assert [torch.equal(a, b) for a, b in zip(first, second, strict=True)][:2] == [True, False]


@pytest.mark.parametrize("way", [Together, InTurn])
def test_a_second_sanitiser_is_refused(way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in public code: critic and classifier released apart, each with noise of its own, and one of them counted."""
    plain = ClassifyingTeachers.image_gradients

    def lesson(self: Any, step: int) -> tuple[Tensor, Tensor]:
        parts = []
        for share in (1.0, 0.0):
            monkeypatch.setattr(ClassifyingTeachers, "image_gradients", asked(share))
            parts.append(original(self, step))
        return parts[0][0], parts[0][1] + parts[1][1]

    def asked(share: float) -> Callable[..., Tensor]:
        def image_gradients(self: ClassifyingTeachers, *arguments: Any, **named: Any) -> Tensor:
            self.curriculum = replace(self.curriculum, critic_share=share)
            return plain(self, *arguments, **named)

        return image_gradients

    original = way.__call__
    monkeypatch.setattr(way, "__call__", lesson)
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        fitted("proven" if way is Together else "published", tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()


def test_a_second_sanitiser_in_one_turn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Door.release_rows

    def twice(self: Door, *arguments: Any, draw: Any) -> Tensor:
        return plain(self, *arguments, draw=draw) + plain(self, *arguments, draw=draw)

    monkeypatch.setattr(Door, "release_rows", twice)
    with pytest.raises(UnsupportedEvent, match="the releases foreseen for a draw"):
        fitted("published", tmp_path / "run")


def test_a_batch_that_grows_with_the_classifier_gets_the_noise_of_its_number(
    released: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public code sanitises 1000 images from the first lesson on, with the noise of 32."""
    noises = []
    plain_call, plain_noise = InTurn.__call__, Door._noisy

    def grown(self: InTurn, step: int) -> tuple[Tensor, Tensor]:
        return plain_call(self if step < 1 else replace(self, images=300), step)

    def watching(self: Door, values: Tensor, grid_step: float, noise_std: float) -> Tensor:
        noises.append(noise_std)
        return plain_noise(self, values, grid_step, noise_std)

    monkeypatch.setattr(InTurn, "__call__", grown)
    monkeypatch.setattr(Door, "_noisy", watching)
    model = fitted("published", tmp_path / "run")
    plan = tiny_plan(make_images(), "dpac", accounting="published")
    expected = [2 * plan.noise_multiplier * rows.bound * math.sqrt(len(rows)) for rows in released]
    assert [len(rows) for rows in released] == [3, 300, 300, 300]
    assert noises == pytest.approx(expected)
    assert model.privacy.record.charged == {plan.planned.event: 4}  # type: ignore[union-attr]


@every_ablation
@pytest.mark.parametrize("config", [TOGETHER, IN_TURN], ids=["together", "in turn"])
def test_no_record_moves_an_answer_further_than_its_bound_or_that_of_another_shard(
    config: DpacConfig, changes: dict[str, Any]
) -> None:
    assert search(replace(config, **changes), sizes=(3,)) == []


def test_classifiers_that_share_a_random_stream_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ImageShards.with_streams

    def shared(self: ImageShards, name: str) -> ImageShards:
        return plain(self, f"{name}, {len(self.labels)} images in all")

    monkeypatch.setattr(ImageShards, "with_streams", shared)
    assert any("moved the answers of shards" in found for found in search(IN_TURN))


def test_one_classifier_for_all_shards_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeping the classifier would be without one for each shard."""
    plain = CriticStack.train

    def shared(self: CriticStack, fakes: Any, steps: int, which: Any = None, losses: Any = None) -> None:
        plain(self, fakes, steps, which, losses)
        if losses is not None:
            self.state["weights"].copy_(self.state["weights"][which].expand_as(self.state["weights"]))

    monkeypatch.setattr(CriticStack, "train", shared)
    config = replace(IN_TURN, fresh_classifiers=False, real_steps=4, classifier_rate=0.1)
    assert any("moved the answers of shards" in found for found in search(config))


def test_a_classifier_out_of_its_mind_silences_its_teacher(
    released: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ClassifyingTeachers._teach_classifiers

    def mad(self: ClassifyingTeachers, *arguments: Any) -> None:
        plain(self, *arguments)
        self.classifiers.state["weights"].fill_(torch.nan)

    monkeypatch.setattr(ClassifyingTeachers, "_teach_classifiers", mad)
    fitted("proven", tmp_path / "run")
    assert [bool(total.grid_total.any()) for total in released] == [True, False, False, False]


@pytest.fixture
def _checkpoints_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching_settings, "steps_between", lambda *_: 2)


@pytest.mark.usefixtures("_checkpoints_often")
@both_ways
@pytest.mark.parametrize("fresh", [True, False])
def test_a_run_killed_after_its_last_release_ends_as_an_undisturbed_one(
    accounting: str, fresh: bool, tmp_path: Path
) -> None:
    images = make_images()
    plan = tiny_plan(images, "dpac", accounting=accounting, fresh_classifiers=fresh)

    def dies(message: str, done: int, total: int) -> None:
        if message.startswith("teaching") and done == 4:
            raise KeyboardInterrupt

    whole = execute(images, plan, tmp_path / "whole", allow_published=True, noise=SeededNoise(5))
    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "killed", allow_published=True, noise=SeededNoise(5), progress=dies)
    resumed = resume(images, tmp_path / "killed", allow_published=True)
    assert resumed.privacy.record.charged == whole.privacy.record.charged
    assert digest(resumed._module.state_dict()) == digest(whole._module.state_dict())


@pytest.mark.parametrize("fresh", [True, False])
def test_classifiers_are_in_the_vault_where_they_are_kept_and_nowhere_in_the_release(
    fresh: bool, tmp_path: Path
) -> None:
    fitted("proven", tmp_path / "run", fresh_classifiers=fresh)
    kept = tmp_path / "run" / "vault" / "checkpoints" / "generator.safetensors"
    assert (b"teachers classifiers weights" in kept.read_bytes()) == (not fresh)
    assert b"teachers lessons" in kept.read_bytes()
    files = [path.read_bytes() for path in (tmp_path / "run" / "release").iterdir()]
    assert not any(b"classifiers weights" in data or b"moments" in data for data in files)


def test_classifiers_cost_time_and_memory_and_the_plan_says_so() -> None:
    critics, fresh = planned("gs-wgan", "published").forecast, planned("dpac", "published").forecast
    kept = planned("dpac", "published", fresh_classifiers=False).forecast
    assert fresh.megabytes - critics.megabytes == pytest.approx(12_900, rel=0.01)
    assert kept.megabytes - critics.megabytes == pytest.approx(3 * 12_900, rel=0.01)
    assert fresh.seconds > critics.seconds
    assert planned("dpac", "proven", classifier_start=0.0).forecast.seconds > planned("dpac", "proven").forecast.seconds
    assert planned("dpac", "proven").forecast.released == planned("gs-wgan", "proven").forecast.released


@pytest.mark.parametrize(
    "settings",
    [
        {"critic_share": 1.1}, {"critic_share": -0.1}, {"critic_share": float("nan")}, {"classifier_start": -0.1},
        {"classifier_start": 1.5}, {"fake_steps": -1}, {"real_steps": -1},
        {"fake_steps": 0, "real_steps": 0}, {"classifier_rate": 0.0}, {"shards": 0},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DpacConfig(**settings)
