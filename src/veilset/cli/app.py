"""The command line: thin. Every verb reads files and writes files, so each step can be rerun or replaced alone."""

from __future__ import annotations

import logging
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from veilset import api, run, sharing
from veilset.artifact import read_privacy
from veilset.budget import DatasetBudget
from veilset.cli import budget
from veilset.cli.compare import compare
from veilset.cli.continual import continual
from veilset.cli.evaluate import evaluate, scores_to_reserve, weights
from veilset.cli.options import (
    METHOD_OPTIONS,
    AccountingOf,
    Benchmark,
    ClassNames,
    Color,
    Declared,
    Delta,
    Device,
    DpScores,
    Epsilon,
    Fit,
    Method,
    Neighbours,
    PerUser,
    Quiet,
    Release,
    Run,
    Seed,
    Size,
    Source,
    Split,
    Strict,
    UnitOf,
    check_agrees,
    check_request,
    method_options,
    open_images,
    parse_mix,
    parse_names,
    parse_size,
)  # fmt: skip
from veilset.cli.order import InOrder
from veilset.cli.plans import check_place, describe, reading, resumable, stored_plan
from veilset.cli.sketch import SketchOrMerge, sketch, synthesize
from veilset.console import Show, command, result, show_error
from veilset.courses.release import export_course, is_course, verify_course
from veilset.data import KNOWN_NAMES, check_writable, inspect, is_archive, write_images
from veilset.dp_scores import check_cap
from veilset.engines.option_checks import words_of
from veilset.errors import RunError, VeilsetError
from veilset.methods.base import DEFAULT_METHOD, all_methods, get_mechanism, get_method
from veilset.model import from_pretrained
from veilset.privacy.claim import shown
from veilset.reserved_plans import write_plan
from veilset.run_folder import RunFolder
from veilset.version import __version__

VERIFIED = {
    "epsilon_renyi": "epsilon by Renyi accounting",
    "noisy_scores": "noisy scores",
    "noisy_scores_together": "noisy scores together",
}
"""What `verify` calls its findings before people, where that is not their name in the JSON."""
AllowPublished = Annotated[
    bool, typer.Option("--allow-published-accounting", help="Let a published epsilon near private data.")
]


app = typer.Typer(
    cls=InOrder,
    help="Turn a sensitive, labelled image collection into a synthetic one that may be shared.",
    epilog="Start with: veilset plan photos/ --epsilon 1",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(budget.app, name="budget")
app.command()(evaluate)
app.command()(weights)
app.command()(compare)
app.command(cls=SketchOrMerge, context_settings=METHOD_OPTIONS)(sketch)
app.command(context_settings=METHOD_OPTIONS)(synthesize)
app.command(context_settings=METHOD_OPTIONS)(continual)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"veilset {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="Show the options of this method.")] = None) -> None:
    """List the methods, or the options of one."""
    show = Show(quiet=False)
    if name is None:
        for key, method in all_methods().items():
            show.say(f"{key:12} {method.summary} ({method.paper})")
        result({"methods": list(all_methods())})
        return
    mechanism = get_mechanism(name)
    config, presets = mechanism.Config(), mechanism.presets
    options = {field.name: getattr(config, field.name) for field in fields(config)}
    for key, words in words_of(config).items():
        show.say(f"--{key.replace('_', '-'):20} {words} (default {options[key] if options[key] != '' else 'none'})")
    for preset, values in presets.items():
        changes = ", ".join(f"{key} {value}" for key, value in values.items()) or "the defaults above"
        show.say(f"--preset {preset:14} {changes}")
    result({"method": name, "options": options, "presets": {key: dict(values) for key, values in presets.items()}})


@app.command(context_settings=METHOD_OPTIONS)
def plan(
    context: typer.Context, source: Source, method: Method = DEFAULT_METHOD, epsilon: Epsilon = None,
    delta: Delta = 1e-5, adjacency: Neighbours = "add-remove", unit: UnitOf = "record", images_per_user: PerUser = None,
    accounting: AccountingOf = "proven", declared_size: Declared = None, size: Size = None, fit: Fit = None,
    color: Color = None, split: Split = "train", class_names: ClassNames = None, benchmark: Benchmark = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Write the plan here and reserve its cost in the budget.")] = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Show what would be spent and why, before any pixel is read.

    Every method's own options are accepted too: `veilset methods NAME` lists them.

    With --out the plan is written for `veilset fit --plan`, which calibrates nothing any more.
    """
    show = Show(quiet)
    check_request(context, get_method(method), method_options(context))
    spec, suggested = inspect(
        source, size=parse_size(size), fit=fit, color=color, split=split, benchmark=benchmark,
        class_names=parse_names(class_names),
    )  # fmt: skip
    size_used = suggested if declared_size is None else declared_size
    made = api.plan(
        spec, method=method, epsilon=epsilon, declared_size=size_used, delta=delta, adjacency=adjacency, unit=unit,
        images_per_user=images_per_user, accounting=accounting, seed=seed,
        **method_options(context),
    )  # fmt: skip
    made = replace(made, size_from_data=declared_size is None)
    describe(made, show)
    data = Path(source) if benchmark is None and source not in KNOWN_NAMES else None
    if data is not None and (account := DatasetBudget.find(data)) is not None:
        status = account.status()
        show.say(
            f"budget        epsilon {shown(status.epsilon_charged)} of {status.epsilon:.4g} charged before this run"
        )
    if out is not None:
        made = write_plan(made, data, out)
        show.say(f"wrote {out}" + (", cost reserved in the data set's budget" if made.reservation else ""))
    result(made.public_summary(), quiet=quiet)


@app.command(context_settings=METHOD_OPTIONS)
def fit(
    context: typer.Context, source: Source,
    out: Annotated[Path, typer.Option(help="Run folder to write (new or empty).")],
    method: Method = DEFAULT_METHOD, epsilon: Epsilon = None, delta: Delta = 1e-5,
    adjacency: Neighbours = "add-remove", unit: UnitOf = "record",
    images_per_user: PerUser = None, accounting: AccountingOf = "proven", declared_size: Declared = None,
    size: Size = None, fit: Fit = None, color: Color = None, split: Split = "train", class_names: ClassNames = None,
    strict: Strict = False, benchmark: Benchmark = None, seed: Seed = 0, device: Device = "auto",
    plan: Annotated[Path | None, typer.Option(help="Run this plan, made by `veilset plan --out`.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False,
    allow_published_accounting: AllowPublished = False, dp_scores: DpScores = None,
    test: Annotated[str | None, typer.Option(help="With --dp-scores: the test images of `veilset evaluate`.")] = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train a private generator. Every method's own options are accepted too: `veilset methods NAME` lists them.

    With --dp-scores and --test the cost of noisy scores is reserved now; `veilset evaluate --dp-scores` buys them.
    """
    reserved = scores_to_reserve(dp_scores, test, begun=RunFolder.open(out) if resume else None)
    stored = stored_plan(plan, out, resume=resume)
    if stored is not None:
        check_agrees(stored, context)
    else:
        check_request(context, get_method(method), method_options(context))
    chosen_device = api.pick_device(device)
    check_place(out, source, benchmark=benchmark, resume=resume)
    with Show(quiet) as show, resumable(RunFolder(out).ledger_path):
        images = open_images(
            source, show, strict=strict, benchmark=benchmark,
            **reading(context, RunFolder(out).reading if resume else {}),
        )  # fmt: skip
        common: dict[str, Any] = {"device": chosen_device, "progress": show.progress}
        common["allow_published"] = allow_published_accounting
        if resume:
            model = run.resume(images, out, **common)
        else:
            chosen = stored or api.plan_for(
                images, method=method, epsilon=epsilon, declared_size=declared_size, delta=delta,
                adjacency=adjacency, unit=unit, images_per_user=images_per_user, accounting=accounting, seed=seed,
                **method_options(context),
            )  # fmt: skip
            describe(chosen, show, hints=stored is None)
            if dp_scores is not None:
                check_cap(chosen.facts)
            model = run.execute(images, chosen, out, prepare=reserved, **common)
    show.say(f"{model.claim.summary}\nlook at {out / 'release' / 'samples.png'}; next: {command('report', out)}")
    result({"run": str(out), "method": model.method, "claim": model.claim.to_json()}, quiet=quiet)


@app.command()
def sample(
    source: Release,
    out: Annotated[Path, typer.Option(help="Folder of images, or an archive where the name ends in .npz.")],
    number: Annotated[int, typer.Option("--number", "-n", help="How many images.")] = 1000,
    mix: Annotated[str | None, typer.Option(help="Shares of the classes, e.g. cat=3,dog=1; even by default.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw synthetic images. Costs no privacy, however often."""
    check_writable(out, archive=is_archive(out))
    with Show(quiet) as show:
        model = from_pretrained(source)
        shares = parse_mix(mix)
        if model.size is not None and number > model.size:
            show.warn(f"this model is a set of {model.size} images: of {number} most are repetitions")
        images = model.sample(number, seed=seed, mix=shares, device=api.pick_device(device), progress=show.progress)
        write_images(images, out, progress=lambda done, total: show.progress("writing", done, total))
    show.say(f"wrote {number} images to {out}\n{model.claim.summary}")
    result({"out": str(out), "number": number, "claim": model.claim.summary}, quiet=quiet)


@app.command()
def report(
    source: Annotated[Path, typer.Argument(help="A run folder written by `veilset fit`.")], quiet: Quiet = False
) -> None:
    """Write the report: one page to share in release/, one for the owner in vault/."""
    from veilset.report.build import write_reports

    if is_course(source):
        raise RunError("a run folder", f"a course, {source}", f"Its page is {source / 'release' / 'README.md'}.")
    public, owner = write_reports(RunFolder(source))
    claim = read_privacy((public.parent / "privacy.json").read_bytes()).claim
    Show(quiet).say(f"{'NOT to share' if claim.epsilon is None else 'to share'}: {public}\nfor the owner: {owner}")
    result({"public": str(public), "owner": str(owner)}, quiet=quiet)


@app.command()
def export(
    source: Run,
    out: Annotated[Path, typer.Option(help="New folder that may then be shared.")],
    quiet: Quiet = False,
) -> None:
    """Copy what may be shared, and nothing else, after checking it."""
    checked = export_course(source, out) if is_course(source) else sharing.export(source, out)
    Show(quiet).say(f"{out} may be shared: {checked['claim']}")
    result({"out": str(out), **checked}, quiet=quiet)


@app.command()
def verify(
    source: Annotated[Path, typer.Argument(help="An exported release or a run folder.")], quiet: Quiet = False
) -> None:
    """Check a release as anyone can: hashes, ledger chain, epsilon re-priced by two accountants."""
    checked = verify_course(source) if is_course(source) else sharing.verify(source)
    show = Show(quiet)
    for key, value in checked.items():
        for one in value if isinstance(value, list) else [value]:
            show.say(f"{VERIFIED.get(key, key):28} {shown(one) if isinstance(one, float) else one}")
    result(checked, quiet=quiet)
    if "epsilon" not in checked:
        raise typer.Exit(1)


def main() -> None:
    """Entry point: errors in three plain lines."""
    # The accountant's library warns of Renyi orders it leaves out; a bound over the others is a bound all the same.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        app()
    except VeilsetError as error:
        show_error(error)
        sys.exit(2)
    except OSError as error:  # a full disk, a vanished folder: nothing of ours, but no reason for a traceback
        show_error(RunError("to read and write files", f"{error}", "Mend that, then run it again (a fit: --resume)."))
        sys.exit(2)
