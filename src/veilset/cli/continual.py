"""`veilset continual`: disjoint classes, learned one task after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from veilset import api
from veilset.cli.options import (
    Benchmark,
    ClassNames,
    Color,
    Delta,
    Device,
    Fit,
    Neighbours,
    Quiet,
    Seed,
    Size,
    Source,
    Strict,
    UnitOf,
    as_values,
    check_request,
    method_options,
    read_images,
    typed,
)
from veilset.cli.plans import check_begun, reading, resumable
from veilset.console import Show, command, result
from veilset.courses.course import SPLITS, Course, course_for
from veilset.courses.folder import CourseFolder, check_new
from veilset.courses.running import LearnedCourse, run_course
from veilset.courses.scores import Judges, asked_before
from veilset.data import KNOWN_NAMES, ImageSpec, check_apart
from veilset.errors import ConfigError
from veilset.methods.base import get_mechanism, make_config
from veilset.privacy.bounds import Adjacency, Unit
from veilset.wording import duration

TASKS = (
    f'Classes of each task, e.g. "cat,dog;bird,fish". {" and ".join(SPLITS)} have the order of SplitMNIST: five of two.'
)
Method = Annotated[str, typer.Option(help="A method of `veilset methods`, or dp-sgd: a classifier.")]
Epsilon = Annotated[float | None, typer.Option(help="Of each task, and of all together. No default.")]
Tasks = Annotated[str | None, typer.Option(help=TASKS)]
DeclaredSizes = Annotated[
    str | None, typer.Option(help="Public, rounded number of images of each task, e.g. 12000,9000; or one for all.")
]
Test = Annotated[
    str | None, typer.Option(help="Real test images to measure each stage on; known data sets have their own.")
]
TestBenchmark = Annotated[
    str | None, typer.Option(help="Declare the images of --test a public benchmark of this name.")
]
JudgedBy = Annotated[str, typer.Option(help="Who judges released images: convnet (PSG's), cnn, ...")]
OTHER_CLASSES = "Measure on images of the classes that are learned from: leave others out."
MEASURED = ("test", "test_benchmark", "classifier", "seeds", "samples_per_class")
"""Options that say how stages are measured."""


def continual(
    context: typer.Context, source: Source,
    out: Annotated[Path, typer.Option(help="Folder of the course to write (new or empty).")],
    method: Method = "psg", epsilon: Epsilon = None, tasks: Tasks = None, declared_sizes: DeclaredSizes = None,
    test: Test = None, classifier: JudgedBy = "convnet",
    samples_per_class: Annotated[int, typer.Option(help="Images to judge a generator by.")] = 6000,
    seeds: Annotated[int, typer.Option(help="How many classifiers judge each stage.")] = 1,
    delta: Delta = 1e-5, adjacency: Neighbours = "add-remove", unit: UnitOf = "record",
    size: Size = None, fit: Fit = None, color: Color = None, class_names: ClassNames = None, strict: Strict = False,
    benchmark: Benchmark = None, test_benchmark: TestBenchmark = None, seed: Seed = 0, device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted course in --out.")] = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Learn classes task after task, each from its own images alone, and measure what is known after each.

    A record is in the task of its class, so adding or removing one touches one task: epsilon is that of the dearest
    task, not the sum (parallel composition). This holds neither for replaced records nor for users, who may be in
    several tasks; both are refused. A data set's budget is charged for all tasks one after the other.

    Methods that make images are judged by a classifier trained on the images of all tasks so far; dp-sgd is a
    classifier itself, trained on from task to task. Options of the method are accepted too:
    `veilset methods NAME` lists them.

    Example: veilset continual mnist --method dp-merf --epsilon 10 --classifier cnn --out courses/dp-merf
    """
    begun = CourseFolder.open(out) if resume else None
    measured = _measured(context, {} if begun is None else asked_before(begun))
    judges = Judges.from_json(measured)
    _check_judged(context, measured)
    wanted = {"tasks": _tasks(tasks), "declared_sizes": _sizes(declared_sizes)}
    if begun is None:
        check_request(context, get_mechanism(method), method_options(context))
        check_apart(out, source)
        check_new(out)
    chosen_device = api.pick_device(device)
    read = {**reading(context, {} if begun is None else begun.reading), "strict": strict}
    with Show(quiet) as show, resumable(CourseFolder(out).note):
        images = read_images(source, show, split="train", benchmark=benchmark, **read)
        course = course_for(
            images, adjacency=Adjacency(adjacency), unit=Unit(unit),
            **_asked(context, wanted, {} if begun is None else begun.begun),
        )  # fmt: skip
        if not resume:
            describe(course, images.spec, show)
        real = None
        if measured["test"] is not None:
            read |= {"class_names": list(images.spec.class_names), "other_classes": OTHER_CLASSES}
            real = read_images(measured["test"], show, split="test", benchmark=measured["test_benchmark"], **read)
        learned = run_course(
            images, course, out, test=real, judges=judges, device=chosen_device, progress=show.progress,
            warn=show.warn, resume=resume,
        )  # fmt: skip
    _tell(learned, out, show)


def _measured(context: typer.Context, begun: Mapping[str, Any]) -> dict[str, Any]:
    """Test images and judges: as typed or, where a course is resumed, as it was `begun`.

    Raises: ConfigError where something else is typed then.
    """
    asked = {name: context.params[name] for name in MEASURED}
    asked["seeds"] = list(range(asked["seeds"]))
    if asked["test"] is None and context.params["source"] in KNOWN_NAMES:
        asked["test"] = context.params["source"]
    elif asked["test"] not in (None, *KNOWN_NAMES):
        asked["test"] = str(Path(asked["test"]).resolve())
    if begun.get("test") is None:  # unmeasured, or on images that are in no file
        return asked
    check_begun(
        begun, {name: asked[name] for name in MEASURED if typed(context, name)},
        "From Python, veilset.continual(resume=True) measures anew by other judges.",
    )  # fmt: skip
    return {name: begun.get(name) for name in MEASURED}


def _check_judged(context: typer.Context, measured: Mapping[str, Any]) -> None:
    """Refuses what would have no effect: a resume could not tell that it had been typed."""
    test = measured["test"]
    idle = MEASURED if test is None else ("test_benchmark",) if test in KNOWN_NAMES else ()
    if given := [f"--{name.replace('_', '-')}" for name in idle if typed(context, name)]:
        raise ConfigError(
            f"{', '.join(given)} together with --test and a collection of your own", test or "no --test",
            "Name the images, or drop the option.",
        )  # fmt: skip


def _asked(context: typer.Context, wanted: Mapping[str, Any], begun: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `course_for`: as typed or, where a course is resumed, as it was `begun`.

    Raises: ConfigError where something else is typed then.
    """
    plain = {name: context.params[name] for name in ("method", "epsilon", "delta", "seed")}
    settings = {name: value for name, value in begun.items() if name not in {*plain, *wanted}}
    options = method_options(context)
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not begun:
        return {**plain, **wanted, **options}
    given = {**{name: value for name, value in plain.items() if typed(context, name)}, **wanted}
    if len(given.get("declared_sizes", ())) == 1:
        given["declared_sizes"] = list(given["declared_sizes"]) * len(begun["tasks"])
    check_begun(begun, given)
    method = get_mechanism(begun["method"])
    check_begun(asdict(make_config(method, settings)), as_values(method, settings, options))
    return dict(begun)


def describe(course: Course, spec: ImageSpec, show: Show) -> None:
    """A course in lines for people, before anything is spent."""
    show.say(f"method        {course.method}, {'a classifier' if course.classifies else 'images'}, task after task")
    show.say(
        f"epsilon       {course.epsilon:.4g} of each task and of all together (parallel composition over classes), "
        f"delta {course.delta:g}, add-remove of one record"
    )
    for number, task in enumerate(course.partition.tasks, start=1):
        show.say(f"task {number}        {', '.join(task.classes)}; declared size {task.declared_size}")
    unused = [name for name in spec.class_names if name not in course.partition.class_names]
    if unused:
        show.say(f"not learned   {', '.join(unused)}: in none of the tasks")
    first = course.plans[0]
    show.say(f"released      for each task, {first.forecast.released}")
    seconds = sum(plan.forecast.seconds for plan in course.plans)
    show.say(f"expected      about {duration(seconds)} on two CPU cores for all tasks, and more to judge them")
    for warning in dict.fromkeys(warning for plan in course.plans for warning in plan.warnings):
        show.warn(warning)


def _tasks(text: str | None) -> list[list[str]] | None:
    return None if text is None else [[name.strip() for name in part.split(",")] for part in text.split(";")]


def _sizes(text: str | None) -> Sequence[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError("--declared-sizes 12000 or 12000,9000", f"{text!r}", "Give whole numbers.") from error


def _tell(learned: LearnedCourse, out: Path, show: Show) -> None:
    for stage, score in enumerate(learned.scores, start=1):
        spread = "" if score.sd is None else f" +- {score.sd:.4f}"
        note = "touched private data: do not publish" if score.touched_private_data else "public benchmark"
        classes = len(learned.course.partition.seen(stage))
        show.say(f"after task {stage}  {classes:3} classes  accuracy {score.mean:.4f}{spread} ({note})")
    following = command("export", out, "--out", "shared")
    show.say(f"{learned.claim.summary}\nread {out / 'release' / 'README.md'}; next: {following}")
    result(
        {
            "course": str(out),
            "method": learned.course.method,
            "claim": learned.claim.to_json(),
            "scores": [score.to_json() for score in learned.scores],
        },
        quiet=show.quiet,
    )
