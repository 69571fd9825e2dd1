"""Options that several commands share, and how their text is understood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from veilset.console import Show
from veilset.data import KNOWN_NAMES, Images, ImageSet, load, stream
from veilset.errors import ConfigError, DataError, OtherClass
from veilset.methods.base import Mechanism, get_method, make_config
from veilset.methods.plan import Accounting, Plan, requested_config
from veilset.wording import meant

Opened = TypeVar("Opened", bound=Images)
HELP_LINE = "`veilset methods NAME` lists a method's options."
METHOD_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of commands that also take a method's own options."""

SOURCES = f"Folder photos/<class>/*.png|jpg, .npz, idx folder, .csv/.jsonl, or {', '.join(KNOWN_NAMES)}."
Source = Annotated[str, typer.Argument(help=SOURCES)]
Run = Annotated[Path, typer.Argument(help="A run folder written by `veilset fit`.")]
Release = Annotated[Path, typer.Argument(help="A run folder written by `veilset fit`, or an exported release.")]
Method = Annotated[str, typer.Option(help="`veilset methods` lists them; `veilset methods NAME` lists its options.")]
Epsilon = Annotated[float | None, typer.Option(help="Privacy budget of this run. No default: only you can choose it.")]
Delta = Annotated[float, typer.Option(help="Chance of failure the claim allows; well below 1 / number of images.")]
Neighbours = Annotated[
    Literal["add-remove", "replace"], typer.Option("--adjacency", help="Which data sets count as neighbours.")
]
UnitOf = Annotated[Literal["record", "user"], typer.Option("--unit", help="user needs a user column.")]
PerUser = Annotated[int | None, typer.Option(help="Declared cap for --unit user; gs-wgan and dpac need none.")]
AccountingOf = Annotated[
    Accounting, typer.Option("--accounting", help="published reproduces a paper; none trains without noise.")
]
Declared = Annotated[int | None, typer.Option(help="Public size of the collection; the exact one is private.")]
Size = Annotated[str | None, typer.Option(help="Resize while reading: 64 or HEIGHTxWIDTH, with --fit.")]
Fit = Annotated[Literal["crop", "stretch"] | None, typer.Option("--fit", help="How to reach --size.")]
Color = Annotated[Literal["grey", "rgb"] | None, typer.Option(help="Convert while reading.")]
Split = Annotated[Literal["train", "test"], typer.Option(help="Which part, where the source has both; else all of it.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at an undecodable file instead of treating it as empty.")]
Benchmark = Annotated[str | None, typer.Option(help="Declare the data a public benchmark: no budget, stamped so.")]
ClassNames = Annotated[str | None, typer.Option(help="Declare the classes, comma-separated, instead of reading them.")]
DpScores = Annotated[
    float | None,
    typer.Option(help="Epsilon of noisy accuracies that may be shared, charged to the test set's own budget."),
]
Seed = Annotated[int, typer.Option(help="Seed of weights, latents and batches. Never reaches the privacy noise.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages or progress; errors and the result remain.")]


def read_images(
    source: str, show: Show, *, size: str | None, class_names: list[str] | None = None, **options: Any
) -> ImageSet:
    """Loads images with progress; the owner's warnings are shown, the first few of them."""
    return _opened_with(load, source, show, size=parse_size(size), class_names=class_names, **options)


def open_images(
    source: str, show: Show, *, size: str | None, class_names: list[str] | None = None, **options: Any
) -> Images:
    """As `read_images`, but a large collection stays on disk, for methods that only pass over it."""
    return _opened_with(stream, source, show, size=parse_size(size), class_names=class_names, **options)


def _opened_with(
    reader: Callable[..., Opened], source: str, show: Show, *, other_classes: str | None = None, **options: Any
) -> Opened:
    """`other_classes` says what to do about images of such, where it was not the user who named the classes."""
    try:
        images = reader(source, progress=lambda done, total: show.progress("reading images", done, total), **options)
    except OtherClass as error:
        raise DataError(error.expected, error.found, other_classes or error.todo) from error
    for warning in images.warnings[:5]:
        show.warn(warning)
    if len(images.warnings) > 5:
        show.warn(f"and {len(images.warnings) - 5} more; all are in the run's vault")
    return images


def parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.lower().split("x")]
        height, width = numbers * 2 if len(numbers) == 1 else numbers
    except ValueError as error:
        raise ConfigError("--size 64 or --size HEIGHTxWIDTH", f"{text!r}", "For example --size 64x48.") from error
    return height, width


def parse_names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def parse_mix(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        return {name: float(share) for name, share in (part.rsplit("=", 1) for part in text.split(","))}
    except ValueError as error:
        raise ConfigError("--mix like cat=3,dog=1", f"{text!r}", "Give a number for each class.") from error


def check_request(context: typer.Context, method: Mechanism, options: dict[str, Any]) -> None:
    """Refuses what is wrong whatever the images are, before a large folder of them is read."""
    params = context.params
    _check_known(context, method, options)
    requested_config(
        method, epsilon=params["epsilon"], delta=params["delta"], accounting=params.get("accounting", "proven"),
        settings=options,
    )  # fmt: skip


def _check_known(context: typer.Context, method: Mechanism, options: Iterable[str]) -> None:
    """A misspelt option of the command lands among those of the method."""
    known = {*(field.name for field in fields(method.Config)), *context.params}
    for name in options:
        if name not in known:
            lists = f"`{context.command_path} --help` and `veilset methods {method.name}` list them."
            raise ConfigError(
                f"an option of `{context.command_path}` or of the method {method.name}", _as_typed(name),
                meant(_as_typed(name), map(_as_typed, known), lists),
            )  # fmt: skip


def _as_typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_agrees(plan: Plan, context: typer.Context, options: dict[str, str] | None = None) -> None:
    """Refuses options typed beside a stored plan that say something else: a plan is run as it was made."""
    plan.check_complete()
    facts = plan.facts
    stored = {
        "method": plan.method, "epsilon": plan.epsilon_target, "delta": plan.delta, "accounting": plan.accounting,
        "adjacency": facts.adjacency, "unit": facts.unit, "images_per_user": facts.rows_per_user, "seed": plan.seed,
        "declared_size": facts.declared_size,
    }  # fmt: skip
    other = [name for name in stored if typed(context, name) and context.params[name] != stored[name]]
    options = method_options(context) if options is None else options
    understood = as_values(get_method(plan.method), plan.config, options)
    other += [name for name in options if understood[name] != plan.config[name]]
    if other:
        raise ConfigError(
            "the options the plan was made with", f"other values for {', '.join(other)}", "Drop them, or plan anew."
        )


def as_values(method: Mechanism, begun: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Typed options of a method, understood beside the settings it was `begun` with: 1e-3 and 0.001 are the same."""
    config = asdict(make_config(method, {**begun, **options}))
    return {name: config[name] for name in options}


def method_options(context: typer.Context) -> dict[str, str]:
    """`--name value` and `--name=value` pairs that are not options of the command itself."""
    plain, options = split_words(context.args)
    if plain:
        raise ConfigError("options as --name value", f"{plain[0]!r}", HELP_LINE)
    for name in options.keys() & context.params.keys():  # behind a bare --, where the command does not see them
        raise ConfigError(
            "options of the command before a bare --", f"--{name.replace('_', '-')} behind a bare --", HELP_LINE
        )
    return options


def split_words(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Plain words, and the `--name value` and `--name=value` pairs among them."""
    plain: list[str] = []
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            plain.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"a value after {word}, if it is an option of the method", "nothing", HELP_LINE)
            value = rest.pop(0)
        options[name.replace("-", "_")] = value
    return plain, options


def typed(context: typer.Context, name: str) -> bool:
    """Whether an option was given on the command line, and is not just its default."""
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
