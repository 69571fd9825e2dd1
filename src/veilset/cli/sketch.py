"""`veilset sketch` and `veilset synthesize`: the private step and the open step, each from files to files."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from veilset import api
from veilset.cli.options import (
    Benchmark,
    ClassNames,
    Color,
    Declared,
    Delta,
    Device,
    Epsilon,
    Fit,
    Neighbours,
    PerUser,
    Quiet,
    Seed,
    Size,
    Split,
    Strict,
    UnitOf,
    check_agrees,
    check_request,
    method_options,
    open_images,
    split_words,
    typed,
)
from veilset.cli.plans import check_place, describe, reading, resumable, stored_plan
from veilset.console import Show, command, result
from veilset.data import Images
from veilset.errors import ConfigError
from veilset.merging import merge
from veilset.methods.base import get_method
from veilset.methods.plan import Plan
from veilset.privacy.claim import shown
from veilset.run_folder import RunFolder
from veilset.sketch_release import SketchRelease
from veilset.sketching import SketchGoal, execute_sketch, resume_sketch
from veilset.synthesis import claim_beside, synthesize_images
from veilset.synthesis import synthesize as make_model

Words = Annotated[list[str], typer.Argument(metavar="IMAGES", help="As for `veilset fit`.")]


def sketch(
    context: typer.Context, words: Words,
    out: Annotated[Path, typer.Option(help="Folder of the sketch to write (new or empty).")],
    epsilon: Epsilon = None, delta: Delta = 1e-5, adjacency: Neighbours = "add-remove", unit: UnitOf = "record",
    images_per_user: PerUser = None,
    accounting: Annotated[Literal["proven", "none"], typer.Option(help="none measures without noise.")] = "proven",
    declared_size: Declared = None, size: Size = None, fit: Fit = None, color: Color = None, split: Split = "train",
    class_names: ClassNames = None, strict: Strict = False, benchmark: Benchmark = None, device: Device = "auto",
    plan: Annotated[Path | None, typer.Option(help="Run this plan, made with --method sketch --rounds 1.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False,
    after: Annotated[Path | None, typer.Option(help="Add a round to this sketch of the same images.")] = None,
    features: Annotated[Path | None, typer.Option(help="Networks for it, of `synthesize --features-out`.")] = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Measure a collection once, with noise, into a file that may be shared and synthesised from for ever.

    Options of the method that concern measuring are accepted too: preset, networks, width and so on, of those that
    `veilset methods sketch` lists.

    `veilset sketch merge a.sketch b.sketch --out c.sketch` adds sketches of different people.
    """
    plain, options = split_words(words)
    if len(plain) != 1:
        todo = "Sketches are added by `veilset sketch merge A B --out C`, in this order."
        raise ConfigError("one collection of images", f"{plain}", todo)
    stored = stored_plan(plan, out, resume=resume)
    goal = SketchGoal.resumed(RunFolder(out)) if resume else _goal(after, features)
    if resume:
        goal.check_begun(after, features)
    settings = goal.settings(**options) if stored is None else {}
    if stored is not None:
        check_agrees(stored, context, options)
    else:
        check_request(context, get_method("sketch"), settings)
    chosen_device = api.pick_device(device)
    check_place(out, plain[0], benchmark=benchmark, resume=resume)
    with Show(quiet) as show, resumable(RunFolder(out).ledger_path):
        images = open_images(
            plain[0], show, strict=strict, benchmark=benchmark,
            **reading(context, RunFolder(out).reading if resume else {}),
        )  # fmt: skip
        common: dict[str, Any] = {"device": chosen_device, "progress": show.progress}
        if resume:
            made = resume_sketch(images, out, **common)
        else:
            chosen = goal.planned(stored or _planned(context, goal, images, settings))
            describe(chosen, show, hints=after is None and stored is None)
            if after is not None and (total := goal.epsilon_in_all(chosen)) is not None:
                show.say(f"in all        epsilon {shown(total)} (proven), with the rounds in {after}")
            made = execute_sketch(goal, images, chosen, out, **common)
    _tell(made, out, show)


def merge_sketches(
    sketches: Annotated[list[Path], typer.Argument(help="Two or more sketches of different people.")],
    out: Annotated[Path, typer.Option(help="Folder of the sketch to write (new or empty).")],
    quiet: Quiet = False,
) -> None:
    """Add sketches of different people, as they are. Costs no privacy."""
    show = Show(quiet)
    made = merge(sketches, out)
    for text in made.claim.assumptions:
        show.say(f"assuming {text}")
    _tell(made, out, show)


class SketchOrMerge(TyperCommand):
    """`veilset sketch`, which gives way to a command with options of its own where its first word is merge."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] != ["merge"]:
            return super().make_context(info_name, args, parent, **extra)
        app = typer.Typer(add_completion=False)
        app.command()(merge_sketches)
        return typer.main.get_command(app).make_context(f"{info_name} merge", args[1:], parent, **extra)


def synthesize(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="A sketch, or a fit of the method sketch; exported or not.")],
    out: Annotated[Path, typer.Option(help="Run folder to write; with --per-class a folder of images or .npz.")],
    per_class: Annotated[int | None, typer.Option(help="Write this many optimised images a class, no model.")] = None,
    features_out: Annotated[Path | None, typer.Option(help="Train networks for a further round; write them.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the model in --out.")] = False,
    seed: Seed = 0, device: Device = "auto", quiet: Quiet = False,
) -> None:  # fmt: skip
    """Make a model, or a few images, from a sketch alone. Costs no privacy, however often.

    Options of the method's open side are accepted too: steps, channels, jitter and so on, of those that
    `veilset methods sketch` lists.

    A further round: --features-out NETS here (with --resume, of a finished model too), then
    `veilset sketch photos/ --after SKETCH --features NETS`.
    """
    options = method_options(context)
    if per_class is not None and features_out is not None:
        raise ConfigError("--per-class or --features-out", "both", "Networks are trained on images of a model.")
    if per_class is not None and resume:
        raise ConfigError("--per-class or --resume", "both", "A few images are optimised in one go: start again.")
    with Show(quiet) as show, nullcontext() if per_class is not None else resumable(RunFolder(out).plan_path):
        common: dict[str, Any] = {"options": options, "seed": seed, "progress": show.progress}
        common["device"] = api.pick_device(device)
        if per_class is None:
            claim = make_model(source, out, features_out=features_out, resume=resume, **common).claim
        else:
            claim = synthesize_images(source, out, per_class, **common).claim
    wrote = f"{out}, its claim in {claim_beside(out)}" if per_class is not None else f"{out}"
    show.say(f"{claim.summary}\nwrote {wrote}; nothing was charged")
    if features_out is not None:
        further = ("--after", source, "--features", features_out, "--epsilon", "E", "--out", "NEW")
        show.say(f"next: {command('sketch', 'IMAGES', *further)}")
    elif per_class is None:
        show.say(f"look at {out / 'release' / 'samples.png'}; next: {command('report', out)}")
    result({"out": str(out), "claim": claim.to_json()}, quiet=quiet)


def _goal(after: Path | None, features: Path | None) -> SketchGoal:
    if (after is None) != (features is None):
        raise ConfigError("--after together with --features", "one of them", "`synthesize --features-out` makes those.")
    return SketchGoal() if after is None or features is None else SketchGoal.after(after, features)


def _planned(context: typer.Context, goal: SketchGoal, images: Images, settings: dict[str, Any]) -> Plan:
    """A plan from the command line; a further round is on the terms of the first where nothing else is typed."""
    names = ("epsilon", "delta", "adjacency", "unit", "images_per_user", "declared_size", "accounting")
    terms = {name: context.params[name] for name in names}
    if goal.before is not None:
        facts = goal.before.facts
        first = {
            "delta": goal.before.claim.delta, "adjacency": facts.adjacency, "unit": facts.unit,
            "images_per_user": facts.rows_per_user, "declared_size": facts.declared_size,
        }  # fmt: skip
        terms.update({name: value for name, value in first.items() if not typed(context, name)})
    return api.plan_for(images, method="sketch", **terms, **settings)


def _tell(made: SketchRelease, out: Path, show: Show) -> None:
    following = command("synthesize", out, "--out", "run")
    show.say(f"{made.claim.summary}\nread {out / 'release' / 'README.md'}; next: {following}")
    result({"sketch": str(out), "method": made.method, "claim": made.claim.to_json()}, quiet=show.quiet)
