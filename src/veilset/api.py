"""The Python interface: `plan`, `fit` and `continual` as functions, with the options of the command line."""

from __future__ import annotations

import tempfile
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from veilset.courses.course import course_for
from veilset.courses.folder import CourseFolder
from veilset.courses.running import LearnedCourse, run_course
from veilset.courses.scores import Judges, asked_before
from veilset.data import suggest_declared_size
from veilset.data.spec import Images, ImageSet, ImageSpec
from veilset.errors import ConfigError
from veilset.methods.base import DEFAULT_METHOD, Progress, PublicFacts, get_method, nearest
from veilset.methods.plan import Accounting, Plan, make_plan
from veilset.model import Model
from veilset.privacy.bounds import Adjacency, Unit
from veilset.run import execute


def plan(
    spec: ImageSpec,
    *,
    method: str = DEFAULT_METHOD,
    epsilon: float | None,
    declared_size: int,
    delta: float = 1e-5,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    unit: Unit | str = Unit.RECORD,
    images_per_user: int | None = None,
    accounting: Accounting = "proven",
    seed: int = 0,
    **settings: Any,
) -> Plan:
    """What a fit would release and cost. Needs no image, only public facts.

    Args:
        declared_size: a public, rounded number of images; the exact one is private.
        settings: options of the method, see `veilset methods NAME`.
    """
    facts = PublicFacts(
        spec=spec,
        declared_size=declared_size,
        adjacency=as_choice(Adjacency, adjacency, "adjacency"),
        unit=as_choice(Unit, unit, "unit"),
        rows_per_user=images_per_user,
    )
    return make_plan(
        get_method(method), facts, epsilon=epsilon, delta=delta, accounting=accounting, settings=settings, seed=seed
    )


def plan_for(images: Images, *, declared_size: int | None = None, **options: Any) -> Plan:
    """`plan` for images at hand; without a declared size, their number is rounded and thereby declared."""
    size = suggest_declared_size(len(images)) if declared_size is None else declared_size
    return replace(plan(images.spec, declared_size=size, **options), size_from_data=declared_size is None)


def fit(
    images: Images,
    *,
    method: str = DEFAULT_METHOD,
    epsilon: float | None = None,
    out: str | Path | None = None,
    declared_size: int | None = None,
    device: torch.device | str = "auto",
    progress: Progress = lambda *_: None,
    allow_published_accounting: bool = False,
    **options: Any,
) -> Model:
    """Trains a private generator on `images` and returns it with its claim.

    Args:
        epsilon: the budget of this run; it has no default.
        out: run folder to write; without it the run lives in a temporary folder until `model.save`.
        declared_size: public size of the collection; by default the exact one, rounded, which you thereby declare.
        options: everything `veilset.plan` takes, and the method's own options.
    """
    chosen = plan_for(images, method=method, epsilon=epsilon, declared_size=declared_size, **options)
    run_in = partial(
        execute,
        images,
        chosen,
        device=pick_device(device),
        progress=progress,
        allow_published=allow_published_accounting,
    )
    if out is not None:
        return run_in(Path(out))
    temporary = tempfile.TemporaryDirectory(prefix="veilset-")
    model = run_in(Path(temporary.name) / "run")
    weakref.finalize(model, temporary.cleanup)
    return model


def continual(
    images: ImageSet,
    *,
    out: str | Path,
    epsilon: float | None = None,
    method: str = "psg",
    test: ImageSet | None = None,
    judges: Judges | None = None,
    device: torch.device | str = "auto",
    progress: Progress = lambda *_: None,
    resume: bool = False,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    unit: Unit | str = Unit.RECORD,
    **options: Any,
) -> LearnedCourse:
    """Learns disjoint classes task after task, each with its own ledger, and claims the dearest of them.

    Args:
        epsilon: of each task and, because a record is in one task, of all together; it has no default.
        method: one that makes images, or "dp-sgd", a classifier that is trained on from task to task.
        test: real images to measure the accuracy after each task on; `judges` says by which classifier, and with
            `resume` need not be said again.
        options: `tasks` and `declared_sizes` (MNIST and Fashion-MNIST have some), `delta`, `seed`, and the method's.
    """
    terms = {"adjacency": as_choice(Adjacency, adjacency, "adjacency"), "unit": as_choice(Unit, unit, "unit")}
    course = course_for(images, method=method, epsilon=epsilon, **terms, **options)
    judges = judges or Judges.from_json(asked_before(CourseFolder(Path(out))) if resume else {})
    return run_course(
        images, course, Path(out), test=test, judges=judges, device=pick_device(device), progress=progress,
        resume=resume,
    )  # fmt: skip


def pick_device(device: torch.device | str) -> torch.device:
    """The device of that name, after trying it; "auto" is a GPU where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        gpu = torch.cuda.is_available()
        found = str(error).splitlines()[0] if gpu or not str(device).startswith("cuda") else "no GPU was found"
        todo = "Use cpu, cuda or auto." if gpu else "Use cpu or auto."
        raise ConfigError("a device torch can use", f"{device!r}: {found}", todo) from error


def as_choice(kind: type[Adjacency] | type[Unit], value: str, name: str) -> Any:
    """`value` as a member of `kind`, or an error that names the members."""
    try:
        return kind(value)
    except ValueError as error:
        choices = [member.value for member in kind]
        raise ConfigError(f"{name} {' or '.join(choices)}", f"{value!r}", nearest(str(value), choices)) from error
