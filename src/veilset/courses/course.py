"""A course: what is learned one after the other, by which method, and at what price. All of it is public, and settled
before anything is spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from veilset.classifier import METHOD as DP_SGD
from veilset.data.known import KNOWN
from veilset.data.spec import Images, ImageSpec
from veilset.errors import ConfigError, PrivacyError
from veilset.methods.base import Mechanism, PublicFacts, get_mechanism
from veilset.methods.plan import Plan, make_plan, requested_config
from veilset.partition import Partition, Task, check_neighbours
from veilset.privacy.bounds import Adjacency, Unit

ORDER = (5, 6, 1, 2, 0, 8, 9, 3, 4, 7)
"""Of the classes of SplitMNIST and SplitFashionMNIST, two in each task: PSG, code of appendix C.5."""
SPLITS = ("mnist", "fashion-mnist")
SPLIT_SIZE = 12_000
"""Declared for every task of these: a fifth of 60,000."""
SETTINGS: dict[str, dict[str, Any]] = {"psg": {"runs": 200}}
"""Where continual learning has other defaults than a single fit: PSG, appendix C.5."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """Tasks, and how each of them is learned. Epsilon is that of every single task and, by parallel composition, of
    all of them together."""

    method: str
    spec: ImageSpec
    """Its classes are those of all tasks, in their order."""
    partition: Partition
    epsilon: float
    delta: float = 1e-5
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mechanism(self) -> Mechanism:
        return get_mechanism(self.method)

    @property
    def classifies(self) -> bool:
        """Whether a classifier is released instead of images."""
        return self.method == DP_SGD.name

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """One for each task, by its own declared size. Equal tasks are calibrated once, which takes seconds."""
        made: dict[tuple[int, int], Plan] = {}
        for task in self.partition.tasks:
            alike = (task.declared_size, len(task.classes))
            if alike not in made:
                made[alike] = self._plan(task)
        return tuple(self._named(made[task.declared_size, len(task.classes)], task) for task in self.partition.tasks)

    def _plan(self, task: Task) -> Plan:
        facts = PublicFacts(
            spec=self._spec(task), declared_size=task.declared_size, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD
        )
        return make_plan(
            self.mechanism, facts, epsilon=self.epsilon, delta=self.delta, settings=self.settings, seed=self.seed
        )

    def _named(self, plan: Plan, task: Task) -> Plan:
        return replace(plan, facts=replace(plan.facts, spec=self._spec(task)))

    def _spec(self, task: Task) -> ImageSpec:
        """What the images of a task look like: a classifier knows all classes from the start."""
        return self.spec if self.classifies else replace(self.spec, class_names=task.classes)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "spec": self.spec.to_json(), "partition": self.partition.to_json()}


def course_for(
    images: Images,
    *,
    method: str,
    epsilon: float | None,
    tasks: Sequence[Sequence[str]] | None = None,
    declared_sizes: Sequence[int] | None = None,
    delta: float = 1e-5,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    unit: Unit = Unit.RECORD,
    seed: int = 0,
    **settings: Any,
) -> Course:
    """A course over the classes of `images`; MNIST and Fashion-MNIST have tasks and sizes of their own.

    Args:
        epsilon: of each task; it has no default.
        tasks: names of classes for each task, in the order in which they are learned.
        declared_sizes: a public, rounded number of images for each task, or one for all. Exact ones are private.
        settings: options of the method.

    Raises: PrivacyError where parallel composition does not hold: a class in two tasks, replace, or users.
    """
    check_neighbours(adjacency, unit)
    if settings.get("public_images"):
        raise PrivacyError(
            "tasks that learn from their own images alone",
            f"public images, {settings['public_images']}",
            "Leave them out: nobody would compare them with the private images of another task.",
        )
    mechanism = get_mechanism(method)
    settings = settings if "preset" in settings else {**SETTINGS.get(method, {}), **settings}
    requested_config(mechanism, epsilon=epsilon, delta=delta, accounting="proven", settings=settings)
    assert epsilon is not None  # or it had been refused
    partition = _partition(images, tasks, declared_sizes)
    unknown = [name for name in partition.class_names if name not in images.spec.class_names]
    if unknown:
        raise ConfigError(
            f"tasks of the classes {', '.join(images.spec.class_names)}", ", ".join(unknown), "Correct the tasks."
        )
    return Course(
        method=mechanism.name,
        spec=replace(images.spec, class_names=partition.class_names),
        partition=partition,
        epsilon=float(epsilon),
        delta=delta,
        seed=seed,
        settings=settings,
    )


def split_partition(name: str) -> Partition:
    """SplitMNIST or SplitFashionMNIST."""
    names = [KNOWN[name].class_names[number] for number in ORDER]
    pairs = [tuple(names[place : place + 2]) for place in range(0, len(names), 2)]
    return Partition(tuple(Task(classes=pair, declared_size=SPLIT_SIZE) for pair in pairs))


def _partition(
    images: Images, tasks: Sequence[Sequence[str]] | None, declared_sizes: Sequence[int] | None
) -> Partition:
    name = images.source.benchmark
    if tasks is None:
        if name not in SPLITS or images.spec.class_names != KNOWN[name].class_names:
            raise ConfigError(
                "the classes of each task",
                "none",
                'Pass --tasks "cat,dog;bird,fish": first cat and dog, then the rest.',
            )
        tasks = [task.classes for task in split_partition(name).tasks]
        declared_sizes = declared_sizes or [SPLIT_SIZE]
    sizes = list(declared_sizes or [])
    sizes = sizes * len(tasks) if len(sizes) == 1 else sizes
    if len(sizes) != len(tasks):
        raise ConfigError(
            f"a declared size for each of {len(tasks)} tasks, or one for all",
            f"{len(sizes)}",
            "Pass --declared-sizes 12000,9000,...: public, rounded numbers; the exact ones are private.",
        )
    return Partition(
        tuple(Task(classes=tuple(one), declared_size=size) for one, size in zip(tasks, sizes, strict=True))
    )
