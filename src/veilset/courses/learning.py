"""Running a course: one fit for each task, in order, and going on after a crash.

A task sees its own images and, where a classifier is trained on, the released classifier of the task before: nothing
else of earlier tasks. So every record bears the releases of one task.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from veilset.classifier import PrivateClassifier
from veilset.courses.course import Course
from veilset.courses.folder import CourseFolder, check_new
from veilset.courses.release import is_course, write_course_release
from veilset.data.fingerprints import KEY_BYTES, fingerprints
from veilset.data.spec import ImageSet
from veilset.data.write import check_apart
from veilset.goals import ClassifierGoal, Goal, ModelGoal
from veilset.methods.base import Progress
from veilset.methods.plan import Plan
from veilset.model import Model
from veilset.partition import Partition
from veilset.privacy.noise import NoiseSource
from veilset.reserved_plans import budget_of, free, reserve
from veilset.run import check_allowed, execute_for, resume_for
from veilset.run_folder import RunFolder, how_read
from veilset.scoring import Warn

Learned = Model | PrivateClassifier


def learn(
    images: ImageSet,
    course: Course,
    path: Path,
    *,
    prepare: Callable[[CourseFolder], None] = lambda folder: None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
    warn: Warn = lambda text: None,
    resume: bool = False,
) -> CourseFolder:
    """Learns every task of a course into a folder; a task that is finished there is left as it is.

    Args:
        prepare: what is to be done in the folder before anything is learned, such as noting how it will be measured.

    Raises: BudgetExceeded, before any task is begun, where the data set's budget does not cover all of them. It counts
    them one after the other, which is more than they cost.
    """
    read, images = how_read(images), images.of_classes(course.partition.class_names)
    folder = CourseFolder.reopen(path, course) if resume else _begun(images, course, path, read, torch.device(device))
    prepare(folder)
    for text in shared_between_tasks(images, course.partition):
        warn(text)
        folder.log(event="warning", text=text)
    if not is_course(path):
        _check_finished(images, course, folder, progress)
    before: Learned | None = None
    for number in range(1, len(course.partition.tasks) + 1):
        before = _learn_task(images, course, folder, number, before, device, progress)
    if not is_course(path):
        write_course_release(folder, course)
    return folder


def _begun(images: ImageSet, course: Course, path: Path, read: dict[str, Any], device: torch.device) -> CourseFolder:
    check_apart(path, images.source.path)
    for number, plan in enumerate(course.plans, start=1):
        check_allowed(plan, task_images(images, course, number), device, allow_published=False)
    check_new(path)
    reserved: list[Plan] = []
    try:
        for plan in course.plans:
            reserved.append(_reserved(images, plan))
        return CourseFolder.create(path, course, reserved, read)
    except BaseException:  # all of them or none, also after an interrupt: no run was begun with one
        for plan in reserved:
            free(plan, budget_of(images.source))
        raise


def _reserved(images: ImageSet, plan: Plan) -> Plan:
    """The plan with its cost charged to the data set's budget, where there is one."""
    data = images.source.path if budget_of(images.source) is not None else None
    return reserve(plan, None if data is None else Path(data))


def _learn_task(
    images: ImageSet,
    course: Course,
    folder: CourseFolder,
    number: int,
    before: Learned | None,
    device: torch.device | str,
    progress: Progress,
) -> Learned:
    task, mine = folder.task(number), task_images(images, course, number)
    doing = f"task {number} of {len(course.partition.tasks)}"
    common: dict[str, Any] = {
        "device": device,
        "progress": lambda message, done, total: progress(f"{doing}: {message}", done, total),
    }
    if _released_nothing(task):
        _reserve_anew(images, folder, number)
        shutil.rmtree(task.path)
    goal = _goal(course, number, before)
    if task.path.exists():
        return resume_for(goal, mine, task.path, **common)
    return execute_for(goal, mine, folder.plan(number), task.path, **common)


def _goal(course: Course, number: int, before: Learned | None) -> Goal[Any, Learned]:
    if not course.classifies:
        return ModelGoal()
    assert not isinstance(before, Model)
    return ClassifierGoal(course.partition.until(number), before)


def _check_finished(images: ImageSet, course: Course, folder: CourseFolder, progress: Progress) -> None:
    """Refuses to go on where a finished task would have other images now: some may be in a later one."""
    for number in range(1, len(course.partition.tasks) + 1):
        if folder.task(number).finished:
            folder.task(number).check_unchanged(task_images(images, course, number), progress)


def _released_nothing(task: RunFolder) -> bool:
    """Whether a task was stopped before its ledger was opened; one that lost its ledger later is not begun anew."""
    used = task.ledger_path.is_file() or task.finished or any(task.vault.glob("checkpoints/*"))
    return task.path.exists() and not used


def _reserve_anew(images: ImageSet, folder: CourseFolder, number: int) -> None:
    """Another reservation for a task that used up its own and released nothing: each is good for one run."""
    plan = folder.plan(number)
    if plan.reservation is not None:
        free(plan, budget_of(images.source))
        folder.keep_plan(number, _reserved(images, replace(plan, reservation=None)))


def task_images(images: ImageSet, course: Course, number: int) -> ImageSet:
    """The records of a task: of its own classes alone, or numbered among all classes for a classifier."""
    classes = course.partition.tasks[number - 1].classes
    if not course.classifies:
        return images.of_classes(classes)
    labels = torch.tensor([images.spec.class_names.index(name) for name in classes])
    return images.subset(torch.isin(images.labels, labels))


def shared_between_tasks(images: ImageSet, partition: Partition) -> list[str]:
    """What the owner must know: images and people in more than one task, for whom the losses of those tasks add up."""
    key = NoiseSource().key_bytes(KEY_BYTES)
    parts = [images.of_classes(task.classes) for task in partition.tasks]
    hashes = np.concatenate([fingerprints(part, key) for part in parts])
    repeated = len(hashes) - len(np.unique(hashes))
    people = Counter(user for part in parts for user in set(part.users or ()))
    several = sum(count > 1 for count in people.values())
    return [
        *([f"{repeated:,} images are in more than one task, pixel by pixel"] if repeated else []),
        *([f"{several:,} people have images in more than one task: epsilon is about one image"] if several else []),
    ]
