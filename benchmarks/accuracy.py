"""Accuracy on real test images of classifiers trained on synthetic ones, over independent fits.

Every seed is a fit of its own with fresh privacy noise (which no seed controls) and its own weights and classifier.

    python benchmarks/accuracy.py --method dp-merf --dataset mnist --epsilon 1 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import results

import veilset
from veilset.api import pick_device
from veilset.evaluate import gen2real
from veilset.methods.base import get_method, make_config


def main() -> None:
    options = parse()
    device = pick_device(options.device)
    train, test = (veilset.load(options.dataset, split=split) for split in ("train", "test"))
    given = dict(pair.split("=", 1) for pair in options.set)
    config = make_config(get_method(options.method), given)
    settings = {name: getattr(config, name) for name in given}
    started = time.perf_counter()
    scores: dict[str, list[float]] = {}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            model = veilset.fit(
                train, method=options.method, epsilon=options.epsilon, delta=options.delta, seed=seed, device=device,
                out=Path(folder) / "run", accounting=options.accounting, **settings,
            )  # fmt: skip
            print(f"seed {seed}: {model.claim.summary}", flush=True)
            synthetic = model.sample(options.number, seed=seed, device=device)
        for score in gen2real(synthetic, test, classifiers=options.classifiers, seeds=[seed], device=device):
            scores.setdefault(score.metric, []).append(score.mean)
            print(f"seed {seed}: {score.metric} {score.mean:.4f}", flush=True)
    for metric, values in scores.items():
        results.append(
            options.results, method=options.method, dataset=options.dataset, accounting=options.accounting,
            claim=model.claim.to_json(), epsilon_target=options.epsilon, protocol=f"veilset, {options.number} samples",
            settings=settings, metric=metric, values=values, seeds=options.seeds, device=results.device_name(device),
            seconds=time.perf_counter() - started, commit=options.commit,
        )  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--accounting", default="proven")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--number", type=int, default=60000)
    parser.add_argument("--classifiers", nargs="+", default=["cnn", "mlp"])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="options of the method")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--commit", help="where there is no git checkout")
    return parser.parse_args()


if __name__ == "__main__":
    main()
