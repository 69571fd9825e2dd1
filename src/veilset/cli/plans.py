"""What commands that spend privacy say: the plan beforehand, and how to go on after an interrupt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from veilset import api, run
from veilset.cli.options import parse_names, parse_size, typed
from veilset.console import Show, show_error
from veilset.data import KNOWN_NAMES, check_apart
from veilset.data.spec import Source
from veilset.errors import ConfigError, RunError
from veilset.methods.plan import Plan
from veilset.privacy.claim import shown
from veilset.reserved_plans import budget_of
from veilset.run_folder import READING, RunFolder
from veilset.wording import duration

OTHER_CLASSES = "Resume with the images it was begun with; for others, begin another in a new folder."
LONG_ON_A_CPU = 86_400
"""Seconds on two cores beyond which a plan is not for them."""


def describe(made: Plan, show: Show, *, hints: bool = True) -> None:
    """A plan in lines for people, with hints about settings where these can still be chosen."""
    facts, spec = made.facts, made.facts.spec
    target = "none: NOT PRIVATE" if made.epsilon_planned is None else f"{shown(made.epsilon_planned)} (proven)"
    show.say(f"method        {made.method}, accounting {made.accounting}")
    show.say(f"epsilon       {target}, delta {made.delta:g}, {facts.adjacency} of one {facts.unit}")
    if made.published is not None:
        show.say(f"published     epsilon {made.published.epsilon:.4g}, status {made.published.status}")
    noise = f"multiplier {made.noise_multiplier:.4g}, signal / noise {made.forecast.signal_to_noise:.2g}"
    show.say(f"noise         {'none' if made.accounting == 'none' else noise}")
    show.say(f"released      {made.forecast.released}")
    names = ", ".join(spec.class_names[:20]) + (", ..." if spec.num_classes > 20 else "")
    show.say(f"also public   {spec.height} x {spec.width} x {spec.channels}; class names: {names}")
    note = f" (offered, rounded; by using it you declare it public{'; --declared-size changes it' if hints else ''})"
    show.say(f"declared size {facts.declared_size}{note if made.size_from_data else ''}")
    cost = made.forecast
    show.say(f"expected      about {duration(cost.seconds)} on two CPU cores, {cost.megabytes:.0f} MB")
    gpu = api.pick_device("auto").type == "cuda"
    if hints and made.config.get("preset") == "fast" and gpu:
        show.say("hint          this machine has a GPU: --preset balanced makes better images with it")
    if hints and cost.seconds > LONG_ON_A_CPU and not gpu:
        show.say(f"hint          work for a GPU; for smaller settings see: veilset methods {made.method}")
    for warning in made.warnings:
        show.warn(warning)


def stored_plan(path: Path | None, out: Path, *, resume: bool) -> Plan | None:
    """The plan to run where there is one: that of the run to be resumed, or of a file.

    Raises: ConfigError where a file beside --resume holds another one.
    """
    given = None if path is None else Plan.load(path)
    if not resume:
        return given
    begun = Plan.load(RunFolder.open(out).plan_path)
    # A run adds its reservation, and `veilset sketch` what measuring alone takes.
    if given is not None and replace(given, reservation=begun.reservation, forecast=begun.forecast) != begun:
        raise ConfigError("the plan this run was begun with", f"another in {path}", "Leave --plan out.")
    return begun


def reading(context: typer.Context, begun: Mapping[str, Any]) -> dict[str, Any]:
    """Options that images are read with: as typed or, where a run is resumed, as it was `begun`.

    Raises: ConfigError where something else is typed.
    """
    asked = {name: context.params[name] for name in READING if name in context.params}
    asked["class_names"] = parse_names(asked["class_names"])
    if (size := parse_size(asked["size"])) is not None:
        asked["size"] = f"{size[0]}x{size[1]}"
    before = {name: begun[name] for name in asked if name in begun}
    check_begun(before, {name: asked[name] for name in before if typed(context, name)})
    return {**asked, **before, "other_classes": OTHER_CLASSES if "class_names" in before else None}


def source_of(text: str, benchmark: str | None = None) -> Source:
    """What is known of a collection before it is read."""
    known = text in KNOWN_NAMES
    return Source(path=None if known else text, benchmark=text if known else benchmark)


def check_place(out: Path, source: str, *, benchmark: str | None, resume: bool) -> None:
    """Before any image is read: whether a run can be written to `out`, or was begun there on the same ones."""
    if resume:
        images = source_of(source, benchmark)
        RunFolder(out).check_same_images(images, budget_of(images))
    else:
        check_apart(out, source)
        run.check_new(out)


def check_begun(
    begun: Mapping[str, Any],
    given: Mapping[str, Any],
    otherwise: str = "For others, begin another run in a new folder.",
) -> None:
    """Raises: ConfigError where something is given that what is resumed was not `begun` with."""
    other = [name for name, value in given.items() if begun.get(name) != value]
    if other:
        raise ConfigError(
            f"the options this was begun with: {', '.join(f'{name} {begun.get(name)}' for name in other)}",
            ", ".join(f"{name} {given[name]}" for name in other),
            f"Drop them: a resume takes what it was begun with. {otherwise}",
        )


@contextlib.contextmanager
def resumable(needed: Path) -> Iterator[None]:
    """Ctrl-C leaves a folder that can be continued if the file `needed` for it is there, and says which it is."""
    try:
        yield
    except KeyboardInterrupt:
        anew = "Nothing was released. Run it again, with another --out if something lies there already."
        todo = "Run the same command with --resume to continue." if needed.is_file() else anew
        show_error(RunError("to finish", "an interrupt", todo))
        raise typer.Exit(130) from None
