"""Runs rows of (method, data set, epsilon, ...) and adds their figures to results.jsonl.

    python benchmarks/run.py --suite benchmarks/suites/foundation.toml
    python benchmarks/run.py --method dp-merf --dataset mnist --epsilon 1 --seeds 0 1 2 --metrics gen2real/cnn

Every seed is a fit of its own with fresh privacy noise (which no seed controls) and its own weights and classifiers.
Rows that results.jsonl already has with as many seeds are skipped. Each fit and each figure is kept in
benchmarks/.partial until its row is done: a run that was killed goes on where it was, for the same commit and device. A
metric that needs a package this machine lacks fails alone; the others of its row are recorded.

Many fits leave a large GPU half idle: --at-once 3 runs three seeds side by side, of one row or of several, in processes
of their own, which the GPU serves in turn, or truly together where its multi-process service runs. Each is slower than
it would be alone, so the line says so beside the device; unfinished seeds of another --at-once are not taken over.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import datasets
import results
import torch
from measure import REAL, Images, Meter, combined, parts_of, protocol
from rows import Row, read_suite

import veilset
from veilset.api import pick_device
from veilset.errors import ConfigError, MissingExtra, VeilsetError
from veilset.files import read_json, write_atomically

PARTIAL = Path(__file__).parent / ".partial"
REAL_FEATURES = "real"
"""Folder for features of real images, beside the unfinished rows: every seed and row is compared with the same ones."""


@dataclass(frozen=True)
class Bench:
    """Where figures go, and on what machine and code they are made."""

    results: Path
    partial: Path
    device: torch.device
    commit: str
    again: bool = False
    at_once: int = 1
    """Seeds that are fitted and judged side by side."""

    @property
    def device_name(self) -> str:
        shared = f", {self.at_once} fits at once" if self.at_once > 1 else ""
        return results.device_name(self.device) + shared


@dataclass(frozen=True)
class Begun:
    """A row with the metrics it lacked, and how to wait for its seeds."""

    row: Row
    seeds: Callable[[], list[dict[str, Any]]]


def main(words: list[str] | None = None) -> int:
    """Exit status 1 if a row failed; the others are run all the same."""
    options = parse(words)
    try:
        rows = read_suite(options.suite) if options.suite else [row_from(options)]
        device = pick_device(options.device)
    except VeilsetError as error:
        print(error, file=sys.stderr)
        return 2
    bench = Bench(
        options.results, options.partial, device, options.commit or results.current_commit(), options.again,
        options.at_once,
    )  # fmt: skip
    failed = 0
    with processes(bench) as pool:
        # Side by side all seeds are queued before the first is waited for, so that no process idles between rows.
        queued = [begin(row, bench, pool) for row in rows] if pool else map(begin, rows, repeat(bench), repeat(None))
        for number, begun in enumerate(queued, start=1):
            print(f"row {number} of {len(rows)}: {rows[number - 1].command}", flush=True)
            try:
                finish(begun, bench)
            except (VeilsetError, RuntimeError) as error:  # torch raises RuntimeError, for example without memory
                failed += 1
                print(f"row {number} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def processes(bench: Bench) -> AbstractContextManager[ProcessPoolExecutor | None]:
    """For seeds that run side by side; none for one after the other."""
    if bench.at_once == 1:
        return nullcontext()
    # Fresh processes: a fork of this one could not use CUDA, and would share its threads.
    return ProcessPoolExecutor(bench.at_once, mp_context=get_context("spawn"))


def begin(row: Row, bench: Bench, pool: ProcessPoolExecutor | None) -> Begun | None:
    """Queues the seeds of what a row lacks; None where it lacks nothing."""
    try:
        missing = [metric for metric in row.metrics_of(row.seeds[0]) if bench.again or not recorded(row, metric, bench)]
    except VeilsetError as error:
        return Begun(row, partial(fail, error))
    if not missing:
        return None
    row = row.only(missing)
    work = (row, folder_of(row, bench), bench)
    if pool is None:
        return Begun(row, lambda: [finished_seed(seed, *work) for seed in row.seeds])
    running = [pool.submit(finished_seed, seed, *work) for seed in row.seeds]
    return Begun(row, lambda: [seed.result() for seed in running])


def fail(error: VeilsetError) -> list[dict[str, Any]]:
    """Of a row that cannot begin: when its turn comes."""
    raise error


def finish(begun: Begun | None, bench: Bench) -> None:
    """Waits for the seeds of a row and adds a line for each of its metrics.

    Raises: ConfigError, after the other lines were added, where a metric needs a package that is not installed.
    """
    if begun is None:
        print("already measured", flush=True)
        return
    row, seeds = begun.row, begun.seeds()
    metrics = row.metrics_of(row.seeds[0])
    lost = [metric for metric in metrics if not set(parts_of(row.method, metric)) <= set(seeds[0]["parts"])]
    for metric in metrics:
        if metric not in lost:
            add_line(row.only([metric]), metric, seeds, bench)
    shutil.rmtree(folder_of(row, bench))
    if lost:
        raise ConfigError(
            "a figure for every metric of the row", f"none for {', '.join(lost)}", "\n  ".join(seeds[0]["lacking"])
        )


def folder_of(row: Row, bench: Bench) -> Path:
    return bench.partial / row.fingerprint(bench.commit, bench.device_name)


def words_of(row: Row, metric: str, bench: Bench) -> str:
    return protocol(row.method, metric, row.number, row.extractor, bench.device)


def add_line(row: Row, metric: str, seeds: list[dict[str, Any]], bench: Bench) -> None:
    seeds = seeds[: len(row.seeds)]
    figures = [combined(row.method, metric, seed["parts"]) for seed in seeds]
    results.append(
        bench.results, method=row.method, dataset=row.dataset, accounting=row.accounting,
        claim=seeds[-1]["claim"], epsilon_target=row.epsilon, protocol=words_of(row, metric, bench),
        settings=row.recorded_settings, metric=metric, values=[value for value, _ in figures], seeds=row.seeds,
        seconds=sum(seed["fit_seconds"] for seed in seeds) + sum(seconds for _, seconds in figures),
        device=bench.device_name, commit=bench.commit, command=row.command,
    )  # fmt: skip


def recorded(row: Row, metric: str, bench: Bench) -> bool:
    row = row.only([metric])
    lines, words = results.read(bench.results), words_of(row, metric, bench)
    return any(row.same_figure(line, metric, words) and line["n"] >= len(row.seeds) for line in lines)


def finished_seed(seed: int, row: Row, folder: Path, bench: Bench) -> dict[str, Any]:
    """The figures of one seed: those of an earlier, killed run, and what it lacks measured now."""
    path, run = folder / f"{seed}.json", folder / f"{seed}.run"

    def keep(value: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(value).encode())

    value = read_json(path, "an unfinished seed") if path.is_file() else None
    if value is not None:
        print(f"seed {seed}: {len(value['parts'])} figures kept from an earlier run", flush=True)
    elif row.method == REAL:
        value = {"claim": None, "fit_seconds": 0.0, "parts": {}}
    else:
        shutil.rmtree(run, ignore_errors=True)  # of a fit that was killed
        value = fit_seed(row, seed, run, bench)
    keep(value)
    measure_parts(row, seed, run, value, keep, bench)
    keep(value)
    shutil.rmtree(run, ignore_errors=True)
    return value


def fit_seed(row: Row, seed: int, run: Path, bench: Bench) -> dict[str, Any]:
    """Fits the model of a seed into the folder `run`."""
    started = time.perf_counter()
    model = veilset.fit(
        datasets.load(row.dataset, "train"), method=row.method, epsilon=row.epsilon, delta=row.delta,
        adjacency=row.adjacency, unit=row.unit, images_per_user=row.images_per_user, accounting=row.accounting,
        seed=seed, device=bench.device, out=run, **row.settings,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    print(f"seed {seed}: {model.claim} in {seconds:.1f} s", flush=True)
    return {"claim": model.claim.to_json(), "fit_seconds": seconds, "parts": {}}


def measure_parts(
    row: Row, seed: int, run: Path, value: dict[str, Any], keep: Callable[[dict[str, Any]], None], bench: Bench
) -> None:
    """Adds to `value` the figures that it lacks; `keep` is called after each."""
    value["lacking"] = []
    wanted = dict.fromkeys(part for metric in row.metrics_of(seed) for part in parts_of(row.method, metric))
    missing = [part for part in wanted if part not in value["parts"]]
    if not missing:
        return
    synthetic = None
    if row.method != REAL:
        synthetic = veilset.from_pretrained(run).sample(row.number, seed=seed, device=bench.device)
    images = Images(synthetic, *(datasets.load(row.dataset, split) for split in ("train", "test")))
    meter = Meter(images, seed, row.extractor, bench.device, bench.partial / REAL_FEATURES)
    for found in meter.measure(missing):
        if isinstance(found, MissingExtra):
            value["lacking"].append(str(found))
            print(f"seed {seed}: {found}", file=sys.stderr, flush=True)
            continue
        value["parts"] |= found
        keep(value)
        for part, (figure, seconds) in found.items():
            print(f"seed {seed}: {part} {figure:.4f} in {seconds:.1f} s", flush=True)


def row_from(options: argparse.Namespace) -> Row:
    names = ("method", "dataset", "epsilon", "delta", "adjacency", "unit", "images_per_user", "accounting", "metrics")
    given = {name: getattr(options, name) for name in (*names, "seeds", "number", "extractor")}
    settings = dict(pair.split("=", 1) for pair in options.set)
    return Row(**given, settings=settings)


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, help="TOML or JSON file of rows; instead of the options of one row")
    parser.add_argument("--method")
    parser.add_argument("--dataset", choices=datasets.NAMES)
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--adjacency", default="add-remove", choices=("add-remove", "replace"))
    parser.add_argument("--unit", default="record", choices=("record", "user"))
    parser.add_argument("--images-per-user", type=int)
    parser.add_argument("--accounting", default="proven", choices=("proven", "published", "none"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--number", type=int, default=60000, help="synthetic images that are judged")
    parser.add_argument("--metrics", nargs="+", default=["gen2real/cnn"])
    parser.add_argument("--extractor", default="auto", help="of metrics that compare features")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="options of the method")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="seeds that run side by side")
    parser.add_argument("--again", action="store_true", help="measure rows that results.jsonl already has, too")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--partial", type=Path, default=PARTIAL, help="folder for fits and figures of unfinished rows")
    parser.add_argument("--commit", help="where there is no git checkout")
    options = parser.parse_args(words)
    if not options.suite and not (options.method and options.dataset):
        parser.error("give --suite, or --method and --dataset")
    if options.at_once < 1:
        parser.error("--at-once takes a number from 1")
    if any("=" not in pair for pair in options.set):
        parser.error("--set takes NAME=VALUE")
    return options


if __name__ == "__main__":
    sys.exit(main())
