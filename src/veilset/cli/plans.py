"""What commands that spend privacy say: the plan beforehand, and how to go on after an interrupt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import typer

from veilset import api
from veilset.console import Show, duration, show_error
from veilset.errors import RunError
from veilset.methods.plan import Plan
from veilset.privacy.claim import shown
from veilset.run_folder import RunFolder

LONG_ON_A_CPU = 86_400
"""Seconds on two cores beyond which a plan is not for them."""


def describe(made: Plan, show: Show, *, declared: bool, hints: bool = True) -> None:
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
    note = "" if declared else " (offered, rounded; by using it you declare it public; --declared-size changes it)"
    show.say(f"declared size {facts.declared_size}{note}")
    cost = made.forecast
    show.say(f"expected      about {duration(cost.seconds)} on two CPU cores, {cost.megabytes:.0f} MB")
    gpu = api.pick_device("auto").type == "cuda"
    if hints and made.config.get("preset") == "fast" and gpu:
        show.say("hint          this machine has a GPU: --preset balanced makes better images with it")
    if hints and cost.seconds > LONG_ON_A_CPU and not gpu:
        show.say(f"hint          work for a GPU; for smaller settings see: veilset methods {made.method}")
    for warning in made.warnings:
        show.warn(warning)


def reading(out: Path, stored: Plan | None, *, resume: bool, **typed: str | None) -> dict[str, str | None]:
    """Size, fit and colour that images are read with: as typed or, where a run is resumed, as at its start."""
    if stored is None or not resume:
        return typed
    spec = stored.facts.spec
    before = {"size": f"{spec.height}x{spec.width}", "fit": RunFolder(out).fit}
    before["color"] = "grey" if spec.channels == 1 else "rgb"
    return {name: value or before[name] for name, value in typed.items()}


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
