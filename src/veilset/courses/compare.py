"""Courses side by side: accuracy after each task, method by method, as rows and as a figure like that of the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from veilset.courses.figure import Accuracies, panel_terms, stage_panel
from veilset.courses.folder import CourseFolder
from veilset.courses.release import read_course, stage_scores, verify_course
from veilset.courses.scores import PRIVATE, kept_scores
from veilset.errors import ConfigError
from veilset.files import write_atomically
from veilset.partition import Partition
from veilset.privacy.claim import Claim
from veilset.report.plots import StagePanel, continual
from veilset.score_release import told_by_scores

FORMATS = ("svg", "png")


@dataclass(frozen=True, kw_only=True)
class ComparedCourse:
    """What is shown of a course, whose claim was checked against its ledgers. Scores of private test images are in its
    vault, and shown to the owner alone."""

    path: Path
    method: str
    partition: Partition
    claim: Claim
    test: str
    scores: Accuracies
    private: bool

    @property
    def told(self) -> str:
        """What its scores tell beside their numbers."""
        return told_by_scores(self.claim, public=not self.private)

    @property
    def shared(self) -> tuple[tuple[str, str], Partition]:
        """What courses in one table or panel have in common."""
        return panel_terms(self.test, self.claim), self.partition


def compare_courses(paths: Sequence[Path]) -> list[ComparedCourse]:
    """The courses in a fixed order.

    Raises: ConfigError for one that was not measured, ArtifactError for one that does not verify.
    """
    return sorted((_compared(path) for path in paths), key=lambda one: (one.shared[0], one.method, str(one.path)))


def _compared(path: Path) -> ComparedCourse:
    verify_course(path)
    value = read_course(path)
    public = stage_scores(value)
    rows = [(score.mean, score.sd) for score in public or kept_scores(CourseFolder(path))]
    partition = Partition.from_json(value["tasks"])
    if len(rows) != len(partition.tasks):
        raise ConfigError(
            "courses with an accuracy after each task", f"{path} without", "Run it again with --resume and --test."
        )
    return ComparedCourse(
        path=path, method=str(value["method"]), partition=partition, claim=Claim.from_json(value["claim"]),
        test=public[0].test if public else PRIVATE, scores=tuple(rows), private=not public,
    )  # fmt: skip


def grouped(courses: Sequence[ComparedCourse]) -> list[list[ComparedCourse]]:
    """One group for each test set, epsilon and order of tasks: nothing else may share a table or a panel."""
    groups: dict[tuple[tuple[str, str], Partition], list[ComparedCourse]] = {}
    for course in courses:
        groups.setdefault(course.shared, []).append(course)
    return list(groups.values())


def stage_panels(courses: Sequence[ComparedCourse]) -> list[StagePanel]:
    panels = []
    for mine in grouped(courses):
        times = Counter(course.method for course in mine)
        names = [one.method if times[one.method] == 1 else f"{one.method}, {one.path.name}" for one in mine]
        accuracies = {name: course.scores for name, course in zip(names, mine, strict=True)}
        panels.append(stage_panel(mine[0].test, mine[0].claim, mine[0].partition, accuracies))
    return panels


def write_figure(courses: Sequence[ComparedCourse], out: Path) -> None:
    """Draws all courses; readable by the owner alone where one was measured on private images."""
    suffix = out.suffix.lstrip(".")
    if suffix not in FORMATS:
        raise ConfigError("a figure of courses as .svg or .png", f"{out.name}", "Choose another name for --out.")
    picture = continual(stage_panels(courses), image_format="png" if suffix == "png" else "svg")
    write_atomically(out, picture, mode=0o600 if any(course.private for course in courses) else 0o644)
