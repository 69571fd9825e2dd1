"""Several runs side by side, as plain values: what each claims, what it scored and what it cost.

A comparison is made by the owner, from vaults: scores and seconds on private images are in it. Runs share a group only
if their epsilons mean the same (accounting, delta, adjacency, unit) and their images look the same. Proven and
published epsilons are separate columns everywhere, and runs of the two accountings are never in one group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from veilset.artifact import MANIFEST, parse_json, read_release
from veilset.errors import MissingExtra, RunError, VeilsetError
from veilset.evaluate.scores import Score
from veilset.methods.base import get_method, make_config
from veilset.model import from_pretrained, release_folder
from veilset.privacy.claim import Claim, shown
from veilset.report.content import flattened
from veilset.report.scores import column_name, noisy_columns
from veilset.report.vault import read_log, read_scores, training_cost
from veilset.run_folder import LOG, RunFolder
from veilset.score_release import NOISY_SCORES, NoisyScores, benchmark_in, read_noisy_scores, told_by_scores
from veilset.sharing import verify

Basis = Literal["proven", "published", "none"]
ORDER: tuple[Basis, ...] = ("proven", "published", "none")


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One finished run. Its claim was checked against its ledger."""

    path: Path
    method: str
    claim: Claim
    accounting: str
    settings: dict[str, Any]
    """Those that are not the method's defaults."""
    data: str
    class_names: tuple[str, ...]
    scores: tuple[Score, ...] = ()
    noisy: tuple[NoisyScores, ...] = ()
    """Purchases, which may be shared."""
    seconds: float | None = None
    """Training time over all its sittings; None where the vault is not at hand."""
    device: str | None = None
    picture: bytes | None = field(default=None, repr=False)

    @property
    def basis(self) -> Basis:
        if self.claim.epsilon is None:
            return "none"
        return "proven" if self.claim.published is None else "published"

    @property
    def benchmark(self) -> bool:
        return benchmark_in(self.claim.stamps) is not None

    @property
    def told(self) -> str:
        """What its scores tell beside their numbers."""
        return told_by_scores(self.claim, public=not all(score.touched_private_data for score in self.scores))

    @property
    def private(self) -> bool:
        """Whether what is said here about the run may not be shared: scores on private images, or times on them."""
        timed = self.seconds is not None and not self.benchmark
        return timed or any(score.touched_private_data for score in self.scores)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    path: Path
    state: Literal["unfinished", "broken", "not a run"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that may be compared: the same accounting, epsilon (rounded up), terms and kind of images."""

    basis: Basis
    epsilon: str | None
    terms: str
    data: str
    runs: tuple[ComparedRun, ...]

    @property
    def title(self) -> str:
        """The proven epsilon first, also where a published one made the group: neither may outshine the other."""
        if self.basis == "none":
            return "NOT PRIVATE: no epsilon can be claimed"
        if self.basis == "proven":
            return f"Proven epsilon {self.epsilon}"
        proven = sorted({run.claim.epsilon or 0.0 for run in self.runs})
        ends = list(dict.fromkeys(shown(epsilon) for epsilon in (proven[0], proven[-1])))
        words = sorted({run.claim.published.status for run in self.runs if run.claim.published is not None})
        return f"Proven epsilon {' to '.join(ends)}; published epsilon {self.epsilon}, {' or '.join(words)}"

    @property
    def columns(self) -> list[str]:
        """Every metric that one of the runs has, in order of appearance."""
        exact = [column_name(score) for run in self.runs for score in run.scores]
        return list(dict.fromkeys([*exact, *(name for run in self.runs for name in noisy_columns(run.noisy))]))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    groups: tuple[Group, ...]
    skipped: tuple[Skipped, ...]

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for group in self.groups for run in group.runs]

    @property
    def private(self) -> bool:
        return any(run.private for run in self.runs)

    @property
    def told(self) -> str:
        """What some of the scores tell beside their numbers."""
        return next((run.told for run in self.runs if run.told), "")

    def to_json(self) -> dict[str, Any]:
        groups = [
            {
                "accounting": group.basis,
                "epsilon": group.epsilon,
                "terms": group.terms,
                "data": group.data,
                "runs": [_run_json(run) for run in group.runs],
            }
            for group in self.groups
        ]
        skipped = [{**asdict(item), "path": str(item.path)} for item in self.skipped]
        return {"private": self.private, "groups": groups, "skipped": skipped}


def compare_runs(paths: Iterable[Path]) -> Comparison:
    """Reads and checks every run. One that cannot be compared is listed with the reason.

    Raises: RunError if none of them is a finished run.
    """
    found: list[ComparedRun] = []
    skipped: list[Skipped] = []
    for path in _distinct(paths):
        run = _read(path)
        if isinstance(run, ComparedRun):
            found.append(run)
        else:
            skipped.append(run)
    if not found:
        listed = "; ".join(f"{item.path}: {item.state}" for item in skipped[:10]) or "no path"
        raise RunError("at least one finished run to compare", listed, "`veilset fit --out` writes run folders.")
    return Comparison(groups=tuple(_grouped(found)), skipped=tuple(skipped))


def _distinct(paths: Iterable[Path]) -> list[Path]:
    return list({path.resolve(): path for path in paths}.values())


def _read(path: Path) -> ComparedRun | Skipped:
    folder = RunFolder(path)
    release = release_folder(path)
    if not (release / MANIFEST).is_file():
        if folder.plan_path.is_file():
            return Skipped(path=path, state="unfinished", reason="no release yet; `veilset fit --resume` continues it")
        return Skipped(path=path, state="not a run", reason="neither vault/plan.json nor a release in it")
    try:
        verify(path)
        return _finished(path, release, folder.vault)
    except MissingExtra:
        raise
    except (VeilsetError, OSError) as error:
        reason = f"expected {error.expected}, found {error.found}" if isinstance(error, VeilsetError) else f"{error}"
        return Skipped(path=path, state="broken", reason=reason)


def _finished(path: Path, release: Path, vault: Path) -> ComparedRun:
    files = read_release(release)
    config = parse_json(files["config.json"], "config.json")
    model = from_pretrained(path)
    seconds, device = training_cost(read_log(vault / LOG)[0])
    kind = f"{model.spec.height} × {model.spec.width} {'grey' if model.spec.channels == 1 else 'RGB'}"
    name = benchmark_in(model.claim.stamps) or "private images"
    return ComparedRun(
        path=path,
        method=model.method,
        claim=model.claim,
        accounting=str(config.get("accounting")),
        settings=_changed_settings(model.method, config["config"], str(config.get("accounting"))),
        data=f"{name}, {kind}, {model.spec.num_classes} classes ({_first(model.spec.class_names)})",
        class_names=model.spec.class_names,
        scores=tuple(read_scores(vault)),
        noisy=tuple(read_noisy_scores(files[NOISY_SCORES])) if NOISY_SCORES in files else (),
        seconds=seconds,
        device=device,
        picture=files.get("samples.png"),
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _changed_settings(name: str, config: dict[str, Any], accounting: str) -> dict[str, Any]:
    method = get_method(name)
    default = make_config(method, {}, published=accounting == "published")
    # Through JSON, as the release holds it: a tuple of defaults must equal the list it was written as.
    defaults = dict(flattened(json.loads(json.dumps(asdict(default)))))
    return {key: value for key, value in flattened(config) if value != defaults.get(key)}


def _grouped(runs: Sequence[ComparedRun]) -> list[Group]:
    groups: dict[tuple[Any, ...], list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    return [
        Group(
            basis=key[0],
            epsilon=None if key[1] is None else shown(key[1]),
            terms=key[2],
            data=key[3],
            runs=tuple(sorted(groups[key], key=lambda run: (run.method, str(run.path)))),
        )
        for key in sorted(groups, key=lambda key: (ORDER.index(key[0]), key[3], key[2], key[1] or 0.0))
    ]


def _key(run: ComparedRun) -> tuple[Basis, float | None, str, str, tuple[str, ...]]:
    claim = run.claim
    terms = f"delta {claim.delta:g}, {claim.adjacency} of one {claim.unit}"
    if run.basis == "none":
        return "none", None, "", run.data, run.class_names
    epsilon = claim.epsilon if claim.published is None else claim.published.epsilon
    return run.basis, rounded_up(epsilon or 0.0), terms, run.data, run.class_names


def rounded_up(epsilon: float) -> float:
    """Two digits, never below the true one: runs that were calibrated to one target land on one value.

    >>> rounded_up(0.99999), rounded_up(9.93), rounded_up(610.3)
    (1.0, 10.0, 620.0)
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        return epsilon
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
    return float(f"{math.ceil(epsilon / step - 1e-9) * step:.2g}")


def _run_json(run: ComparedRun) -> dict[str, Any]:
    published = run.claim.published
    return {
        "run": str(run.path),
        "method": run.method,
        "epsilon_proven": run.claim.epsilon,
        "epsilon_published": None if published is None else published.epsilon,
        "status": None if published is None else published.status,
        "accounting": run.accounting,
        "settings": run.settings,
        "scores": [score.to_json() for score in run.scores],
        "noisy_scores": [one._asdict() for bought in run.noisy for one in bought.accuracies],
        "seconds": run.seconds,
        "device": run.device,
        "private": run.private,
    }
