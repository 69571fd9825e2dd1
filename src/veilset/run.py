"""Running a plan into a run folder, and resuming one after a crash."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from veilset.artifact import write_release
from veilset.budget import DatasetBudget
from veilset.data.spec import Images
from veilset.data.write import check_apart
from veilset.errors import ConfigError, PrivacyError, RunError
from veilset.files import check_makeable, refuse_occupied
from veilset.goals import Goal, Loaded, Made, ModelGoal, Terms
from veilset.methods.base import FitContext, Mechanism, Progress, assumptions_of, get_mechanism, make_config
from veilset.methods.plan import Plan
from veilset.model import Model
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Unit
from veilset.privacy.claim import shown
from veilset.privacy.events import Composed, steps
from veilset.privacy.ledger import LedgerRecord, PrivacyLedger, read_chain
from veilset.privacy.noise import NoiseSource, NoNoise
from veilset.privacy.release import Door
from veilset.privacy.sides import seals_kept
from veilset.reserved_plans import budget_of, charge_terms, free, path_of, reserve
from veilset.run_folder import RunFolder
from veilset.score_release import benchmark_stamps

UNTRACKED = "earlier releases of this data, if any, are not counted: it has no budget (`veilset budget init`)"
ROUNDED_SIZE = "the declared size was taken from the data, rounded: the owner made it public, and no epsilon covers it"
BEFORE_BUDGET = (
    "this epsilon is of this release alone: others that are charged to the data set's budget add to it; runs of no "
    "proven epsilon, and any from before the budget was opened, are counted nowhere"
)


def check_allowed(plan: Plan, images: Images, device: torch.device, *, allow_published: bool) -> None:
    """Stops before anything is written: wrong images for the plan, a claim that could not be priced at the end, a
    published epsilon on private data, or a device that is too small."""
    plan.check_complete()
    if plan.facts.spec != images.spec:
        words = [f"{spec.look}, classes {', '.join(spec.class_names)}" for spec in (plan.facts.spec, images.spec)]
        raise ConfigError(f"images as planned: {words[0]}", words[1], "Plan again for these images.")
    if plan.facts.unit is Unit.USER and images.user_numbers() is None:
        raise ConfigError("a user for every image, as planned", "none", "Give a manifest with a user column.")
    if plan.not_private is None:  # one release of each kind: a package that its price needs and lacks is known now
        price(Composed(tuple(steps(plan.planned))), plan.delta, plan.facts.adjacency)
    budget_of(images.source)  # refuses a benchmark that has a budget
    benchmark_stamps(images.source.benchmark)  # refuses a name that would read like a claim
    if plan.accounting == "published" and images.source.benchmark is None and not allow_published:
        proven = "none" if plan.epsilon_planned is None else shown(plan.epsilon_planned)
        raise PrivacyError(
            "proven accounting on private data",
            f"the published accounting of {plan.method}; the proven epsilon of that run would be {proven}",
            "Drop --accounting published, or declare a public benchmark with --benchmark, or, knowing that the "
            "published epsilon may not hold, pass --allow-published-accounting.",
        )
    mechanism = get_mechanism(plan.method)
    mechanism.check(make_config(mechanism, plan.config), images, device)


def execute(images: Images, plan: Plan, path: Path, **options: Any) -> Model:
    """Fits the method of a plan into a new folder; for the options see `execute_for`."""
    return execute_for(ModelGoal(), images, plan, path, **options)


def check_new(path: Path) -> None:
    """Refuses a folder that a new run cannot be written to, before any image is read for it."""
    folder = RunFolder(path)
    if os.path.isfile(folder.plan_path) and not folder.finished:
        state, todo = (
            ("is not finished", "Go on with it by --resume: what it was charged is lost where it is removed.")
            if os.path.isfile(folder.ledger_path)
            else ("has no ledger", "It cannot go on: choose another folder.")
        )
        raise RunError("a new or empty output folder", f"{path}, with a run that {state}", todo)
    refuse_occupied(path)
    check_makeable(path)


def execute_for(
    goal: Goal[Made, Loaded],
    images: Images,
    plan: Plan,
    path: Path,
    *,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
    allow_published: bool = False,
    prepare: Callable[[RunFolder], None] = lambda folder: None,
    noise: NoiseSource | None = None,
) -> Loaded:
    """Runs a plan into a new folder.

    Args:
        prepare: what else is to be done in the new folder before anything is measured, such as reserving noisy scores.
        noise: for tests only; a reproducible source voids the claim and everything says so.
    """
    device = torch.device(device)
    check_allowed(plan, images, device, allow_published=allow_published)
    budget = budget_of(images.source)
    check_apart(path, images.source.path)
    check_new(path)  # and makes no folder, which a refusal of the budget would leave behind
    plan = reserve(plan, path_of(images))
    if budget is not None and plan.reservation is not None:
        budget.begin(plan.reservation, Composed((plan.planned, plan.reserve)), **charge_terms(plan))
    if budget is not None and plan.not_private is not None:
        budget.note("unproven", str(path.resolve()))
    noise = noise or (NoNoise() if plan.accounting == "none" else NoiseSource())
    not_private = plan.not_private or ("reproducible noise: no privacy claim" if noise.reproducible else None)
    try:
        folder = RunFolder.create(path, plan, images, budget)
        goal.prepare(folder)
        prepare(folder)
        ledger = PrivacyLedger.open_new(
            folder.ledger_path, planned=plan.planned, reserve=plan.reserve, adjacency=plan.facts.adjacency,
            unit=plan.facts.unit, delta=plan.delta, not_private=not_private,
        )  # fmt: skip
    except BaseException:  # an interrupt or a full disk too
        if not RunFolder(path).ledger_path.exists():  # no ledger, so nothing can ever be released from it
            free(plan, budget)
        raise
    return _run(goal, images, plan, folder, Door(ledger, noise), budget, device, progress)


def resume(images: Images, path: Path, **options: Any) -> Model:
    """Continues an interrupted fit; for the options see `resume_for`."""
    return resume_for(ModelGoal(), images, path, **options)


def resume_for(
    goal: Goal[Made, Loaded],
    images: Images,
    path: Path,
    *,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
    allow_published: bool = False,
) -> Loaded:
    """Continues an interrupted run with fresh noise. What was charged stays charged; a finished run is just loaded."""
    folder = RunFolder.open(path)
    if folder.kind != goal.kind:
        raise RunError(f"a run that makes a {goal.kind}", f"one that makes a {folder.kind}", "Resume it as it began.")
    device = torch.device(device)
    plan, budget = Plan.load(folder.plan_path), budget_of(images.source)
    folder.check_same_images(images.source, budget)
    if folder.finished:
        loaded = goal.load(path)
        _settle(plan, loaded.privacy.parts[-1][-1], budget)  # its own; parts before it are of other runs
        return loaded
    check_allowed(plan, images, device, allow_published=allow_published)
    if not folder.ledger_path.is_file():
        raise RunError("a run with its ledger", "none", "It cannot be continued: fit again into a new folder.")
    folder.check_unchanged(images, progress)
    folder.check_shard_key(budget)
    ledger = PrivacyLedger.resume(folder.ledger_path)
    if budget is not None and plan.reservation is not None and not ledger.closed:
        budget.go_on(plan.reservation, ledger.head)
    if budget is not None and plan.not_private is not None and str(path.resolve()) not in budget.noted("unproven"):
        budget.note("unproven", str(path.resolve()))  # it began before there was a budget
    noise = NoNoise() if plan.accounting == "none" else NoiseSource()
    return _run(goal, images, plan, folder, Door(ledger, noise), budget, device, progress)


def _run(
    goal: Goal[Made, Loaded],
    images: Images,
    plan: Plan,
    folder: RunFolder,
    door: Door,
    budget: DatasetBudget | None,
    device: torch.device,
    progress: Progress,
) -> Loaded:
    started = time.perf_counter()
    context = FitContext(
        door=door,
        facts=plan.facts,
        noise_multiplier=plan.noise_multiplier,
        shard_key=folder.shard_key(budget, door.noise),
        seed=plan.seed,
        device=device,
        checkpoints=folder,
        progress=folder.logging(progress),
        history=folder.record,
    )
    folder.log(event="started", warnings=list(images.warnings), device=str(device), resumed=door.ledger.resumed)
    try:
        folder.note_training_images(images, context.progress)
        if not goal.mechanism(plan).streams:
            images = images.in_memory()
        with seals_kept():
            made = goal.work(plan, images, context)
            door.ledger.close()
            _finish(plan, door.ledger.lines(), budget)
            files = goal.files(folder, plan, made, door.ledger, _terms(goal.mechanism(plan), plan, images, budget))
            write_release(folder.release, files)
    finally:
        door.ledger.unlock()
    _settle(plan, door.ledger.lines(), budget)
    folder.log(event="finished", seconds=round(time.perf_counter() - started, 3))
    return goal.load(folder.path)


def _finish(plan: Plan, lines: Sequence[str], budget: DatasetBudget | None) -> None:
    """Refuses to go on to a release where a copy of the run was resumed later."""
    if budget is not None and plan.reservation is not None:
        resumed = [line["hash"] for line in map(json.loads, lines) if "resume" in line["entry"]]
        budget.finish(plan.reservation, resumed[-1] if resumed else None)


def _settle(plan: Plan, lines: Sequence[str], budget: DatasetBudget | None) -> None:
    record = LedgerRecord(read_chain(lines))
    if budget is not None and plan.reservation is not None and record.private:
        budget.settle(plan.reservation, record.spent, json.loads(lines[-1])["hash"])


def _terms(mechanism: Mechanism, plan: Plan, images: Images, budget: DatasetBudget | None) -> Terms:
    benchmark = images.source.benchmark
    own = assumptions_of(mechanism, make_config(mechanism, plan.config), plan.facts.unit)
    rounded = (ROUNDED_SIZE,) if plan.size_from_data and benchmark is None else ()
    assumptions = (*own, *rounded, *untracked(benchmark, budget))
    return Terms(assumptions=assumptions, published=plan.published, stamps=_stamps(plan, benchmark))


def untracked(benchmark: str | None, budget: DatasetBudget | None) -> tuple[str, ...]:
    """What a claim assumes about releases that nobody counted; public benchmarks have nothing to count."""
    return () if benchmark else (UNTRACKED if budget is None else BEFORE_BUDGET,)


def _stamps(plan: Plan, benchmark: str | None) -> tuple[str, ...]:
    if benchmark:
        return benchmark_stamps(benchmark)
    return ("published accounting on private data, by override",) if plan.accounting == "published" else ()
