"""A comparison as one self-contained HTML page for the owner."""

from __future__ import annotations

import base64
import itertools
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from veilset.artifact import MANIFEST
from veilset.errors import ConfigError
from veilset.files import write_atomically
from veilset.privacy.claim import shown
from veilset.report.compare import ComparedRun, Comparison, Group, rounded_up
from veilset.report.pages import render
from veilset.report.plots import Curve, Point, UtilityPanel, privacy_utility
from veilset.report.scores import column_name, noisy_columns, noisy_text, value_text
from veilset.wording import time_taken

NAME_LENGTH = 40
"""Of a curve: as many characters as a panel is wide."""
MARK = b'<meta name="generator" content="veilset compare">'
"""By which an earlier comparison, which may be replaced, is told from any other file."""


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Writes the page; readable by the owner alone where anything on it is private.

    Raises: ConfigError rather than replacing a file that is no earlier comparison, or adding one to a release.
    """
    _check_out(out)
    page = render("compare.html", comparison_content(comparison))
    write_atomically(out, page, mode=0o600 if comparison.private else 0o644)


def _check_out(out: Path) -> None:
    if out.suffix != ".html":
        raise ConfigError("a page as .html", f"{out.name}", "Choose another name for --out.")
    if (out.parent / MANIFEST).exists():
        raise ConfigError("a page outside of a release", f"{out}", "A file more would break it: choose another folder.")
    if not os.path.isdir(out.parent):
        raise ConfigError("a folder to write to", f"{out.parent} is none", "Create it first.")
    if out.exists() and (not out.is_file() or MARK not in out.read_bytes()[:4096]):
        raise ConfigError("a new file, or an earlier comparison", f"{out} is another", "Choose another path.")


def comparison_content(comparison: Comparison) -> dict[str, Any]:
    """Everything the template shows, in its order."""
    return {
        "private": comparison.private,
        "noisy": any(run.noisy for run in comparison.runs),
        "told": comparison.told,
        "count": len(comparison.runs),
        "groups": [_group(group) for group in comparison.groups],
        "figures": [
            {"title": title, "svg": _base64(privacy_utility(panels))} for title, panels in utility_figures(comparison)
        ],
        "pictures": [_picture(run, run.picture) for run in comparison.runs if run.picture is not None],
        "skipped": [[str(item.path), item.state, item.reason] for item in comparison.skipped],
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "basis": group.basis,
        "title": group.title,
        "terms": group.terms,
        "data": group.data,
        "columns": group.columns,
        "rows": [_row(run, group.columns) for run in group.runs],
    }


def _row(run: ComparedRun, columns: Sequence[str]) -> dict[str, Any]:
    published = run.claim.published
    return {
        "path": str(run.path),
        "method": run.method,
        "proven": "none" if run.claim.epsilon is None else shown(run.claim.epsilon),
        "published": None if published is None else f"{published.epsilon:.4g}",
        "status": None if published is None else published.status,
        "scores": [score_cell(run, column) for column in columns],
        "seconds": cost_text(run),
        "device": run.device or "not known",
        "settings": settings_text(run),
    }


def _picture(run: ComparedRun, png: bytes) -> dict[str, str]:
    claim = "NOT PRIVATE" if run.claim.epsilon is None else f"proven epsilon {shown(run.claim.epsilon)}"
    if run.claim.published is not None:
        claim += f", published {run.claim.published.epsilon:.4g} ({run.claim.published.status})"
    return {"method": run.method, "path": str(run.path), "claim": claim, "png": _base64(png)}


def score_cell(run: ComparedRun, column: str) -> list[dict[str, Any]]:
    """Value, spread and privacy of one metric, of each purchase where it was bought; nothing where it is not known."""
    for score in run.scores:
        if column_name(score) == column:
            spread = "" if score.sd is None else f"± {value_text(score.sd, score.metric)}"
            value = value_text(score.mean, score.metric)
            return [_measured(value, spread, score.n, private=score.touched_private_data)]
    bought = noisy_columns(run.noisy).get(column, [])
    return [_measured(*noisy_text(one), seeds, purchase=name) for one, seeds, name in bought]


def _measured(value: str, spread: str, n: int, *, private: bool = False, purchase: str = "") -> dict[str, Any]:
    return {"value": value, "spread": spread, "n": n, "private": private, "purchase": purchase}


def cost_text(run: ComparedRun) -> str:
    return "not known" if run.seconds is None else time_taken(run.seconds)


def settings_text(run: ComparedRun) -> str:
    return ", ".join(f"{name}={value}" for name, value in run.settings.items()) or "defaults"


def utility_figures(comparison: Comparison) -> list[tuple[str, list[UtilityPanel]]]:
    """One figure for each kind of images and metric of which there are two or more points.

    Runs without noise have no epsilon, so no point. Panels of one figure differ in what their epsilons are about.
    """
    figures = []
    for data, names in dict.fromkeys((run.data, run.class_names) for run in comparison.runs):
        groups = [
            g for g in comparison.groups if g.basis != "none" and (g.data, g.runs[0].class_names) == (data, names)
        ]
        for column in dict.fromkeys(column for group in groups for column in group.columns):
            panels = [
                _panel(data, column, curves)
                for terms in dict.fromkeys(group.terms for group in groups)
                if (curves := _curves([group for group in groups if group.terms == terms], column, terms))
            ]
            if sum(len(curve.points) for panel in panels for curve in panel.curves) >= 2:
                figures.append((f"{column}, {data}", panels))
    return figures


def _panel(data: str, column: str, curves: Sequence[Curve]) -> UtilityPanel:
    metric = column.partition(" (")[0]  # protocol and extractor stand in the caption
    return UtilityPanel(title=data.partition(",")[0], metric=metric, curves=tuple(curves))


def _curves(groups: Iterable[Group], column: str, terms: str) -> list[Curve]:
    runs = [run for group in groups for run in group.runs if _point(run, column) is not None]
    names = _curve_names(runs)
    series: dict[tuple[str, str | None], dict[float, list[Point]]] = {}
    for run, point in ((run, _point(run, column)) for run in runs):
        if point is not None:
            status = run.claim.published.status if run.claim.published is not None else None
            places = series.setdefault((names[_identity(run)], status), {})
            places.setdefault(rounded_up(point.x), []).append(point)
    return [
        Curve(
            method=label, points=tuple(_merged(x, points) for x, points in places.items()), terms=terms, status=status
        )
        for (label, status), places in series.items()
    ]


def _identity(run: ComparedRun) -> tuple[str, str]:
    """Runs that are one curve have these in common, to the last setting."""
    return run.method, settings_text(run)


def _curve_names(runs: Sequence[ComparedRun]) -> dict[tuple[str, str], str]:
    """Short names, different for different settings: what tells the runs of a method apart stands first."""
    names: dict[tuple[str, str], str] = {}
    for run in runs:
        if _identity(run) in names:
            continue
        others = [other.settings for other in runs if other.method == run.method]
        told = sorted(run.settings, key=lambda name: all(name in o and o[name] == run.settings[name] for o in others))
        label = ", ".join([run.method, *(f"{name}={run.settings[name]}" for name in told)])
        numbered = (f"{_shortened(label, 5)} ({number})" for number in itertools.count(2))
        free = (name for name in itertools.chain([_shortened(label)], numbered) if name not in names.values())
        names[_identity(run)] = next(free)
    return names


def _shortened(label: str, less: int = 0) -> str:
    return label if len(label) <= NAME_LENGTH - less else f"{label[: NAME_LENGTH - less - 1]}…"


def _point(run: ComparedRun, column: str) -> Point | None:
    scores = [score for score in run.scores if column_name(score) == column]
    if not scores or run.claim.epsilon is None:
        return None
    if run.claim.published is None:
        return Point(x=run.claim.epsilon, mean=scores[0].mean, sd=scores[0].sd, basis="proven")
    return Point(x=run.claim.published.epsilon, mean=scores[0].mean, sd=scores[0].sd, basis="published")


def _merged(x: float, points: Sequence[Point]) -> Point:
    """Several runs at one epsilon are one point: their mean and the spread between them."""
    if len(points) == 1:
        return points[0]
    means = [point.mean for point in points]
    return Point(x=x, mean=statistics.fmean(means), sd=statistics.stdev(means), basis=points[0].basis)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
