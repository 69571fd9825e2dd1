"""GS-WGAN: what is released and with how much noise, the paper's epsilon beside the proven one, and sabotage."""

from __future__ import annotations

import json
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
from veilset.budget import DatasetBudget
from veilset.data.spec import ImageSet, ImageSpec
from veilset.engines import critic_memory, shard_teaching, teaching_settings
from veilset.engines.critic_memory import bytes_kept
from veilset.engines.critic_training import CriticStack, Reading
from veilset.engines.shard_batches import ImageShards, ShardBatches
from veilset.errors import BudgetExceeded, ConfigError, RunError, UnsupportedEvent
from veilset.methods.base import PublicFacts, get_method, make_config
from veilset.methods.gs_wgan import GsWgan, GsWganConfig
from veilset.methods.plan import Plan
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.spectral_generators import SpectralGenerator
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, Bounded, GroupedSum, Unit, sum_rows, sum_shards
from veilset.privacy.claim import CAPPED
from veilset.privacy.noise import SeededNoise
from veilset.privacy.release import Door
from veilset.randomness import named_generator
from veilset.run import execute, resume
from veilset.sharing import verify

TOGETHER = GsWganConfig(**TINY["gs-wgan"])
IN_TURN = replace(TOGETHER, teachers="in-turn", schedule="round-robin", critic="conv", steps=6)
MNIST = ImageSpec(height=28, width=28, channels=1, class_names=tuple("0123456789"))


def facts_of(spec: ImageSpec, **options: Any) -> PublicFacts:
    terms = {"declared_size": 60_000, "adjacency": Adjacency.ADD_REMOVE, "unit": Unit.RECORD}
    return PublicFacts(spec=spec, **{**terms, **options})


@cache
def published(**settings: Any) -> Plan:
    return veilset.plan(MNIST, method="gs-wgan", epsilon=10.0, declared_size=60_000, accounting="published", **settings)


def search(config: GsWganConfig, sizes: tuple[int, ...] = (1, 7)) -> list[str]:
    """The sensitivity search of the contract suite."""

    def collection(size: int) -> ImageSet:
        return make_images(counts=(size - size // 3, size // 3), seed=size)

    facts = facts_of(collection(1).spec)
    pairs = neighbours(collection, sizes, Adjacency.ADD_REMOVE)
    return violations(GsWgan(), config, facts, chain(pairs, (nulled(collection(size), 0) for size in sizes)))


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, float, Tensor]]:
    """Everything that went through the door: the values, their noise multiplier and the result."""
    seen: list[tuple[Any, float, Tensor]] = []

    def watching(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def release(self: Door, values: Any, noise_multiplier: float, **options: Any) -> Tensor:
            result = original(self, values, noise_multiplier, **options)
            seen.append((values, noise_multiplier, result))
            return result

        return release

    for name in ("release_sum", "release_rows"):
        monkeypatch.setattr(Door, name, watching(getattr(Door, name)))
    return seen


def test_the_papers_noise_has_the_papers_epsilon() -> None:
    config = make_config(GsWgan(), {}, published=True)
    claim = GsWgan().published_claim(config, facts_of(MNIST), 1.07 / math.sqrt(32), 1e-5)
    assert claim.epsilon == pytest.approx(9.993, abs=5e-4)
    assert claim.status == "refuted"


@pytest.mark.parametrize(("schedule", "proven"), [("uniform", 610.3), ("round-robin", 379.4)])
def test_the_proven_epsilon_of_that_very_run_stands_beside_it(schedule: str, proven: float) -> None:
    config = make_config(GsWgan(), {"schedule": schedule}, published=True)
    event = GsWgan().events(config, facts_of(MNIST), 1.07 / math.sqrt(32))
    assert price(event, 1e-5, Adjacency.ADD_REMOVE).epsilon == pytest.approx(proven, abs=0.1)


def test_a_plan_for_the_papers_epsilon_has_its_noise_its_settings_and_both_epsilons() -> None:
    plan = published()
    assert plan.noise_multiplier * math.sqrt(32) == pytest.approx(1.069, abs=1e-3)
    assert plan.published is not None
    assert plan.published.epsilon == pytest.approx(10.0, rel=1e-4)
    assert plan.epsilon_planned == pytest.approx(611, abs=1)
    papers = {"shards": 1000, "steps": 20_000, "images_per_step": 32, "critic": "conv", "critic_width": 64}
    papers |= {"critic_batch": 32, "critic_steps": 5, "warm_up": 2000, "latent_size": 10, "learning_rate": 1e-4}
    assert {**plan.config, **papers, "teachers": "in-turn", "schedule": "uniform"} == plan.config


def test_settings_given_beside_it_win() -> None:
    for steps in (1500, GsWganConfig().steps):  # also where they are what we take ourselves
        config = published(steps=steps, schedule="round-robin").config
        assert (config["steps"], config["schedule"]) == (steps, "round-robin")


def test_the_papers_epsilon_is_about_critics_in_turn_alone() -> None:
    with pytest.raises(ConfigError, match="in-turn"):
        published(teachers="together")


def test_critics_in_turn_can_be_planned_with_a_proven_epsilon_too() -> None:
    """Privacy notes, 1.5: the noise that an honest epsilon of 10 takes, by row."""
    plan = veilset.plan(
        MNIST, method="gs-wgan", epsilon=10.0, declared_size=60_000, teachers="in-turn", schedule="round-robin",
        steps=20_000,
    )  # fmt: skip
    assert plan.noise_multiplier * math.sqrt(32) == pytest.approx(12.65, abs=0.01)


def test_a_replaced_record_may_come_to_lie_in_another_shard_and_both_are_counted() -> None:
    config = make_config(GsWgan(), {"schedule": "round-robin"}, published=True)
    event = GsWgan().events(config, facts_of(MNIST), 1.07 / math.sqrt(32))
    assert price(event, 1e-5, Adjacency.REPLACE).epsilon == pytest.approx(701, abs=1)


def test_together_a_step_is_one_sum_of_a_unit_row_for_each_shard(released: list[Any], tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", frequencies=4)
    execute(images, plan, tmp_path / "run")
    assert len(released) == 4
    for total, multiplier, result in released:
        assert isinstance(total, GroupedSum)
        assert multiplier == plan.noise_multiplier
        assert total.sensitivity(Adjacency.ADD_REMOVE) == 2.0
        assert result.shape == (1, 3 * 16)


def test_in_turn_a_step_is_one_clipped_row_for_each_image(released: list[Any], tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting="published")
    execute(images, plan, tmp_path / "run", allow_published=True)
    assert len(released) == 4
    for rows, multiplier, result in released:
        assert isinstance(rows, Bounded)
        assert (rows.bound, multiplier) == (pytest.approx(1 / 3), plan.noise_multiplier)
        assert result.shape == (3, 64)


def test_in_turn_the_noise_of_a_row_is_the_papers(released: list[Any], tmp_path: Path) -> None:
    """2 s C / B. 4 steps of 20 rows of 64 numbers: a spread known to 1 %; the band is four times that."""
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting="published", images_per_step=20)
    execute(images, plan, tmp_path / "run", allow_published=True, noise=SeededNoise(3))
    noise = torch.cat([result - rows.grid_rows * rows.grid_step for rows, _, result in released])
    papers = plan.noise_multiplier * math.sqrt(20)
    assert float(noise.std()) == pytest.approx(2 * papers / 20, rel=0.04)


def test_together_noise_of_twice_the_row_is_really_added(released: list[Any], tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", images_per_step=40)
    execute(images, plan, tmp_path / "run", noise=SeededNoise(3))
    noise = torch.cat([result - total.grid_total * total.grid_step for total, _, result in released])
    assert float(noise.std()) == pytest.approx(2 * plan.noise_multiplier, rel=0.06)


@pytest.mark.parametrize("accounting", ["proven", "published"])
def test_the_owner_can_see_how_long_gradients_are(
    accounting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, plain = [], CriticStack.image_gradients

    def watched(self: CriticStack, *arguments: Any, **named: Any) -> Tensor:
        seen.append(1000 * plain(self, *arguments, **named))  # long enough to be clipped
        return seen[-1]

    monkeypatch.setattr(CriticStack, "image_gradients", watched)
    monkeypatch.setattr(shard_teaching, "NORMS_EVERY", 2)
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting=accounting)
    execute(images, plan, tmp_path / "run", allow_published=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "vault" / "history.jsonl").read_text().splitlines()]
    found = {(line["name"], line["step"]): line["value"] for line in lines}
    if accounting == "proven":
        assert {step for _, step in found} == {2, 4}
        assert found["gradient norm/mean", 4] > 0
        return
    lengths = 3 * seen[3][0].flatten(1).norm(dim=1)  # of three images, each on its own
    assert found["gradient norm/mean before clipping", 4] == pytest.approx(float(lengths.mean()), rel=1e-5)
    assert found["gradient norm/spread before clipping", 4] == pytest.approx(float(lengths.std(correction=0)), rel=1e-4)
    assert found["gradient norm/mean after clipping", 4] == pytest.approx(float(lengths.clamp(max=1).mean()), rel=1e-5)
    each = [line["value"] for line in lines if (line["name"], line["step"]) == (shard_teaching.EACH_NORM, 4)]
    assert each == pytest.approx(lengths.tolist(), rel=1e-5)


def test_a_shard_without_images_and_a_critic_out_of_its_mind_release_nothing_but_noise(
    released: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = CriticStack.image_gradients

    def mad(self: CriticStack, *arguments: Any, **named: Any) -> Tensor:
        return plain(self, *arguments, **named) + torch.nan

    monkeypatch.setattr(CriticStack, "image_gradients", mad)
    images = make_images()
    execute(images, tiny_plan(images, "gs-wgan"), tmp_path / "run")
    assert not any(total.grid_total.any() for total, _, _ in released)


@pytest.mark.parametrize("schedule", ["uniform", "round-robin"])
def test_in_turn_no_record_moves_the_answers_of_two_critics(schedule: str) -> None:
    assert search(replace(IN_TURN, schedule=schedule)) == []


def test_shards_that_share_a_random_stream_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(self: ImageShards, which: Tensor, steps: Tensor, batch: int, numbers: int) -> ShardBatches:
        stream = named_generator(len(self.labels), "one for all")  # as far along as the whole collection is long
        chances = torch.rand(len(which), batch, 1 + numbers, generator=stream, dtype=torch.float64)
        rows = (chances[..., 0] * self.sizes[which, None]).long() + self.starts[which, None]
        return ShardBatches(self.pixels[rows] / 255.0, self.labels[rows], chances[..., 1:])

    monkeypatch.setattr(ImageShards, "draw", draw)
    assert any("moved the answers of shards" in found for found in search(IN_TURN))


@pytest.fixture
def _hostile_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no proof may rule out: a critic whose whole answer turns with the number of its images."""

    def answers(
        self: CriticStack, images: Tensor, labels: Tensor, which: Tensor | None = None, of: Reading | None = None
    ) -> Tensor:
        signs = 1.0 - 2.0 * (self.shards.sizes[self._numbers(which)] % 2)
        gradients = signs[:, None, None, None, None] * torch.ones(len(signs), *images.shape)
        return gradients if of is None else of(gradients)

    monkeypatch.setattr(CriticStack, "image_gradients", answers)


@pytest.mark.usefixtures("_hostile_critics")
@pytest.mark.parametrize("config", [TOGETHER, IN_TURN], ids=["together", "in turn"])
def test_hostile_critics_stay_within_the_bound(config: GsWganConfig) -> None:
    assert search(config) == []


@pytest.mark.usefixtures("_hostile_critics")
def test_a_sum_that_counts_one_row_for_a_shard_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_teaching, "sum_shards", sum_rows)
    assert any("allowed 1" in found for found in search(TOGETHER))


@pytest.mark.usefixtures("_hostile_critics")
def test_extra_rows_in_a_sum_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(rows: Bounded) -> GroupedSum:
        total = sum_shards(rows)
        total.add(rows, torch.zeros(len(rows), dtype=torch.int64))
        return total

    monkeypatch.setattr(shard_teaching, "sum_shards", twice)
    assert any("moved by 4" in found for found in search(TOGETHER))


def test_extra_rows_in_a_turn_get_the_noise_of_their_number(released: list[Any], tmp_path: Path) -> None:
    """A batch that grew unnoticed, as in public code, costs noise and no privacy: the price of a step stays."""
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting="published")
    grown = replace(plan, config={**plan.config, "images_per_step": 300})
    model = execute(images, grown, tmp_path / "run", allow_published=True, noise=SeededNoise(1))
    rows, multiplier, result = released[0]
    noise = result - rows.grid_rows * rows.grid_step
    assert float(noise.std()) == pytest.approx(multiplier * 2 * rows.bound * math.sqrt(300), rel=0.03)
    assert model.privacy.record.charged == {plan.planned.event: 4}  # type: ignore[union-attr]


@pytest.mark.parametrize("accounting", ["proven", "published"])
def test_one_step_more_than_planned_is_refused(
    accounting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shard_teaching.teach

    def off_by_one(generator: Any, critics: Any, lesson: Any, effort: Any, **rest: Any) -> None:
        plain(generator, critics, lesson, effort, **{**rest, "last_after": lambda _: effort.steps + 1})

    monkeypatch.setattr(shard_teaching, "teach", off_by_one)
    images = make_images()
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        execute(images, tiny_plan(images, "gs-wgan", accounting=accounting), tmp_path / "run", allow_published=True)
    assert not (tmp_path / "run" / "release").exists()


def test_a_second_answer_in_one_turn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Door.release_rows

    def twice(self: Door, *arguments: Any, draw: Any) -> Tensor:
        plain(self, *arguments, draw=draw)
        return plain(self, *arguments, draw=draw)

    monkeypatch.setattr(Door, "release_rows", twice)
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting="published")
    with pytest.raises(UnsupportedEvent, match="the releases foreseen for a draw"):
        execute(images, plan, tmp_path / "run", allow_published=True)


def test_a_turn_by_another_schedule_than_planned_is_refused(tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting="published", steps=6)
    other = replace(plan, config={**plan.config, "schedule": "round-robin"})
    with pytest.raises(BudgetExceeded):
        execute(images, other, tmp_path / "run", allow_published=True)


@pytest.fixture
def _checkpoints_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching_settings, "steps_between", lambda *_: 2)
    monkeypatch.setattr(shard_teaching, "CHECKPOINT_EVERY_WARM_STEPS", 1)


@pytest.mark.usefixtures("_checkpoints_often")
@pytest.mark.parametrize(
    ("accounting", "phase", "step"),
    [
        ("proven", "teaching", 0), ("proven", "teaching", 2), ("proven", "teaching", 4),
        ("published", "warming", 1), ("published", "warming", 3), ("published", "teaching", 0),
        ("published", "teaching", 2), ("published", "teaching", 4),
    ],
)  # fmt: skip
def test_a_run_killed_at_a_checkpoint_ends_with_all_its_steps(
    accounting: str, phase: str, step: int, tmp_path: Path
) -> None:
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting=accounting, warm_up=3)

    def dies(message: str, done: int, total: int) -> None:
        if message.startswith(phase) and done == step:
            raise KeyboardInterrupt

    whole = execute(images, plan, tmp_path / "whole", allow_published=True, noise=SeededNoise(5))
    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "killed", allow_published=True, noise=SeededNoise(5), progress=dies)
    resumed = resume(images, tmp_path / "killed", allow_published=True)
    assert resumed.privacy.record.charged == whole.privacy.record.charged
    if (phase, step) == ("teaching", 4):
        assert digest(resumed._module.state_dict()) == digest(whole._module.state_dict())


@pytest.mark.parametrize("steps", [4, 5])
def test_turns_of_a_single_round_are_refused_since_a_crash_would_end_them(steps: int) -> None:
    """What a crash cut short counts as a whole round: nothing would be left to go on with."""
    with pytest.raises(ConfigError, match="more than one round"):
        replace(IN_TURN, shards=5, steps=steps)
    replace(IN_TURN, shards=5, steps=steps, schedule="uniform")


def test_a_run_whose_records_would_change_shards_is_not_resumed(tmp_path: Path) -> None:
    images = make_images()
    named = replace(images, ids=tuple(f"a{number}" for number in range(len(images))))

    def dies(message: str, done: int, total: int) -> None:
        if message == shard_teaching.DOING and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(named, tiny_plan(images, "gs-wgan"), tmp_path / "run", progress=dies)
    renamed = replace(named, ids=tuple(f"b{number}" for number in range(len(images))))
    with pytest.raises(RunError, match="the records this run was begun with"):
        resume(renamed, tmp_path / "run")
    assert resume(named, tmp_path / "run").privacy.record.closed


def test_turns_of_the_fewest_rounds_can_be_resumed_after_a_crash_before_their_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teaching_settings, "steps_between", lambda *_: 3)
    images = make_images()
    options = {"accounting": "published", "schedule": "round-robin", "shards": 5, "steps": 6}

    def dies(message: str, done: int, total: int) -> None:
        if message == shard_teaching.DOING and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, tiny_plan(images, "gs-wgan", **options), tmp_path / "run", allow_published=True, progress=dies)
    assert resume(images, tmp_path / "run", allow_published=True).privacy.record.closed


@pytest.mark.usefixtures("_checkpoints_often")
@pytest.mark.parametrize("accounting", ["proven", "published"])
def test_critics_are_kept_in_the_vault_and_nowhere_in_the_release(accounting: str, tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting=accounting)
    execute(images, plan, tmp_path / "run", allow_published=True)
    kept = tmp_path / "run" / "vault" / "checkpoints" / "generator.safetensors"
    assert b"teachers weights" in kept.read_bytes()
    assert kept.stat().st_mode & 0o077 == 0
    names = [path.read_bytes() for path in (tmp_path / "run" / "release").iterdir()]
    assert not any(b"teachers weights" in data or b"moments" in data for data in names)


def test_the_papers_generator_is_released_with_its_norms_and_samples_alike_after_loading(tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting="published")
    model = execute(images, plan, tmp_path / "run", allow_published=True)
    assert isinstance(model._module, SpectralGenerator)
    again = veilset.from_pretrained(tmp_path / "run")
    assert torch.equal(model.sample(9).pixels, again.sample(9).pixels)


def test_together_the_generator_is_our_own() -> None:
    assert isinstance(GsWgan().build(TOGETHER, MNIST), UpsamplingGenerator)


def test_a_user_lies_in_one_shard_with_all_images_and_needs_no_cap(tmp_path: Path) -> None:
    images = make_images(per_user=4)
    plan = tiny_plan(images, "gs-wgan", accounting="published", unit="user")
    claim = execute(images, plan, tmp_path / "run", allow_published=True).claim
    assert claim.unit == "user"
    assert not set(CAPPED[Unit.USER]) & set(claim.assumptions), "nothing is dropped, and nothing need be"
    verify(tmp_path / "run")


def test_in_turn_every_step_trains_the_critic_whose_turn_it_is_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[list[int]] = []
    plain = CriticStack.train

    def watching(self: CriticStack, fakes: Any, steps: int, which: Tensor | None = None) -> None:
        trained.append([] if which is None else which.tolist())
        plain(self, fakes, steps, which)

    monkeypatch.setattr(CriticStack, "train", watching)
    images = make_images()
    plan = tiny_plan(images, "gs-wgan", accounting="published", schedule="round-robin", warm_up=0, steps=7)
    execute(images, plan, tmp_path / "run", allow_published=True)
    assert trained == [[step % 5] for step in range(7)]


def test_memory_grows_with_the_critics_and_is_stated_in_numbers() -> None:
    papers, few = published().forecast, published(shards=10).forecast
    assert papers.megabytes == pytest.approx(3 * 12_900, rel=0.05)
    assert few.megabytes < 1000


def test_memory_counts_the_images_of_every_class_that_critics_learn_from() -> None:
    many = replace(MNIST, class_names=tuple(map(str, range(1000))))
    plans = [veilset.plan(spec, method="gs-wgan", epsilon=5.0, declared_size=60_000) for spec in (MNIST, many)]
    few, lots = (plan.forecast.megabytes for plan in plans)
    assert lots - few > 8 * 990 * 784 * 4 / 1e6


def test_a_plan_for_more_critics_than_images_can_feed_warns_and_expects_less() -> None:
    fed, starved = (veilset.plan(MNIST, method="gs-wgan", epsilon=5.0, declared_size=size) for size in (60_000, 500))
    assert not any("critics" in warning for warning in fed.warnings)
    assert any("1,000 critics has about 0.5 images" in warning for warning in starved.warnings)
    assert starved.forecast.signal_to_noise == pytest.approx(fed.forecast.signal_to_noise / 2)


def test_critics_that_do_not_fit_are_refused_before_anything_is_reserved(
    with_budget: tuple[ImageSet, DatasetBudget], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, budget = with_budget
    monkeypatch.setattr(critic_memory, "memory_of", lambda device: 10_000)
    with pytest.raises(ConfigError, match=r"5 of .* MB each"):
        execute(images, tiny_plan(images, "gs-wgan"), tmp_path / "run")
    assert budget.status().epsilon_charged == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["gs-wgan", "dpac"])
def test_room_for_critics_is_room_for_the_copies_of_a_checkpoint_too(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny_plan(make_images(), method)
    config = make_config(get_method(method), plan.config)
    each = bytes_kept(config.net(plan.facts.spec))
    found = [config.bytes_of_teachers(plan.facts.spec, device) // (5 * each) for device in ("cpu", "cuda")]
    assert found == ([3, 1] if method == "gs-wgan" else [4, 2])
    monkeypatch.setattr(critic_memory, "memory_of", lambda device: 5 * each * found[0])
    with pytest.raises(ConfigError, match="larger device"):
        config.check_room(plan.facts.spec, torch.device("cpu"))


@pytest.mark.parametrize("idle", [{"pool": 50}, {"frequencies": 3}, {"jitter": "handwriting"}], ids=str)
def test_what_critics_in_turn_do_not_use_is_refused(idle: dict[str, Any]) -> None:
    assert replace(TOGETHER, **idle)
    with pytest.raises(ConfigError, match="for critics in turn"):
        replace(IN_TURN, **idle)


def test_what_is_released_is_said_in_one_sentence() -> None:
    plan = veilset.plan(MNIST, method="gs-wgan", epsilon=1.0, declared_size=60_000)
    assert plan.forecast.released == (
        "3,000 times a noisy sum over 1,000 critics of 4,608 bounded numbers; adding or removing one record moves it "
        "by at most 2"
    )
    assert published().forecast.released.startswith("20,000 times what one of 1,000 critics wants of 32 images")


def test_more_noise_means_less_signal() -> None:
    forecasts = [GsWgan().forecast(TOGETHER, facts_of(MNIST), noise) for noise in (1.0, 10.0)]
    assert forecasts[0].signal_to_noise == pytest.approx(10 * forecasts[1].signal_to_noise)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(published().dumps())
    assert Plan.load(tmp_path / "plan.json") == published()
    assert json.loads((tmp_path / "plan.json").read_text())["published"]["status"] == "refuted"


@pytest.mark.parametrize(
    "settings",
    [
        {"shards": 0}, {"steps": 0}, {"images_per_step": 0}, {"critic": "deep"}, {"critic_width": 0}, {"warm_up": -1},
        {"teachers": "none"}, {"schedule": "by name"}, {"learning_rate": 0.0}, {"learning_rate": float("nan")},
        {"jitter": "wild"}, {"frequencies": 0}, {"latent_size": 0}, {"pool": 0}, {"schedule": "round-robin"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        GsWganConfig(**settings)
