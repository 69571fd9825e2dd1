"""An undisturbed fit spends exactly its plan, whatever the images look like and however it is accounted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from devices import DEVICES

from veilset.data.spec import ImageSet
from veilset.errors import ConfigError, PlanMismatch
from veilset.methods.plan import Plan
from veilset.model import Model
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import CAPPED
from veilset.privacy.events import Composed, steps
from veilset.run import execute
from veilset.sharing import verify

from .cases import METHODS, make_images, tiny_plan

COLLECTIONS: dict[str, dict[str, Any]] = {
    "grey": {},
    "RGB": {"channels": 3},
    "grey 8x11": {"height": 8, "width": 11},
    "RGB 13x9": {"height": 13, "width": 9, "channels": 3},
    "one class": {"counts": (6,)},
    "one image": {"counts": (1,)},
    "a class with one image": {"counts": (9, 1)},
    "classes without images": {"counts": (4, 0, 3, 0)},
    "no images at all": {"counts": (0, 0)},
    "null records": {"null_rows": (0, 4, 14)},
    "null records only": {"counts": (2, 1), "null_rows": (0, 1, 2)},
    "as many as one batch": {"counts": (250, 250)},
    "one more than a batch": {"counts": (250, 251)},
}


TELLS_CLASSES_APART = {"psg"}
"""Methods that refuse a single class, of which they would learn nothing."""
WITHOUT_PROOF = {"dpaf"}
"""Methods for whose published construction no epsilon can be proven."""


def assert_spent_as_planned(model: Model, plan: Plan, images: ImageSet, path: Path) -> None:
    record = model.privacy.record
    assert record.closed
    assert record.resumed == 0
    assert steps(record.spent) == steps(plan.planned)
    assert (record.adjacency, record.unit, record.delta) == (plan.facts.adjacency, plan.facts.unit, plan.delta)
    samples = model.sample(7)
    assert samples.spec == images.spec
    assert len(samples) == 7
    assert verify(path)["method"] == plan.method


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_fit_spends_exactly_its_plan_whatever_the_images(method: str, collection: str, tmp_path: Path) -> None:
    images = make_images(**COLLECTIONS[collection])
    if method in TELLS_CLASSES_APART and images.spec.num_classes == 1:
        with pytest.raises(ConfigError, match="two or more classes"):
            tiny_plan(images, method)
        return
    plan = tiny_plan(images, method)
    model = execute(images, plan, tmp_path / "run")
    assert_spent_as_planned(model, plan, images, tmp_path / "run")
    assert model.claim.epsilon is not None
    assert 0 < model.claim.epsilon <= 5.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("accounting", ["proven", "published", "none"])
def test_a_fit_spends_exactly_its_plan_however_it_is_accounted(
    method: str, adjacency: str, accounting: str, tmp_path: Path
) -> None:
    images = make_images()
    plan = tiny_plan(images, method, adjacency=adjacency, accounting=accounting)
    model = execute(images, plan, tmp_path / "run", allow_published=True)
    assert_spent_as_planned(model, plan, images, tmp_path / "run")
    assert (model.claim.published is not None) == (accounting == "published")
    if plan.not_private is None:
        assert model.claim.epsilon == price(plan.planned, plan.delta, plan.facts.adjacency).epsilon
    else:
        assert model.claim.epsilon is None
        assert model.claim.stamps[0] == f"NOT PRIVATE: {plan.not_private}"
    assert (plan.not_private is not None) == (
        accounting == "none" or (accounting == "published" and method in WITHOUT_PROOF)
    )
    if accounting != "published":
        assert model.claim.adjacency == adjacency


@pytest.mark.parametrize("method", METHODS)
def test_the_published_epsilon_stands_beside_the_proven_one_of_the_same_run(method: str, tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, method, accounting="published", epsilon=3.0)
    claim = execute(images, plan, tmp_path / "run", allow_published=True).claim
    assert claim.published is not None
    assert claim.published.epsilon == pytest.approx(3.0, rel=1e-3)
    assert claim.published.status in ("sound", "conservative", "refuted")
    assert (claim.epsilon is None) == (method in WITHOUT_PROOF)
    if claim.published.status != "refuted":
        assert claim.epsilon is not None
        assert claim.epsilon <= claim.published.epsilon * (1 + 1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_a_fit_at_user_level_spends_exactly_its_plan(method: str, adjacency: str, tmp_path: Path) -> None:
    images = make_images(per_user=4)
    plan = tiny_plan(images, method, unit="user", images_per_user=2, adjacency=adjacency)
    model = execute(images, plan, tmp_path / "run")
    assert_spent_as_planned(model, plan, images, tmp_path / "run")
    assert model.claim.unit == "user"
    capped = set(CAPPED[Unit.USER]) <= set(model.claim.assumptions)
    assert capped == (method not in ("dpac", "gs-wgan")), "shards hold all images of a user"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_fit_runs_the_same_code_on_every_device(method: str, device: str, tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    model = execute(images, plan, tmp_path / "run", device=device)
    assert_spent_as_planned(model, plan, images, tmp_path / "run")
    assert torch.equal(model.sample(3, device=device).labels, model.sample(3).labels)


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_depends_on_public_facts_only_and_is_pure(method: str) -> None:
    few, many = make_images(counts=(1, 1, 1)), make_images(counts=(30, 2, 9), seed=5)
    first, second = tiny_plan(few, method), tiny_plan(many, method)
    assert first == second
    assert Plan.from_json(first.to_json()) == first


@pytest.mark.parametrize("method", METHODS)
def test_a_smaller_epsilon_means_more_noise(method: str) -> None:
    multipliers = [tiny_plan(make_images(), method, epsilon=epsilon).noise_multiplier for epsilon in (0.5, 2.0, 8.0)]
    assert multipliers == sorted(multipliers, reverse=True)
    assert len(set(multipliers)) == 3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_plan_and_reserve_together_cost_at_most_the_target(method: str, adjacency: Adjacency) -> None:
    plan = tiny_plan(make_images(), method, adjacency=adjacency, epsilon=1.5)
    both = price(Composed((plan.planned, plan.reserve)), plan.delta, adjacency).epsilon
    assert 1.5 * 0.95 <= both <= 1.5
    assert plan.epsilon_planned == both


@pytest.mark.parametrize("method", METHODS)
def test_releasing_less_than_planned_is_a_mismatch_and_writes_no_release(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    images = make_images()
    plan = tiny_plan(images, method)
    too_much = replace(plan, planned=Composed((plan.planned, plan.planned)))
    with pytest.raises(PlanMismatch):
        execute(images, too_much, tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()
