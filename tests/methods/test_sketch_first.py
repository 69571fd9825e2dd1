"""Methods that begin with a sketch: one budget and one ledger for both stages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import TINY, digest, make_images, tiny_plan
from contract.sensitivity import Pair, neighbours, nulled, run_world, violations, with_nulls
from torch import Tensor

import veilset
from veilset.artifact import Privacy, privacy_bytes, update_manifest
from veilset.card import model_card
from veilset.data.spec import ImageSet
from veilset.engines import (
    sampled_sets,
    shard_teaching,
    sketch_first,
    sketch_rounds,
    sketch_settings,
    teaching_settings,
)  # fmt: skip
from veilset.errors import BudgetExceeded, ConfigError, VeilsetError
from veilset.methods import psg
from veilset.methods.base import PublicFacts, get_method, make_config
from veilset.methods.plan import Plan
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.image_sets import labels_of
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, GroupedSum, Unit
from veilset.privacy.claim import Claim
from veilset.privacy.events import Composed, Gaussian, Repeated, steps
from veilset.privacy.gaussian import gaussian_mu
from veilset.privacy.ledger import ChainedFile, LedgerRecord, read_chain
from veilset.privacy.noise import SeededNoise
from veilset.privacy.release import Door
from veilset.randomness import named_generator
from veilset.run import execute, resume
from veilset.sharing import verify

TAUGHT, SETS = ("gs-wgan", "dpac"), ("psg", "ndpdc")
"""Of a generator that critics then teach; of images that are then moved."""


@pytest.fixture(autouse=True)
def _tiny_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {name: value for name, value in TINY["sketch"].items() if name not in ("kinds", "latent_size", "channels")}
    monkeypatch.setitem(sketch_settings.PRESETS, "fast", own)  # type: ignore[misc]


def facts(adjacency: Adjacency = Adjacency.ADD_REMOVE, unit: Unit = Unit.RECORD) -> PublicFacts:
    return PublicFacts(spec=make_images().spec, declared_size=100, adjacency=adjacency, unit=unit)


def config_of(method: str, **settings: Any) -> Any:
    return make_config(get_method(method), {**TINY[method], "sketch": "fast", **settings})


@pytest.mark.parametrize("method", TAUGHT)
@pytest.mark.parametrize("share", [0.2, 0.9])
def test_sketch_and_teaching_divide_mu_squared_by_the_share(method: str, share: float) -> None:
    config = config_of(method, sketch_share=share)
    event = get_method(method).events(config, facts(), 7.0)
    assert isinstance(event, Composed)
    *sketch, teaching = event.events
    assert teaching == Repeated(config.steps, Gaussian(7.0))
    squares = [1 / one.noise_multiplier**2 for one in sketch if isinstance(one, Gaussian)]
    assert len(squares) == len(sketch) == 2
    of_teaching = config.steps / 7.0**2
    assert sum(squares) / (sum(squares) + of_teaching) == pytest.approx(share)


@pytest.mark.parametrize(
    ("method", "settings", "epsilon"),
    [("psg", {"runs": 40, "rounds": 4, "steps": 5}, 10.0), ("psg", {}, 1.0), ("ndpdc", {"steps": 1000}, 10.0)],
)
def test_beside_releases_on_samples_too_half_of_mu_squared_is_about_a_half(
    method: str, settings: dict[str, Any], epsilon: float
) -> None:
    """With little noise on rare samples as well: 800 releases at epsilon 10 have a multiplier below one half."""
    spec = make_images().spec
    plan = veilset.plan(spec, method=method, epsilon=epsilon, declared_size=60_000, sketch="fast", **settings)
    assert isinstance(plan.planned, Composed)
    *sketch, _ = plan.planned.events
    mu_squared = sum(1 / one.noise_multiplier**2 for one in sketch if isinstance(one, Gaussian))
    assert 0.3 < mu_squared / gaussian_mu(epsilon, 1e-5) ** 2 < 0.6
    assert plan.epsilon_planned == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("method", [*TAUGHT, *SETS])
def test_a_plan_with_a_sketch_costs_what_was_asked_for_and_is_spent_exactly(method: str, tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, method, sketch="fast")
    assert price(plan.planned, 1e-5, Adjacency.ADD_REMOVE).epsilon == pytest.approx(5.0, rel=1e-3)
    record = execute(images, plan, tmp_path / "run").privacy.record
    assert record is not None
    assert record.closed
    assert record.charged == steps(plan.planned)
    assert sum(record.charged.values()) == 2 + 4
    assert verify(tmp_path / "run")["method"] == method


@pytest.mark.parametrize("method", SETS)
def test_images_are_moved_from_where_the_sketch_put_them(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[UpsamplingGenerator] = []
    plain = sketch_first.sketched

    def kept(*arguments: Any) -> UpsamplingGenerator:
        made.append(plain(*arguments))
        return made[-1]

    monkeypatch.setattr(sketch_first, "sketched", kept)
    images = make_images()
    model = execute(images, tiny_plan(images, method, sketch="fast", pixel_rate=1e-9), tmp_path / "run")
    draws = named_generator(0, f"{method} first images")
    with torch.no_grad():
        samples = made[0].sample(labels_of(images.spec, 4, torch.device("cpu")), draws)
    assert torch.allclose(model._module.state_dict()["values"], samples.flatten(1), atol=1e-4)


def test_critics_teach_the_generator_of_the_sketch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[str] = []
    plain = shard_teaching.teach

    def watched(generator: torch.nn.Module, *rest: Any, **named: Any) -> None:
        begun.append(digest(generator.state_dict()))
        plain(generator, *rest, **named)

    made: list[str] = []
    sketched = sketch_first.sketched

    def kept(*arguments: Any) -> torch.nn.Module:
        generator = sketched(*arguments)
        made.append(digest(generator.state_dict()))
        return generator

    monkeypatch.setattr(shard_teaching, "teach", watched)
    monkeypatch.setattr(sketch_first, "sketched", kept)
    images = make_images()
    model = execute(images, tiny_plan(images, "gs-wgan", sketch="fast"), tmp_path / "run", noise=SeededNoise(1))
    assert begun == made
    assert digest(model._module.state_dict()) not in made


def pairs(adjacency: Adjacency, method: str = "gs-wgan") -> Iterator[Any]:
    def collection(size: int) -> ImageSet:
        return make_images(counts=(size - size // 3 - size // 5, size // 3, size // 5), seed=size)

    sizes = (1, 7, 20) if method in SETS else (0, 1, 7, 499, 500)
    found = neighbours(collection, sizes, adjacency, in_place=method in SETS)
    return chain(found, (nulled(collection(size), 0) for size in sizes if size))


@pytest.mark.parametrize("method", [*TAUGHT, *SETS])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_neighbour_moves_a_release_of_either_stage_beyond_its_bound(method: str, adjacency: Adjacency) -> None:
    assert violations(get_method(method), config_of(method), facts(adjacency), pairs(adjacency, method)) == []


def test_the_search_sees_the_releases_of_both_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    door = run_world(get_method("gs-wgan"), config_of("gs-wgan"), facts(), make_images())
    assert [len(capture.values) for capture in door.captures] == [3, 3, 1, 1, 1, 1]
    plain = sketch_rounds.sum_by_label

    def twice(*arguments: Any, **named: Any) -> GroupedSum:
        total = plain(*arguments, **named)
        assert total.grid_total is not None
        total.grid_total *= 2
        return total

    monkeypatch.setattr(sketch_rounds, "sum_by_label", twice)
    found = violations(get_method("gs-wgan"), config_of("gs-wgan"), facts(), pairs(Adjacency.ADD_REMOVE))
    for number in (0, 1):
        assert any(f"release {number}: moved by 2.0" in line for line in found)


def test_a_sketch_that_the_plan_does_not_hold_is_refused(tmp_path: Path) -> None:
    images = make_images()
    without = tiny_plan(images, "gs-wgan")
    with pytest.raises(BudgetExceeded):
        execute(images, replace(without, config={**without.config, "sketch": "fast"}), tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()


@pytest.mark.parametrize(
    ("method", "at"),
    [
        *(("gs-wgan", at) for at in ("measuring, round 2", "training the generator, round 2", shard_teaching.DOING)),
        *(("psg", at) for at in ("training the generator, round 2", psg.DOING)),
    ],
)
def test_a_run_killed_in_either_stage_ends_with_the_same_charges(
    method: str, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (teaching_settings, sampled_sets):
        monkeypatch.setattr(module, "steps_between", lambda *_: 2)
    images = make_images()
    plan = tiny_plan(images, method, sketch="fast")

    def dies(message: str, done: int, total: int) -> None:
        if message == at and done in (2, total):
            raise KeyboardInterrupt

    whole = execute(images, plan, tmp_path / "whole", noise=SeededNoise(5))
    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "killed", noise=SeededNoise(5), progress=dies)
    resumed = resume(images, tmp_path / "killed")
    assert resumed.privacy.record.charged == whole.privacy.record.charged  # type: ignore[union-attr]


def test_users_have_no_cap_for_critics_and_so_no_sketch() -> None:
    with pytest.raises(ConfigError, match="Drop --sketch"):
        get_method("gs-wgan").events(config_of("gs-wgan"), facts(unit=Unit.USER), 7.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sketch": "quick"}, "one of the presets fast, balanced, best"),
        ({"sketch_share": 0.0}, "sketch_share between 0 and 1"),
        ({"sketch_share": 1.0}, "sketch_share between 0 and 1"),
        ({"sketch": "none", "sketch_share": 0.3}, "Give --sketch too"),
        ({"teachers": "in-turn"}, "sketch for critics together"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of("gs-wgan", **settings)


def test_the_plan_says_both_stages_and_the_claim_what_the_sketch_assumes() -> None:
    method, config = get_method("gs-wgan"), config_of("gs-wgan")
    forecast, alone = (
        method.forecast(config, facts(), 7.0),
        method.forecast(replace(config, sketch="none"), facts(), 7.0),
    )
    assert "per class a noisy sum" in forecast.released
    assert forecast.released.endswith(alone.released)
    assert forecast.seconds > alone.seconds
    assert forecast.later_signal_to_noise == alone.signal_to_noise
    (assumed,) = method.assumed(config)
    assert assumed == f"of the sketch that came first: {sketch_settings.NETWORKS_ASSUMED}"
    assert method.assumed(replace(config, sketch="none")) == ()


def test_a_generator_with_codes_of_its_own_does_not_begin_with_a_sketch() -> None:
    with pytest.raises(ConfigError, match="a sketch or a prior"):
        config_of("psg", prior=True)


@pytest.mark.parametrize("method", [*TAUGHT, *SETS])
def test_what_a_paper_published_has_no_sketch(method: str) -> None:
    with pytest.raises(ConfigError, match="sketch none, as in the paper"):
        tiny_plan(make_images(), method, sketch="fast", accounting="published")


def test_a_plan_file_cannot_put_a_sketch_beside_published_accounting() -> None:
    """The paper's formula prices the later steps alone."""
    fields = json.loads(tiny_plan(make_images(), "psg", accounting="published").dumps())
    fields["config"]["sketch"] = "fast"
    with pytest.raises(VeilsetError, match="sketch none, as in the paper"):
        Plan.from_json(fields)


def test_a_plan_says_where_all_that_follows_the_sketch_is_noise() -> None:
    warnings = tiny_plan(make_images(), "gs-wgan", sketch="fast", epsilon=0.1).warnings
    assert any(text.startswith("after the sketch, the noise is about") for text in warnings)
    assert not any("after the sketch" in text for text in tiny_plan(make_images(), "gs-wgan", epsilon=0.1).warnings)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("method", SETS)
def test_no_user_moves_a_release_of_either_stage_beyond_its_bound(method: str, adjacency: Adjacency) -> None:
    """Of a user with more images than the cap, the same ones count in both stages."""
    images = make_images((9, 6, 3), per_user=3)
    terms = replace(facts(adjacency, Unit.USER), rows_per_user=2)
    mine = torch.tensor([user == "person 1" for user in images.users or ()])
    gone = Pair("a user left", images, with_nulls(images, mine), frozenset(images.labels[mine].tolist()))
    door = run_world(get_method(method), config_of(method), terms, images)
    assert len(door.captures) == 2 + 4
    assert violations(get_method(method), config_of(method), terms, iter([gone])) == []


@pytest.mark.parametrize("method", [*TAUGHT, *SETS])
@pytest.mark.parametrize("release", [1, 2])
def test_a_run_killed_between_a_charge_of_the_sketch_and_its_checkpoint_releases_nothing_more(
    method: str, release: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, made = Door.release_sum, []

    def dies(self: Door, *arguments: Any, **named: Any) -> Tensor:
        made.append(plain(self, *arguments, **named))
        if len(made) == release:
            raise KeyboardInterrupt
        return made[-1]

    images = make_images()
    monkeypatch.setattr(Door, "release_sum", dies)
    with pytest.raises(KeyboardInterrupt):
        execute(images, tiny_plan(images, method, sketch="fast"), tmp_path / "run")
    with pytest.raises(BudgetExceeded):
        resume(images, tmp_path / "run")
    assert len(made) == release
    assert not (tmp_path / "run" / "release").exists()


def stated_anew(run: Path, config: dict[str, Any], claim: Claim, lines: list[str]) -> Path:
    """A release with hashes and card of its own, as a forger would write it."""
    release = run / "release"
    (release / "config.json").write_text(json.dumps(config))
    (release / "privacy.json").write_bytes(privacy_bytes(Privacy.of_run(claim, lines)))
    (release / "README.md").write_text(model_card(config, claim))
    update_manifest(release)
    return release


@pytest.mark.parametrize("method", SETS)
def test_a_release_with_a_sketch_cannot_be_stated_as_the_papers(method: str, tmp_path: Path) -> None:
    """The paper's formula prices the steps: beside a sketch of nearly all of the budget it gives a tenth."""
    images, run = make_images(), tmp_path / "run"
    plan = tiny_plan(images, method, sketch="fast", sketch_share=0.99)
    claim = execute(images, plan, run).claim
    settings = make_config(get_method(method), plan.config)
    terms = (settings, plan.facts, plan.noise_multiplier, plan.delta)
    published = get_method(method).published_claim(*terms)
    assert published.epsilon < 1
    config = json.loads((run / "release" / "config.json").read_text()) | {"accounting": "published"}
    lines = json.loads((run / "release" / "privacy.json").read_text())["ledger"]
    forged = stated_anew(run, config, replace(claim, published=published), lines)
    with pytest.raises(VeilsetError, match="as in the paper"):
        verify(forged)


@pytest.mark.parametrize("method", ["gs-wgan", "psg"])
def test_a_ledger_of_a_resumed_run_without_its_sketch_is_not_believed(method: str, tmp_path: Path) -> None:
    images, run = make_images(), tmp_path / "run"
    claim = execute(images, tiny_plan(images, method, sketch="fast", sketch_share=0.99), run).claim
    config = json.loads((run / "release" / "config.json").read_text())
    entries = read_chain(json.loads((run / "release" / "privacy.json").read_text())["ledger"])
    sketch = [entry for entry in entries if entry.get("charge", {}).get("noise_multiplier", 1e9) < 5]
    assert len(sketch) == 2
    chain = ChainedFile(tmp_path / "ledger.jsonl", create=True)
    for entry in [entries[0], {"resume": 1}, *(one for one in entries[1:] if one not in sketch)]:
        chain.append(entry)
    chain.unlock()
    record = LedgerRecord(read_chain(chain.lines()))
    cheap = Claim.from_parts([[record]], assumptions=claim.assumptions, published=None, stamps=claim.stamps)
    assert cheap.epsilon is not None
    assert cheap.epsilon < 1 < 4 < (claim.epsilon or 0)
    with pytest.raises(VeilsetError, match="all releases of its plan"):
        verify(stated_anew(run, config, cheap, chain.lines()))
