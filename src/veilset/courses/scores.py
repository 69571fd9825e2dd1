"""Accuracy after each task: how well all classes so far are told apart by who has only what was released until then.

Scores on private test images are the owner's and stay in the vault; on a public benchmark they may be shared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from veilset.classifier import open_classifier
from veilset.courses.course import Course
from veilset.courses.figure import stage_panel
from veilset.courses.folder import CourseFolder
from veilset.courses.release import StageScore, write_course_release
from veilset.data import KNOWN_NAMES
from veilset.data.spec import ImageSet, Source
from veilset.errors import ConfigError, MissingExtra, PrivacyError, RunError
from veilset.evaluate import Score, gen2real, released2real
from veilset.evaluate.matching import check_shapes
from veilset.evaluate.utility import check_choices
from veilset.files import read_json, write_atomically
from veilset.looks import note_look
from veilset.methods.base import Progress
from veilset.model import Model, from_pretrained
from veilset.report.plots import continual
from veilset.run_folder import EXACT_SCORES
from veilset.score_release import benchmark_stamps
from veilset.scoring import Warn, check_public, overlap_warnings

FIGURE = "accuracy.png"
PRIVATE = "private test images"


@dataclass(frozen=True, kw_only=True)
class Judges:
    """How released images are judged. A released classifier is judged as it is."""

    classifier: str = "convnet"
    seeds: tuple[int, ...] = (0,)
    samples_per_class: int = 6000
    """Of a generator, as in PSG's appendix; a set of images is judged by all of them."""

    def __post_init__(self) -> None:
        check_choices((self.classifier,), self.seeds)
        if self.samples_per_class < 1:
            raise ConfigError("at least one sample per class", f"{self.samples_per_class}", "Draw more.")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Judges:
        """Those named in `value`, which may say other things too; the usual ones where it names none."""
        named = {field.name: value[field.name] for field in fields(cls) if field.name in value}
        if "seeds" in named:
            named["seeds"] = tuple(named["seeds"])
        return cls(**named)


JUDGED = tuple(field.name for field in fields(Judges))


def check_test(course: Course, test: ImageSet) -> None:
    """Whether a course can be measured on these images: asked before anything is spent."""
    benchmark_stamps(test.source.benchmark)  # refuses a name that could not be published
    check_shapes(course.spec, test.spec)
    test.of_classes(course.partition.class_names)


def score_course(
    folder: CourseFolder,
    course: Course,
    test: ImageSet,
    judges: Judges,
    *,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
    warn: Warn = lambda text: None,
) -> list[Score]:
    """One score for each stage, kept in the vault as it is measured; public ones are released as well."""
    check_test(course, test)
    test = test.of_classes(course.partition.class_names)
    runs = [folder.task(number) for number in range(1, len(course.partition.tasks) + 1)]
    for run, task in zip(runs, course.partition.tasks, strict=True):
        try:
            check_public(run, test)
        except PrivacyError:
            _forget_asked(folder)
            raise
        for text in overlap_warnings(run, test.of_classes(task.classes), judged=True):
            warn(text)
    for run in runs:
        note_look(run, [test.source])
    asked = _asked(test.source, judges)
    scores = kept_scores(folder, asked)
    for stage in range(len(scores) + 1, len(runs) + 1):
        scores.append(_score(folder, course, test, judges, stage, torch.device(device), progress))
        _keep(folder, asked, scores)
    _show(folder, course, test, scores, warn)
    return scores


def note_asked(folder: CourseFolder, test: Source, judges: Judges) -> None:
    """Keeps what stages are to be measured by, before there are any: a resume then needs nothing but the folder."""
    asked = _asked(test, judges)
    if asked_before(folder) != asked:
        _keep(folder, asked, [])


def asked_before(folder: CourseFolder) -> dict[str, Any]:
    """What its stages are measured by: place and benchmark of the test images, and judges; empty if by nothing yet."""
    return _kept(folder)[0]


def _forget_asked(folder: CourseFolder) -> None:
    """After a refusal: a resume that insisted on these test images would be refused for ever."""
    if not kept_scores(folder):
        (folder.vault / EXACT_SCORES).unlink(missing_ok=True)


def _asked(test: Source, judges: Judges) -> dict[str, Any]:
    known = test.path is None and test.benchmark in KNOWN_NAMES
    place = test.benchmark if known else test.path and str(Path(test.path).resolve())
    benchmark = None if known else test.benchmark
    return {"test": place, "test_benchmark": benchmark, **asdict(judges), "seeds": list(judges.seeds)}


def _keep(folder: CourseFolder, asked: dict[str, Any], scores: Sequence[Score]) -> None:
    value = {"asked": asked, "stages": [score.to_json() for score in scores]}
    write_atomically(folder.vault / EXACT_SCORES, json.dumps(value, indent=1).encode(), mode=0o600)


def kept_scores(folder: CourseFolder, asked: dict[str, Any] | None = None) -> list[Score]:
    """Stages that were measured before, all of them or none; with `asked`, only if they were measured so."""
    before, scores = _kept(folder)
    return scores if asked in (None, before) else []


def _kept(folder: CourseFolder) -> tuple[dict[str, Any], list[Score]]:
    """What `_keep` wrote; nothing where nothing was measured yet."""
    path = folder.vault / EXACT_SCORES
    if not path.is_file():
        return {}, []
    value = read_json(path, "scores of a course")
    try:
        asked = {name: value["asked"][name] for name in ("test", "test_benchmark", *JUDGED)}
        Judges.from_json(asked)
        return asked, [Score.from_json(score) for score in value["stages"]]
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        todo = "Restore it from a backup, or delete it: stages are then measured again."
        raise RunError(f"scores of a course at {path}", f"a damaged file ({error!r})", todo) from error


def _score(
    folder: CourseFolder,
    course: Course,
    test: ImageSet,
    judges: Judges,
    stage: int,
    device: torch.device,
    progress: Progress,
) -> Score:
    classes = course.partition.seen(stage)
    real = test.of_classes(classes)

    def tell(message: str, done: int, total: int) -> None:
        progress(f"judging {len(classes)} classes: {message}", done, total)

    if course.classifies:
        classifier = open_classifier(folder.task(stage).path)
        score = released2real(
            lambda pixels: classifier.predict(pixels, device), real, metric=f"continual/{course.method}"
        )
    else:
        models = [from_pretrained(folder.task(number).path) for number in range(1, stage + 1)]
        images = union([_images_of(model, judges, course.seed, device) for model in models])
        (score,) = gen2real(
            images, real, classifiers=(judges.classifier,), seeds=judges.seeds, device=device, progress=tell
        )
    return replace(score, details={**score.details, "stage": stage, "classes": list(classes)})


def _images_of(model: Model, judges: Judges, seed: int, device: torch.device) -> ImageSet:
    number = model.size or judges.samples_per_class * model.spec.num_classes
    return model.sample(number, seed=seed, device=device)


def union(parts: Sequence[ImageSet]) -> ImageSet:
    """Images of disjoint classes as one set, with the classes of all in their order."""
    names: list[str] = []
    labels = []
    for part in parts:
        labels.append(part.labels + len(names))
        names += part.spec.class_names
    spec = replace(parts[0].spec, class_names=tuple(names))
    return ImageSet(spec=spec, pixels=torch.cat([part.pixels for part in parts]), labels=torch.cat(labels))


def _show(folder: CourseFolder, course: Course, test: ImageSet, scores: Sequence[Score], warn: Warn) -> None:
    """The figure for the owner; where every score is public, scores for everybody, who can draw it from them."""
    name = test.source.benchmark
    private = name is None or any(score.touched_private_data for score in scores)
    claim = write_course_release(folder, course, [] if private else _rows(course, scores, str(name)))
    accuracies = {course.method: [(score.mean, score.sd) for score in scores]}
    panel = stage_panel(name or PRIVATE, claim, course.partition, accuracies)
    try:
        picture = continual([panel], image_format="png")
    except MissingExtra as error:
        return warn(f"no figure: {error.todo}")
    write_atomically(folder.vault / FIGURE, picture, mode=0o600)


def _rows(course: Course, scores: Sequence[Score], test: str) -> list[StageScore]:
    return [
        StageScore(
            stage=stage, num_classes=len(course.partition.seen(stage)), mean=score.mean, sd=score.sd, n=score.n,
            metric=score.metric, test=test,
        )
        for stage, score in enumerate(scores, start=1)
    ]  # fmt: skip
