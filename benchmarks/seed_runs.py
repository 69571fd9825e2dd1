"""One seed of a row: a fit, then its figures, each of them a job, all kept in a file until the row is done."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import datasets
import torch
from bench import Bench
from measure import REAL, Figure, Images, Meter, groups, parts_of
from rows import Row

import veilset
from veilset.evaluate.sklearn_suite import SKLEARN_SUITE
from veilset.files import read_json, write_atomically

REAL_FEATURES = "real"
"""Folder for features of the real images, beside the unfinished rows: every seed is compared with the same ones."""


class SeedRun:
    """What is known of a seed, and what is left to do. A run that was killed goes on where it was."""

    def __init__(self, row_name: str, row: Row, seed: int, folder: Path, bench: Bench) -> None:
        self.name, self.row, self.seed, self.bench = f"{row_name}, seed {seed}", row, seed, bench
        self.path, self.run = folder / f"{seed}.json", folder / f"{seed}.run"
        self.lacking: dict[str, str] = {}
        """Parts that need a package this machine lacks, and what is to be done about it."""
        self.value: dict[str, Any] | None = None
        """Claim, seconds of the fit, and figures by part."""
        if self.path.is_file():
            self.value = read_json(self.path, "an unfinished seed")
            print(f"{self.name}: {len(self.value['parts'])} figures kept from an earlier run", flush=True)
        elif row.method == REAL:
            self.value = {"claim": None, "fit_seconds": 0.0, "parts": {}}

    @property
    def fit(self) -> Callable[[], dict[str, Any]] | None:
        """What is to be done first, if it was not."""
        return partial(fit_seed, self.row, self.seed, self.run, self.bench) if self.value is None else None

    def figures(self) -> list[tuple[list[str], Callable[[], dict[str, Figure]]]]:
        """Parts that are measured in one go, and what measures them: those that are missing after the fit."""
        assert self.value is not None
        wanted = dict.fromkeys(part for metric in self.row.metrics_of(self.seed) for part in self.parts_of(metric))
        missing = [part for part in wanted if part not in self.value["parts"] and part not in self.lacking]
        work = (self.row, self.seed, self.run, self.bench)
        return [(group, partial(measure_seed, group, *work)) for group in groups(missing)]

    def parts_of(self, metric: str) -> list[str]:
        return parts_of(self.row.method, metric)

    def keep_fit(self, value: dict[str, Any]) -> None:
        self._keep(value)
        print(f"{self.name}: fitted in {value['fit_seconds']:.1f} s", flush=True)

    def keep_figures(self, found: dict[str, Figure]) -> None:
        assert self.value is not None
        self._keep({**self.value, "parts": {**self.value["parts"], **found}})
        for part, (figure, seconds) in found.items():
            print(f"{self.name}: {part} {figure:.4f} in {seconds:.1f} s", flush=True)

    def _keep(self, value: dict[str, Any]) -> None:
        self.value = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(value).encode())

    def has(self, metric: str) -> bool:
        return self.value is not None and set(self.parts_of(metric)) <= self.value["parts"].keys()


def leaves_the_device(group: list[str], bench: Bench) -> bool:
    """Whether these parts are measured by classifiers of scikit-learn, which know no GPU, beside one."""
    names = {part.partition("/")[2] for part in group}
    return bench.at_once > 1 and bench.device.type == "cuda" and names <= SKLEARN_SUITE.keys()


def fit_seed(row: Row, seed: int, run: Path, bench: Bench) -> dict[str, Any]:
    """Fits the model of a seed into the folder `run`."""
    shutil.rmtree(run, ignore_errors=True)  # of a fit that was killed
    images_of.cache_clear()
    started = time.perf_counter()
    model = veilset.fit(
        datasets.load(row.dataset, "train"), method=row.method, epsilon=row.epsilon, delta=row.delta,
        adjacency=row.adjacency, unit=row.unit, images_per_user=row.images_per_user, accounting=row.accounting,
        seed=seed, device=bench.device, out=run, **row.settings,
    )  # fmt: skip
    return {"claim": model.claim.to_json(), "fit_seconds": time.perf_counter() - started, "parts": {}}


def measure_seed(parts: list[str], row: Row, seed: int, run: Path, bench: Bench) -> dict[str, Figure]:
    """Figures of the model in the folder `run`, which are measured in one go."""
    images = images_of(row.dataset, None if row.method == REAL else run, row.number, seed, bench.device)
    return Meter(images, seed, row.extractor, bench.device, bench.partial / REAL_FEATURES).measure(parts)


@lru_cache(maxsize=1)
def images_of(dataset: str, run: Path | None, number: int, seed: int, device: torch.device) -> Images:
    """Real images and, where there is a run, synthetic ones; the next figure of a seed needs the same."""
    synthetic = None if run is None else veilset.from_pretrained(run).sample(number, seed=seed, device=device)
    return Images(synthetic, *(datasets.load(dataset, split) for split in ("train", "test")))
