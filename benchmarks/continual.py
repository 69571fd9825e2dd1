"""Continual learning on SplitMNIST and SplitFashionMNIST (PSG, appendix C.5): accuracy after each of five tasks.

    python benchmarks/continual.py
    python benchmarks/continual.py --methods dp-merf --datasets mnist --epsilons 10 --seeds 0
    python benchmarks/continual.py --small --classifier cnn --samples-per-class 600

The second is one row; the third is for two CPU cores: methods as they are meant to be used there.

Every seed is a course of its own, with fresh privacy noise (which no seed controls), its own weights and its own judge.
A line of results.jsonl is the accuracy after one task, over all seeds; rows that are there already are skipped. Courses
are kept in benchmarks/.partial until their row is done: a run that was killed goes on within its task, for the same
commit and device. At the end docs/images/continual.png is drawn from the lines of results.jsonl, and from nothing else;
--figure draws it without running anything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import results
from bench import PARTIAL, Bench

import veilset
from veilset.api import pick_device
from veilset.courses.course import SETTINGS as COURSE_SETTINGS
from veilset.courses.course import SPLITS, split_partition
from veilset.courses.figure import stage_panel
from veilset.courses.running import LearnedCourse
from veilset.courses.scores import Judges
from veilset.errors import ConfigError, VeilsetError
from veilset.files import read_json, write_atomically
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim
from veilset.report.plots import StagePanel, continual
from veilset.report.vault import read_log, training_cost
from veilset.run_folder import LOG

METHODS = ("psg", "dp-merf", "sketch", "dp-sgd")
FASHION = {"mean": 0.2861, "deviation": 0.3530}
"""Constants of PSG's code; those of MNIST are the default."""
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("psg", "fashion-mnist"): FASHION,
    ("dp-sgd", "fashion-mnist"): FASHION,
    ("sketch", "mnist"): {"jitter": "handwriting"},
    ("sketch", "fashion-mnist"): {"jitter": "objects"},
}
"""By what is in the images. Then by what the machine can do; the sketch is set as in suites/sketch.toml."""
LARGE: dict[str, dict[str, Any]] = {**COURSE_SETTINGS, "sketch": {"preset": "balanced"}}
SMALL: dict[str, dict[str, Any]] = {"psg": {"preset": "small"}, "sketch": {"preset": "fast"}, "dp-sgd": {"width": 32}}
"""For two CPU cores. The classifier of dp-sgd is as narrow as the network of a small PSG."""
FIGURE = Path(__file__).parent.parent / "docs" / "images" / "continual.png"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method at one epsilon on one data set."""

    method: str
    dataset: str
    epsilon: float
    seeds: tuple[int, ...]
    classifier: str
    samples_per_class: int
    small: bool

    @property
    def settings(self) -> dict[str, Any]:
        sized = SMALL if self.small else LARGE
        return {**sized.get(self.method, {}), **SETTINGS.get((self.method, self.dataset), {})}

    @property
    def split(self) -> str:
        return f"split-{self.dataset}"

    @property
    def protocol(self) -> str:
        if self.method == "dp-sgd":
            return "class-incremental, the released classifier itself, among the classes so far"
        drawn = "all images" if self.method == "psg" else f"{self.samples_per_class} samples a class"
        return f"class-incremental, {self.classifier} on {drawn} of the tasks so far"

    @property
    def command(self) -> str:
        words = ["python", "benchmarks/continual.py", "--methods", self.method, "--datasets", self.dataset]
        words += ["--epsilons", f"{self.epsilon:g}", "--seeds", *map(str, self.seeds), *["--small"] * self.small]
        return shlex.join([*words, "--classifier", self.classifier, "--samples-per-class", str(self.samples_per_class)])

    def lines_in(self, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The newest line of each task, in order; none where one is missing, because the row is not measured then."""
        mine = (self.method, self.split, self.epsilon, self.protocol, self.settings)
        keys = ("method", "dataset", "epsilon_target", "protocol", "settings")
        found = {
            line["metric"]: line
            for line in lines
            if tuple(line[key] for key in keys) == mine and line["n"] >= len(self.seeds)
        }
        wanted = [stage_metric(stage) for stage in range(1, len(split_partition(self.dataset).tasks) + 1)]
        return [found[metric] for metric in wanted] if found.keys() >= set(wanted) else []

    def folder(self, bench: Bench) -> Path:
        value = [self.command, self.settings, bench.commit, bench.device_name]
        return bench.partial / f"continual-{hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]}"


def stage_metric(stage: int) -> str:
    return f"accuracy after task {stage}"


def main(words: list[str] | None = None) -> int:
    """Exit status 1 if a row failed; the others are run all the same."""
    options = parse(words)
    try:
        device = pick_device(options.device)
        rows = rows_of(options)
    except VeilsetError as error:
        print(error, file=sys.stderr)
        return 2
    bench = Bench(options.results, options.partial, device, options.commit or results.current_commit())
    failed = 0
    for row in [] if options.figure else rows:
        print(row.command, flush=True)
        try:
            run_row(row, bench)
        except (VeilsetError, RuntimeError) as error:  # torch raises RuntimeError, for example without memory
            failed += 1
            print(f"failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    draw(rows, results.read(bench.results), options.out)
    return 1 if failed else 0


def run_row(row: Row, bench: Bench) -> None:
    """Learns what is missing of a row and adds a line for each task."""
    if row.lines_in(results.read(bench.results)):
        print("already measured", flush=True)
        return
    seeds = [finished_seed(row, seed, bench) for seed in row.seeds]
    for stage in range(len(seeds[0]["accuracies"])):
        results.append(
            bench.results, method=row.method, dataset=row.split, accounting="proven", claim=seeds[-1]["claim"],
            epsilon_target=row.epsilon, protocol=row.protocol, settings=row.settings,
            metric=stage_metric(stage + 1), values=[seed["accuracies"][stage] for seed in seeds],
            seeds=row.seeds, seconds=sum(seed["seconds"] for seed in seeds), device=bench.device_name,
            commit=bench.commit, command=row.command,
        )  # fmt: skip
    shutil.rmtree(row.folder(bench))


def finished_seed(row: Row, seed: int, bench: Bench) -> dict[str, Any]:
    """Accuracies and claim of one course; one that was killed goes on."""
    folder = row.folder(bench)
    path, course = folder / f"{seed}.json", folder / str(seed)
    if path.is_file():
        print(f"seed {seed}: kept from an earlier run", flush=True)
        return read_json(path, "a finished seed")
    begun = (course / "vault" / "course.json").is_file()
    if not begun:
        shutil.rmtree(course, ignore_errors=True)
    learned = veilset.continual(
        datasets.load(row.dataset, "train"), method=row.method, epsilon=row.epsilon, seed=seed, out=course,
        test=datasets.load(row.dataset, "test"), resume=begun, device=bench.device, **row.settings,
        judges=Judges(classifier=row.classifier, seeds=(seed,), samples_per_class=row.samples_per_class),
    )  # fmt: skip
    if any(score.touched_private_data for score in learned.scores):
        raise ConfigError("public benchmark images", "private ones", "Results are published: measure benchmarks only.")
    value = {
        "claim": learned.claim.to_json(), "accuracies": [score.mean for score in learned.scores],
        "seconds": seconds_of(learned),
    }  # fmt: skip
    write_atomically(path, json.dumps(value).encode())
    shutil.rmtree(course)
    print(f"seed {seed}: {value['accuracies']} in {value['seconds']:.0f} s", flush=True)
    return value


def seconds_of(learned: LearnedCourse) -> float:
    """Of all tasks and all judges, whatever was done in an earlier sitting included."""
    tasks = range(1, len(learned.course.partition.tasks) + 1)
    fits = [training_cost(read_log(learned.folder.task(task).vault / LOG)[0])[0] for task in tasks]
    return sum(seconds or 0.0 for seconds in fits) + sum(score.details["seconds"] for score in learned.scores)


def draw(rows: Sequence[Row], lines: Sequence[dict[str, Any]], out: Path) -> None:
    """A panel for each data set and epsilon with all methods that have results; no file where there are none."""
    panels = []
    for dataset, epsilon in dict.fromkeys((row.dataset, row.epsilon) for row in rows):
        mine = [row for row in rows if (row.dataset, row.epsilon) == (dataset, epsilon)]
        found = {row.method: measured for row in mine if (measured := row.lines_in(lines))}
        if found:
            panels.append(panel_of(dataset, found))
    if panels:
        write_atomically(out, continual(panels, image_format="png"))
        print(f"wrote {out}", flush=True)


def panel_of(dataset: str, found: dict[str, list[dict[str, Any]]]) -> StagePanel:
    first = next(iter(found.values()))[0]
    claim = Claim(
        epsilon=first["epsilon_target"], delta=first["delta"], adjacency=Adjacency(first["adjacency"]),
        unit=Unit(first["unit"]), accountant="",
    )  # fmt: skip
    accuracies = {method: [(line["mean"], line["sd"]) for line in lines] for method, lines in found.items()}
    return stage_panel(f"split-{dataset}", claim, split_partition(dataset), accuracies)


def rows_of(options: argparse.Namespace) -> list[Row]:
    Judges(classifier=options.classifier, samples_per_class=options.samples_per_class)  # refuses what cannot judge
    return [
        Row(
            method=method, dataset=dataset, epsilon=epsilon, seeds=tuple(options.seeds),
            classifier=options.classifier, samples_per_class=options.samples_per_class, small=options.small,
        )
        for dataset in options.datasets
        for epsilon in options.epsilons
        for method in options.methods
    ]  # fmt: skip


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--datasets", nargs="+", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0], help="of each task, and of all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--classifier", default="convnet-aug", help="who judges released images")
    parser.add_argument("--samples-per-class", type=int, default=6000, help="by which a generator is judged")
    parser.add_argument("--small", action="store_true", help="presets for two CPU cores")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--partial", type=Path, default=PARTIAL, help="folder for courses of unfinished rows")
    parser.add_argument("--commit", help="where there is no git checkout")
    parser.add_argument("--figure", action="store_true", help="draw the figure and run nothing")
    parser.add_argument("--out", type=Path, default=FIGURE, help="where to draw it")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
