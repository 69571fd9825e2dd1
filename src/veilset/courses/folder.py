"""The folder of a course: a run folder for every task, `release/` about all of them, and a vault of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from veilset.courses.course import Course
from veilset.errors import RunError
from veilset.files import check_makeable, read_json, refuse_occupied, write_atomically
from veilset.methods.plan import Plan
from veilset.partition import Partition
from veilset.run_folder import IMAGES, RunFolder, log_in

COURSE = "course.json"


class CourseFolder:
    """Paths of one course. What may be shared are `release/` and the release of every task."""

    def __init__(self, path: Path) -> None:
        self.path, self.release, self.vault = path, path / "release", path / "vault"
        self.note = self.vault / COURSE

    @classmethod
    def create(cls, path: Path, course: Course, plans: Sequence[Plan], read: Mapping[str, Any]) -> CourseFolder:
        """The folder of a new course, which its caller has found to be empty; `read` says how its images were."""
        folder = cls(path)
        folder.vault.mkdir(parents=True, mode=0o700)
        for number, plan in enumerate(plans, start=1):
            folder.keep_plan(number, plan)
        write_atomically(folder.vault / IMAGES, json.dumps(read).encode(), mode=0o600)
        write_atomically(folder.note, _dumps(course), mode=0o600)
        return folder

    @classmethod
    def open(cls, path: Path) -> CourseFolder:
        """The folder of a course that was begun before."""
        folder = cls(path)
        if not folder.note.is_file():
            raise RunError(f"a course at {path}", "no vault/course.json in it", "Start it without --resume.")
        return folder

    @classmethod
    def reopen(cls, path: Path, course: Course) -> CourseFolder:
        """The same, for going on with the same settings."""
        folder = cls.open(path)
        if folder.note.read_bytes() != _dumps(course):
            begun = read_json(folder.note, "a course")
            wanted = json.loads(_dumps(course))
            others = [name for name in wanted if wanted[name] != begun.get(name)]
            raise RunError(
                "the tasks and settings this course was begun with", f"other values for {', '.join(others)}",
                "Give the same ones, or begin another course in a new folder.",
            )  # fmt: skip
        return folder

    @property
    def begun(self) -> dict[str, Any]:
        """What the course was begun with, as arguments of `course_for`."""
        note = read_json(self.note, "a course")
        try:
            plain = {name: note[name] for name in ("method", "epsilon", "delta", "seed")}
            tasks = Partition.from_json(note["partition"]).tasks
            return {
                **plain, "tasks": [list(task.classes) for task in tasks],
                "declared_sizes": [task.declared_size for task in tasks], **note["settings"],
            }  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"what a course was begun with in {self.note}", f"{error!r}", "Begin it anew.") from error

    @property
    def reading(self) -> dict[str, Any]:
        """The options that its images were read with."""
        return read_json(self.vault / IMAGES, "the note of this course's images")

    def task(self, number: int) -> RunFolder:
        """The run of a task, counted from 1."""
        return RunFolder(self.path / "tasks" / str(number))

    def plan(self, number: int) -> Plan:
        """As it was made before the first task; its cost is reserved."""
        return Plan.load(self._plan_path(number))

    def keep_plan(self, number: int, plan: Plan) -> None:
        write_atomically(self._plan_path(number), plan.dumps(), mode=0o600)

    def log(self, **entry: Any) -> None:
        """One line of the owner's log."""
        log_in(self.vault, entry)

    def _plan_path(self, number: int) -> Path:
        return self.vault / f"plan-{number}.json"


def check_new(path: Path) -> None:
    """Refuses a folder that a new course cannot be written to, before any image is read for it."""
    if CourseFolder(path).note.is_file():
        raise RunError("a new or empty folder", f"a course in {path}", "Continue it with --resume, or choose another.")
    refuse_occupied(path)
    check_makeable(path)


def _dumps(course: Course) -> bytes:
    return json.dumps(course.to_json(), indent=1).encode()
