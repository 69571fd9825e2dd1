"""Runs rows of (method, data set, epsilon, ...) and adds their figures to results.jsonl.

    python benchmarks/run.py --suite benchmarks/suites/foundation.toml
    python benchmarks/run.py --method dp-merf --dataset mnist --epsilon 1 --seeds 0 1 2 --metrics gen2real/cnn

Every seed is a fit of its own with fresh privacy noise (which no seed controls) and its own weights and classifiers.
Rows that results.jsonl already has with as many seeds are skipped. Each fit and each figure is kept in
benchmarks/.partial until its row is done: a run that was killed goes on where it was, for the same commit and device. A
metric that needs a package this machine lacks fails alone; the others of its row are recorded.

Many fits leave a large GPU half idle: --at-once 3 makes three fits or figures side by side, of one row or of several,
in processes of their own, which the GPU serves in turn, or truly together where its multi-process service runs;
classifiers of scikit-learn, which know no GPU, run beside them. Each is slower than it would be alone, so the line says
so beside the device; unfinished seeds of another --at-once are not taken over.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import results
from bench import PARTIAL, Bench, setting
from jobs import Job, run_jobs
from measure import combined, protocol
from rows import Row, read_suite
from seed_runs import SeedRun, leaves_the_device

from veilset.api import pick_device
from veilset.errors import ConfigError, MissingExtra, VeilsetError


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
    runs = [RowRun(f"row {number} of {len(rows)}", row, bench) for number, row in enumerate(rows, start=1)]
    run_jobs([job for run in runs for job in run.begin()], bench.at_once)
    return 1 if any(run.failed for run in runs) else 0


class RowRun:
    """A row on its way: its seeds, and the lines that are added as soon as their figures are there."""

    def __init__(self, name: str, row: Row, bench: Bench) -> None:
        self.name, self.row, self.bench, self.failed = name, row, bench, False
        self.seeds: list[SeedRun] = []
        self.missing: dict[str, str] = {}
        """Metrics without a line, each with the words of its protocol."""

    def begin(self) -> list[Job]:
        """The first jobs of what the results lack."""
        print(f"{self.name}: {self.row.command}", flush=True)
        try:
            words = {metric: self._words(metric) for metric in self.row.metrics_of(self.row.seeds[0])}
        except VeilsetError as error:
            self._fail(error)
            return []
        self.missing = {
            metric: one for metric, one in words.items() if self.bench.again or not self._recorded(metric, one)
        }
        if not self.missing:
            print("already measured", flush=True)
            return []
        self.row = self.row.only(list(self.missing))
        self.seeds = [SeedRun(self.name, self.row, seed, self._folder, self.bench) for seed in self.row.seeds]
        jobs = [job for seed in self.seeds for job in self._jobs(seed)]
        return jobs or self._after()

    def _jobs(self, seed: SeedRun) -> list[Job]:
        if seed.fit is not None:
            return [Job(seed.fit, partial(self._fitted, seed), self._goes_on)]
        return [
            Job(work, partial(self._measured, seed, parts), self._goes_on, leaves_the_device(parts, self.bench))
            for parts, work in seed.figures()
        ]

    def _goes_on(self) -> bool:
        return not self.failed

    def _fitted(self, seed: SeedRun, future: Future[Any]) -> list[Job]:
        return self._jobs(seed) if self._took(seed.keep_fit, future) else []

    def _measured(self, seed: SeedRun, parts: list[str], future: Future[Any]) -> list[Job]:
        if isinstance(error := future.exception(), MissingExtra):
            seed.lacking.update(dict.fromkeys(parts, str(error)))
            print(f"{seed.name}: {error}", file=sys.stderr, flush=True)
        elif not self._took(seed.keep_figures, future):
            return []
        return self._after()

    def _took(self, keep: Callable[[Any], None], future: Future[Any]) -> bool:
        try:
            keep(future.result())
        except (VeilsetError, RuntimeError) as error:  # torch raises RuntimeError, for example without memory
            self._fail(error)
        return not self.failed

    def _after(self) -> list[Job]:
        """Adds the lines that can be added; after the last one the unfinished seeds are of no more use."""
        for metric in [metric for metric in self.missing if self._complete(metric)]:
            words = self.missing.pop(metric)
            add_line(self.row.only([metric]), metric, words, [seed.value for seed in self.seeds], self.bench)
        if any(seed.fit or seed.figures() for seed in self.seeds):
            return []
        shutil.rmtree(self._folder, ignore_errors=True)  # there is none where nothing could be measured
        if self.missing:
            todo = "\n  ".join(dict.fromkeys(text for seed in self.seeds for text in seed.lacking.values()))
            self._fail(ConfigError("a figure for every metric of the row", f"none for {', '.join(self.missing)}", todo))
        return []

    def _complete(self, metric: str) -> bool:
        return all(seed.has(metric) for seed in self.seeds if metric in self.row.metrics_of(seed.seed))

    def _fail(self, error: Exception) -> None:
        self.failed = True
        print(f"{self.name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def _words(self, metric: str) -> str:
        return protocol(self.row.method, metric, self.row.number, self.row.extractor, self.bench.device)

    def _recorded(self, metric: str, words: str) -> bool:
        row, lines = self.row.only([metric]), results.read(self.bench.results)
        return any(row.same_figure(line, metric, words) and line["n"] >= len(row.seeds) for line in lines)

    @property
    def _folder(self) -> Path:
        return self.bench.partial / self.row.fingerprint(self.bench.commit, self.bench.device_name)


def add_line(row: Row, metric: str, words: str, seeds: list[dict[str, Any]], bench: Bench) -> None:
    seeds = seeds[: len(row.seeds)]
    figures = [combined(row.method, metric, seed["parts"]) for seed in seeds]
    results.append(
        bench.results, method=row.method, dataset=row.dataset, accounting=row.accounting,
        claim=seeds[-1]["claim"], epsilon_target=row.epsilon, protocol=words, settings=row.recorded_settings,
        metric=metric, values=[value for value, _ in figures], seeds=row.seeds,
        seconds=sum(seed["fit_seconds"] for seed in seeds) + sum(seconds for _, seconds in figures),
        device=bench.device_name, commit=bench.commit, command=row.command,
    )  # fmt: skip


def row_from(options: argparse.Namespace) -> Row:
    names = ("method", "dataset", "epsilon", "delta", "adjacency", "unit", "images_per_user", "accounting", "metrics")
    given = {name: getattr(options, name) for name in (*names, "seeds", "number", "extractor")}
    return Row(**given, settings=dict(options.set))


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
    parser.add_argument(
        "--set", nargs="*", type=setting, default=[], metavar="NAME=VALUE", help="options of the method"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="fits and figures side by side")
    parser.add_argument("--again", action="store_true", help="measure rows that results.jsonl already has, too")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--partial", type=Path, default=PARTIAL, help="folder for fits and figures of unfinished rows")
    parser.add_argument("--commit", help="where there is no git checkout")
    options = parser.parse_args(words)
    if not options.suite and not (options.method and options.dataset):
        parser.error("give --suite, or --method and --dataset")
    if options.at_once < 1:
        parser.error("--at-once takes a number from 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
