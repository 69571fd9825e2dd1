"""How long a preset takes to judge 60,000 images on this machine, one seed of each classifier.

python benchmarks/judging.py --preset gs-wgan

The images are MNIST's own training images: what is timed does not depend on who made them. A reference convolution is
timed in the same run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import results
from speed import reference_convolution

import veilset
from veilset.api import pick_device
from veilset.evaluate import gen2real
from veilset.evaluate.presets import get_preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--commit", help="where there is no git checkout")
    options = parser.parse_args()
    device, preset = pick_device(options.device), get_preset(options.preset)
    images, test = veilset.load("mnist"), veilset.load("mnist", split="test")
    reference = reference_convolution(device)
    started = time.perf_counter()
    scores = gen2real(
        images, test, classifiers=preset.classifiers, seeds=(0,), device=device,
        progress=lambda message, done, total: print(f"{message} ({done}/{total})", flush=True),
    )  # fmt: skip
    seconds = time.perf_counter() - started
    each = {score.metric.partition("/")[2]: round(score.details["seconds"], 1) for score in scores}
    results.append(
        options.results, method="real", dataset="mnist", accounting="none", claim=None, epsilon_target=None,
        protocol="60,000 images, one seed of each classifier", metric=f"seconds/{options.preset}",
        settings={"each": each, "reference_convolution_seconds": round(reference, 3)}, values=[seconds], seeds=[0],
        seconds=seconds, device=results.device_name(device), commit=options.commit,
    )  # fmt: skip


if __name__ == "__main__":
    main()
