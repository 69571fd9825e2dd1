"""The whole way on the bundled MNIST, on a CPU: private training, samples, evaluation, report, export, verification.

make demo        # or: python examples/mnist_in_five_minutes.py --out runs/demo
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

import veilset
from veilset.card import plain_words
from veilset.console import Show
from veilset.methods.sketch import SketchConfig
from veilset.report.build import write_reports
from veilset.run_folder import RunFolder
from veilset.scoring import Request, score_run
from veilset.sharing import export


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--samples", type=int, default=6000, help="synthetic images the classifiers are trained on")
    parser.add_argument("--steps", type=int, default=SketchConfig().steps, help="training steps of the generator")
    options = parser.parse_args()
    shared = options.out.with_name(options.out.name + "-for-sharing")
    for folder in (options.out, shared):  # a demo may be run again; a real run folder is never overwritten
        if (folder / "manifest.json").is_file() or (folder / "vault").is_dir():
            shutil.rmtree(folder)

    with Show(quiet=False) as show:
        images = veilset.load("mnist")
        model = veilset.fit(
            images, epsilon=options.epsilon, jitter="handwriting", out=options.out, steps=options.steps, device="cpu",
            progress=show.progress,
        )  # fmt: skip
        run = RunFolder.open(options.out)
        scores = score_run(
            run, veilset.load("mnist", split="test"), Request(number=options.samples, classifiers=("cnn", "mlp")),
            device=torch.device("cpu"), progress=show.progress,
        )  # fmt: skip
    write_reports(run)
    export(options.out, shared)

    print("\n" + "\n".join(plain_words(model.claim)))
    for score in scores:
        print(f"{score.metric}: {score.mean:.3f} (classifier trained on {options.samples} synthetic images only)")
    print(f"\nOpen these:\n  {run.release / 'samples.png'}\n  {run.release / 'report.html'}")
    print(f"May be shared: {shared}   (check it: .venv/bin/veilset verify {shared})")


if __name__ == "__main__":
    main()
