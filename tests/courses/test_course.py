"""A course is settled before anything is spent: tasks, declared sizes, and neighbours in one task only."""

from __future__ import annotations

from typing import Any

import pytest

import veilset
from veilset.courses.course import course_for
from veilset.data.known import KNOWN
from veilset.data.spec import ImageSet, Source
from veilset.errors import ConfigError, PrivacyError
from veilset.privacy.bounds import Adjacency, Unit

from .cases import TASKS, some_course, some_images


def known_images(name: str) -> ImageSet:
    """Nothing of a known set but what it says about itself."""
    images = some_images(source=Source(benchmark=name))
    spec = veilset.ImageSpec(height=8, width=8, channels=1, class_names=KNOWN[name].class_names)
    return ImageSet(spec=spec, pixels=images.pixels, labels=images.labels, source=images.source)


def test_split_mnist_and_split_fashion_mnist_have_the_order_of_the_paper() -> None:
    digits = course_for(known_images("mnist"), method="psg", epsilon=10)
    assert [task.classes for task in digits.partition.tasks] == [tuple(pair) for pair in ("56", "12", "08", "93", "47")]
    assert {task.declared_size for task in digits.partition.tasks} == {12_000}
    clothes = course_for(known_images("fashion-mnist"), method="dp-merf", epsilon=10)
    assert [task.classes for task in clothes.partition.tasks] == [
        ("sandal", "shirt"), ("trouser", "pullover"), ("t-shirt", "bag"), ("ankle-boot", "dress"), ("coat", "sneaker"),
    ]  # fmt: skip


def test_psg_has_the_runs_of_the_appendix_where_none_are_given() -> None:
    images = known_images("mnist")
    assert course_for(images, method="psg", epsilon=1).settings == {"runs": 200}
    assert course_for(images, method="psg", epsilon=1, runs=7).settings == {"runs": 7}
    assert course_for(images, method="psg", epsilon=1, preset="small").settings == {"preset": "small"}
    assert course_for(images, method="dp-sgd", epsilon=1).mechanism.Config().epochs == 10


def test_every_task_is_planned_for_its_own_declared_size_and_classes() -> None:
    course = some_course()
    assert [plan.facts.declared_size for plan in course.plans] == [20, 30]
    assert [plan.facts.spec.class_names for plan in course.plans] == list(TASKS)
    assert all(plan.epsilon_planned == pytest.approx(2.0) for plan in course.plans)


def test_a_classifier_knows_all_classes_from_the_start() -> None:
    course = some_course(method="dp-sgd")
    assert {plan.facts.spec.class_names for plan in course.plans} == {(*TASKS[0], *TASKS[1])}
    assert [plan.facts.declared_size for plan in course.plans] == [20, 30]
    assert course.plans[0].planned != course.plans[1].planned, "sampling rates follow from the declared sizes"


def test_every_task_has_as_many_classes_as_its_method_needs() -> None:
    tasks = (("kind 0", "kind 1"), ("kind 2",))
    with pytest.raises(ConfigError, match=r"two or more classes for psg.*\n.*1 \(kind 2\)"):
        _ = some_course(method="psg", tasks=tasks, expected_batch=20).plans
    assert len(some_course(method="dp-sgd", tasks=tasks).plans) == 2, "it tells the class from all others"


@pytest.mark.parametrize("declared", [None, [], [20], [20, 30, 40], [20, 0]])
def test_private_classes_need_a_declared_size_for_each_task_or_one_for_all(declared: Any) -> None:
    if declared == [20]:
        assert [task.declared_size for task in some_course(declared_sizes=declared).partition.tasks] == [20, 20]
        return
    with pytest.raises(ConfigError, match="declared size"):
        some_course(declared_sizes=declared)


@pytest.mark.parametrize(
    ("options", "kind", "complaint"),
    [
        ({"tasks": (("kind 0", "kind 1"), ("kind 1", "kind 2"))}, PrivacyError, "every class in one task"),
        ({"tasks": (("kind 0", "kind 9"), ("kind 1", "kind 2"))}, ConfigError, "kind 9"),
        ({"tasks": None}, ConfigError, "classes of each task"),
        ({"adjacency": Adjacency.REPLACE}, PrivacyError, "may change its class"),
        ({"unit": Unit.USER}, PrivacyError, "images in several tasks"),
        ({"epsilon": None}, ConfigError, "an epsilon"),
        ({"method": "dpaf", "transfer": "both", "public_images": "mnist"}, PrivacyError, "of another task"),
    ],
)
def test_what_has_no_proof_or_makes_no_sense_is_refused(
    options: dict[str, Any], kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        some_course(**options)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [({"wings": 2}, "an option of dp-merf"), ({"steps": 0}, "steps"), ({"epsilon": -1.0}, "epsilon"),
     ({"delta": 2.0}, "delta")],
    ids=["option", "value", "epsilon", "delta"],
)  # fmt: skip
def test_what_is_wrong_whatever_the_tasks_is_told_before_tasks_are_asked_for(
    wrong: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        some_course(**{"tasks": None, **wrong})


def test_an_unknown_method_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="dp-sgd"):
        course_for(some_images(), method="dpsgd", epsilon=1.0, tasks=TASKS, declared_sizes=[20])
