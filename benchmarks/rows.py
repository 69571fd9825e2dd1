"""What to measure: rows of a suite file, or one row from the command line."""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench import typed
from measure import REAL, check_metrics

from veilset.errors import ConfigError

MANY = ("method", "dataset", "epsilon")
"""Fields of a suite row that may be lists: every combination is a row of its own."""
MEASURED = ("seeds", "metrics", "once")
"""Fields that say what is measured of a fit, and how often."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Some metrics of one method with one setting on one data set. Every seed is a fit of its own.

    The method `real` fits nothing: a seed is that of the classifiers alone.
    """

    method: str
    dataset: str
    metrics: tuple[str, ...]
    epsilon: float | None = None
    delta: float = 1e-5
    adjacency: str = "add-remove"
    unit: str = "record"
    images_per_user: int | None = None
    accounting: str = "proven"
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    once: tuple[str, ...] = ()
    """More metrics, of the first seed alone: those that take more than five minutes of a GPU."""
    number: int = 60000
    """Synthetic images that are judged."""
    extractor: str = "auto"
    """Of metrics that compare features."""

    def __post_init__(self) -> None:
        for name in ("metrics", "seeds", "once"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, values in (("metrics", (*self.metrics, *self.once)), ("seeds", self.seeds)):
            if not getattr(self, name) or len(set(values)) != len(values):
                raise ConfigError(f"{name}, none of them twice", f"{list(values)}", "Correct the row.")
        if (self.epsilon is None) != (self.accounting == "none"):
            raise ConfigError("an epsilon exactly with accounting", f"{self.epsilon}", "Correct the row.")
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", float(self.epsilon))
        # A misspelt metric or option stops a suite before its first fit, not in the middle of the night.
        check_metrics(self.method, self.metrics_of(self.seeds[0]))
        if self.method == REAL:
            self._check_real()
            return
        object.__setattr__(self, "settings", typed(self.method, self.settings))

    def _check_real(self) -> None:
        given = {"epsilon": self.epsilon, **self.settings}
        if self.epsilon is not None or self.settings:
            raise ConfigError(
                'accounting "none" and no options for the method "real", which fits nothing', f"{given}",
                "Leave them out.",
            )  # fmt: skip

    @property
    def command(self) -> str:
        """What makes this row again, alone."""
        words = ["python", "benchmarks/run.py", "--method", self.method, "--dataset", self.dataset]
        words += [] if self.epsilon is None else ["--epsilon", f"{self.epsilon:.10g}"]
        default = {item.name: item.default for item in fields(self)}
        for name in ("delta", "adjacency", "unit", "images_per_user", "accounting", "number", "extractor"):
            if getattr(self, name) != default[name]:
                words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        words += ["--seeds", *map(str, self.seeds), "--metrics", *self.metrics]
        words += ["--set", *(f"{name}={value}" for name, value in self.settings.items())] if self.settings else []
        return shlex.join(words)

    @property
    def recorded_settings(self) -> dict[str, Any]:
        """Options of the method, and the cap of images per user where there is one."""
        return (
            self.settings
            if self.images_per_user is None
            else {**self.settings, "images_per_user": self.images_per_user}
        )

    def same_figure(self, line: dict[str, Any], metric: str, protocol: str) -> bool:
        """Whether a line of results is this row's figure for `metric`."""
        settings = self.recorded_settings
        terms = (None, None) if self.method == REAL else (self.delta, self.unit)
        mine = (self.method, self.dataset, self.accounting, self.epsilon, *terms, settings)
        keys = ("method", "dataset", "accounting", "epsilon_target", "delta", "unit", "settings")
        # A published epsilon is about the paper's own neighbours, whatever the row says; real images have none.
        adjacent = self.accounting == "published" or self.method == REAL or line.get("adjacency") == self.adjacency
        same = all(line.get(key) == value for key, value in zip(keys, mine, strict=True))
        return same and adjacent and (line.get("metric"), line.get("protocol")) == (metric, protocol)

    def fingerprint(self, *context: str) -> str:
        """Name of this row's unfinished seeds; `context` is what they must not be mixed over, such as the commit.

        The same for any seeds and metrics: what is left to measure of a fit changes nothing about it.
        """
        value = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in MEASURED}
        return hashlib.sha256(json.dumps([value, context], sort_keys=True).encode()).hexdigest()[:16]

    def metrics_of(self, seed: int) -> tuple[str, ...]:
        return (*self.metrics, *self.once) if seed == self.seeds[0] else self.metrics

    def only(self, metrics: list[str]) -> Row:
        """With these of its metrics, and no more seeds than they need."""
        every, once = (tuple(metric for metric in of if metric in metrics) for of in (self.metrics, self.once))
        if every:
            return replace(self, metrics=every, once=once)
        return replace(self, metrics=once, once=(), seeds=self.seeds[:1])


def read_suite(path: Path) -> list[Row]:
    """The rows of a TOML or JSON file: `defaults` for all, `rows` with lists of methods, data sets or epsilons.

    Raises: ConfigError for a file that cannot be read or a row that cannot be run.
    """
    try:
        text = path.read_text()
        value = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        rows = [{**value.get("defaults", {}), **row} for row in value["rows"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"a suite in {path}", f"{error!r}", "See benchmarks/suites/foundation.toml.") from error
    made = [row for given in rows for row in _combinations(given)]
    fits = [row.fingerprint() for row in made]
    for row, fit in zip(made, fits, strict=True):
        if fits.count(fit) > 1:
            raise ConfigError("every fit in one row", f"two rows of {row.command}", "Put their metrics together.")
    return made


def _combinations(row: dict[str, Any]) -> list[Row]:
    unknown = sorted(set(row) - {item.name for item in fields(Row)})
    if unknown or not {"method", "dataset", "metrics"} <= set(row):
        wanted = ", ".join(item.name for item in fields(Row))
        raise ConfigError(
            f"rows with method, dataset, metrics and of {wanted}", f"{unknown or row}", "Correct the row."
        )
    lists = [[(name, value) for value in _as_list(row[name])] for name in MANY if name in row]
    return [Row(**{**row, **dict(chosen)}) for chosen in itertools.product(*lists)]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
