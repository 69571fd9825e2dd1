"""A course of two tasks over a few images of four kinds, learned in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contract.cases import TINY, make_images

from veilset.courses.course import Course, course_for
from veilset.courses.folder import CourseFolder
from veilset.courses.learning import learn
from veilset.courses.scores import Judges
from veilset.data.spec import ImageSet, Source

TASKS = (("kind 2", "kind 0"), ("kind 1", "kind 3"))
DP_SGD = {"epochs": 1, "expected_batch": 10, "width": 16}
SETTINGS: dict[str, dict[str, Any]] = {**TINY, "dp-sgd": DP_SGD}
BENCHMARK = Source(benchmark="toys")
FAST = Judges(classifier="lda", samples_per_class=4)


def some_images(**options: Any) -> ImageSet:
    return make_images(counts=(7, 5, 6, 4), **options)


def some_course(images: ImageSet | None = None, method: str = "dp-merf", **options: Any) -> Course:
    given = {"epsilon": 2.0, "tasks": TASKS, "declared_sizes": (20, 30), **SETTINGS[method], **options}
    return course_for(images or some_images(), method=method, **given)


def learned(path: Path, method: str = "dp-merf", **options: Any) -> CourseFolder:
    images = some_images()
    return learn(images, some_course(images, method, **options), path)
