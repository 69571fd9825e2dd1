"""Real images against real images: the floor under every FID, and the check that ours can be set beside published ones.

GS-WGAN prints 1.02 for MNIST and 1.49 for Fashion-MNIST (60,000 training against 10,000 test images).
VEILSET_DATA must name a folder with fid-inception-2015.safetensors and, for Fashion-MNIST, its npz file.

    VEILSET_DATA=folder python benchmarks/fid_real.py --datasets mnist fashion-mnist --device cuda
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import results
import torch

import veilset
from veilset.api import pick_device
from veilset.data.spec import ImageSet
from veilset.evaluate.extractors import get_extractor
from veilset.evaluate.fidelity import fidelity
from veilset.randomness import named_generator

EXPECTED = {"mnist": (1.02, 0.02), "fashion-mnist": (1.49, 0.06)}
"""FID and the tolerance on it, at full size."""


def main() -> int:
    options = parse()
    device = pick_device(options.device)
    extractor = get_extractor(options.extractor, device=device)
    wrong = 0
    for dataset in options.datasets:
        train, test = (first(veilset.load(dataset, split=split), options.limit) for split in ("train", "test"))
        started = time.perf_counter()
        scores = fidelity(test, train, extractor=extractor, metrics=options.metrics, device=device)
        seconds = time.perf_counter() - started
        for score in scores:
            results.append(
                options.results, method="real", dataset=dataset, accounting="none", claim=None, epsilon_target=None,
                protocol=f"{len(train)} training against {len(test)} test images",
                settings={"extractor": extractor.name, "extractor_hash": extractor.hash, "torch": torch.__version__},
                metric=score.metric, values=[score.mean], seeds=[0], seconds=seconds,
                device=results.device_name(device), commit=options.commit,
            )  # fmt: skip
        wrong += not as_expected(dataset, {score.metric: score.mean for score in scores}, options)
    return int(wrong > 0)


def first(images: ImageSet, limit: int | None) -> ImageSet:
    """All images, or `limit` of them in an order that does not depend on how they are stored."""
    if limit is None or limit >= len(images):
        return images
    return images.subset(torch.randperm(len(images), generator=named_generator(0, "fid_real"))[:limit])


def as_expected(dataset: str, found: dict[str, float], options: argparse.Namespace) -> bool:
    full_size = options.limit is None and options.extractor == "fid-inception-2015"
    if not full_size or dataset not in EXPECTED or "fid" not in found:
        return True
    value, tolerance = EXPECTED[dataset]
    fits = abs(found["fid"] - value) <= tolerance
    print(f"{dataset}: FID {found['fid']:.4f}, expected {value} +- {tolerance}: {'as expected' if fits else 'WRONG'}")
    return fits


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--extractor", default="fid-inception-2015")
    parser.add_argument("--metrics", nargs="+", default=["fid", "kid", "precision", "recall", "density", "coverage"])
    parser.add_argument("--limit", type=int, help="only so many images of either set, to try the script")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--commit", help="where there is no git checkout")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
