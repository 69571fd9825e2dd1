"""Parallel composition over classes: the dearest task counts, and only where no record can be in two."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from contract.cases import make_images, tiny_plan

from veilset import partition as partition_module
from veilset.errors import ConfigError, MixedAdjacency, PrivacyError
from veilset.partition import PARTITIONED, Partition, Task, check_neighbours, partitioned
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import Composed
from veilset.run import execute


def tasks(*classes: tuple[str, ...]) -> Partition:
    return Partition(tuple(Task(classes=names, declared_size=20) for names in classes))


def test_classes_come_in_the_order_in_which_they_are_learned() -> None:
    divided = tasks(("b", "a"), ("c",))
    assert divided.class_names == ("b", "a", "c")
    assert divided.seen(1) == ("b", "a")
    assert divided.until(1) == tasks(("b", "a"))
    assert Partition.from_json(divided.to_json()) == divided


@pytest.mark.parametrize("classes", [[("a", "b"), ("b", "c")], [("a", "a")], [("a", "b"), ("c", "a"), ("d",)]])
def test_a_class_in_two_tasks_is_refused(classes: list[tuple[str, ...]]) -> None:
    with pytest.raises(PrivacyError, match="every class in one task"):
        tasks(*classes)


@pytest.mark.parametrize("classes", [[], [("a",), ("b", "c")], [("a", "b"), ()]])
def test_tasks_without_anything_to_tell_apart_are_refused(classes: list[tuple[str, ...]]) -> None:
    with pytest.raises(ConfigError):
        tasks(*classes)


@pytest.mark.parametrize("size", [0, -5, True, 12.5, None])
def test_a_task_without_a_declared_size_is_refused(size: object) -> None:
    with pytest.raises(ConfigError, match="declared size"):
        Task(classes=("a", "b"), declared_size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("adjacency", "unit", "reason"),
    [
        (Adjacency.REPLACE, Unit.RECORD, "may change its class"),
        (Adjacency.ADD_REMOVE, Unit.USER, "images in several tasks"),
    ],
)
def test_neighbours_that_may_be_in_two_tasks_are_refused(adjacency: Adjacency, unit: Unit, reason: str) -> None:
    with pytest.raises(PrivacyError, match=reason):
        check_neighbours(adjacency, unit)


def ledgers(folder: Path, *epsilons: float, **terms: object) -> tuple[tuple, list]:
    """Ledgers of real runs, one for each epsilon, and their claims."""
    parts, claims = [], []
    for number, epsilon in enumerate(epsilons):
        images = make_images(per_user=1 if terms.get("unit") == "user" else None)
        model = execute(images, tiny_plan(images, "dp-merf", epsilon=epsilon, **terms), folder / str(number))
        parts += model.privacy.parts
        claims.append(model.claim)
    return tuple(parts), claims


def test_the_price_of_all_tasks_is_that_of_the_dearest_and_not_their_sum(tmp_path: Path) -> None:
    parts, claims = ledgers(tmp_path, 1.0, 3.0, 2.0)
    claim = partitioned(parts, claims).claim
    assert claim.epsilon == pytest.approx(3.0)
    assert claim.epsilon == max(one.epsilon for one in claims)
    together = partition_module.combined((tuple(line for part in parts for line in part),), claims).claim
    assert together.epsilon > 3.5, "one after the other on the same people they cost more"
    assert set(PARTITIONED) <= set(claim.assumptions)


def test_the_price_is_that_of_the_ledgers_whatever_the_claims_say(tmp_path: Path) -> None:
    parts, claims = ledgers(tmp_path, 1.0, 3.0)
    modest = [dataclasses.replace(claim, epsilon=0.1) for claim in claims]
    assert partitioned(parts, modest).claim.epsilon == pytest.approx(3.0)
    privacy = partitioned(parts, claims)
    dearest = max(
        price(Composed(tuple(one.spent for one in part)), 1e-5, Adjacency.ADD_REMOVE).epsilon
        for part in privacy.records
    )
    assert privacy.claim.epsilon == dearest


@pytest.mark.parametrize("terms", [{"adjacency": "replace"}, {"unit": "user", "images_per_user": 1}])
def test_ledgers_about_neighbours_that_may_be_in_two_tasks_make_no_claim(
    terms: dict[str, object], tmp_path: Path
) -> None:
    parts, claims = ledgers(tmp_path, 1.0, 2.0, **terms)
    with pytest.raises(PrivacyError, match="over a partition of the classes"):
        partitioned(parts, claims)


def test_ledgers_on_different_terms_are_not_combined(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    parts, claims = ledgers(tmp_path / "a", 1.0)
    more, others = ledgers(tmp_path / "b", 1.0, delta=1e-6)
    with pytest.raises(MixedAdjacency):
        partitioned((*parts, *more), [*claims, *others])
