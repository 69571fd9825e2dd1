"""A course from its first task to its last score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from veilset.classifier import PrivateClassifier, open_classifier
from veilset.courses.course import Course
from veilset.courses.folder import CourseFolder
from veilset.courses.learning import learn
from veilset.courses.release import read_course
from veilset.courses.scores import Judges, check_test, note_asked, score_course
from veilset.data.spec import ImageSet
from veilset.evaluate import Score
from veilset.methods.base import Progress
from veilset.model import Model, from_pretrained
from veilset.privacy.claim import Claim
from veilset.scoring import Warn


@dataclass(frozen=True)
class LearnedCourse:
    """What is left of a course: the model of each task, and the claim about all of them."""

    folder: CourseFolder
    course: Course
    scores: tuple[Score, ...]
    """After each task, where there were test images. They are private unless those are a public benchmark."""

    @property
    def claim(self) -> Claim:
        """About all tasks together: the dearest counts."""
        return Claim.from_json(read_course(self.folder.path)["claim"])

    @property
    def models(self) -> list[Model | PrivateClassifier]:
        read = open_classifier if self.course.classifies else from_pretrained
        return [read(self.folder.task(number).path) for number in range(1, len(self.course.partition.tasks) + 1)]


def run_course(
    images: ImageSet,
    course: Course,
    path: Path,
    *,
    test: ImageSet | None,
    judges: Judges,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
    warn: Warn = lambda text: None,
    resume: bool = False,
) -> LearnedCourse:
    """Learns all tasks and, with test images, measures every stage. What was finished before an interrupt is kept."""
    if test is not None:
        check_test(course, test)

    def prepare(folder: CourseFolder) -> None:
        if test is not None:
            note_asked(folder, test.source, judges)

    folder = learn(images, course, path, prepare=prepare, device=device, progress=progress, warn=warn, resume=resume)
    scores = (
        score_course(folder, course, test, judges, device=device, progress=progress, warn=warn)
        if test is not None
        else []
    )
    return LearnedCourse(folder, course, tuple(scores))
