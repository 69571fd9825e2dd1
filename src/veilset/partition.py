"""Classes divided among tasks, so that a record is in the task of its class: what parallel composition rests on.

Why the price is that of the dearest task: adding or removing a record changes the images of one task, which has its own
ledger. Earlier tasks are the same with and without it; later ones read other records and what was released, which costs
that record nothing more. A record that is replaced may change its class, and a user may have images of many classes:
both are in several tasks, whose losses add up, so neither is claimed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from veilset.artifact import LedgerParts, Privacy, combined
from veilset.errors import ConfigError, PrivacyError
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim, common_terms

PARTITIONED = (
    "a record is in one task, that of its class, and no class is in two tasks: adding or removing a record changes one "
    "task, and epsilon is that of the dearest task (parallel composition)",
    "the classes and the declared size of every task were declared without looking at the data",
    "a record that changes its class would be in two tasks, whose losses add up: this claim is about records that are "
    "added or removed",
)
"""Assumptions of parallel composition over classes."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Classes that are learned together, and a public number of their images; the exact one is private."""

    classes: tuple[str, ...]
    declared_size: int

    def __post_init__(self) -> None:
        if not self.classes:
            raise ConfigError("at least one class in every task", "none", "Name them, or leave the task out.")
        size = self.declared_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(
                f"a declared size of at least 1 for the task {', '.join(self.classes)}",
                f"{size}",
                "Declare a public, rounded number of its images: the exact number of a class is private.",
            )


@dataclass(frozen=True)
class Partition:
    """Tasks in the order in which they are learned. Everything in here is public."""

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        twice = sorted({name for name in self.class_names if self.class_names.count(name) > 1})
        if twice:
            raise PrivacyError(
                "every class in one task",
                f"{', '.join(twice)} more than once",
                "A record of such a class would be in several tasks, whose losses add up: leave it in one of them.",
            )
        if not self.tasks or len(self.tasks[0].classes) < 2:
            raise ConfigError(
                "two or more classes in the first task", "fewer", "There is nothing to tell apart: move a class there."
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """All classes in the order in which they are learned."""
        return tuple(name for task in self.tasks for name in task.classes)

    def seen(self, stage: int) -> tuple[str, ...]:
        """The classes of the first `stage` tasks."""
        return tuple(name for task in self.tasks[:stage] for name in task.classes)

    def until(self, stage: int) -> Partition:
        return Partition(self.tasks[:stage])

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(task) for task in self.tasks]

    @classmethod
    def from_json(cls, value: Sequence[Mapping[str, Any]]) -> Partition:
        return cls(
            tuple(Task(classes=tuple(map(str, task["classes"])), declared_size=task["declared_size"]) for task in value)
        )


def check_neighbours(adjacency: Adjacency, unit: Unit) -> None:
    """Raises: PrivacyError for neighbours that may differ in more than one task."""
    if adjacency is not Adjacency.ADD_REMOVE:
        raise PrivacyError(
            "add-remove neighbours over a partition of the classes",
            f"{adjacency}: a replaced record may change its class, and is then in two tasks, whose losses add up",
            "Use --adjacency add-remove.",
        )
    if unit is not Unit.RECORD:
        raise PrivacyError(
            "one record as the unit of privacy over a partition of the classes",
            f"one {unit}: a person may have images in several tasks, whose losses add up",
            "Use --unit record, or fit all classes at once with `veilset fit --unit user`.",
        )


def partitioned(parts: LedgerParts, claims: Sequence[Claim]) -> Privacy:
    """The claim about the ledgers of all tasks, one part each: priced from what they were charged, as the dearest.

    Raises: PrivacyError where their neighbours could be in two tasks.
    """
    privacy = combined(parts, claims, assumptions=PARTITIONED)
    terms = common_terms(privacy.records)
    check_neighbours(terms.adjacency, terms.unit)
    return privacy
