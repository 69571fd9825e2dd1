"""What only the owner's page shows: warnings, times and the log. Nothing from here may reach the public page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from veilset.errors import RunError, VeilsetError
from veilset.evaluate.scores import Score
from veilset.methods.plan import Plan
from veilset.report.history import history_figure
from veilset.run_folder import EXACT_SCORES, HISTORY, LOG, RunFolder
from veilset.wording import time_taken

LOG_LINES = 100
"""The newest lines of the log that the page shows; warnings and seconds are collected from all of them."""
PROGRESS = "progress"
"""Event of the lines that moved a progress bar: of no use once the run is over."""


@dataclass(frozen=True)
class OwnerContent:
    folder: str
    reservation: str | None
    plan_warnings: list[str]
    data_warnings: list[str]
    score_warnings: list[str]
    seconds: list[list[str]]
    history: str | None
    """A figure of losses and progress: SVG in base64."""
    log: list[dict[str, str]]
    log_hidden: int
    """Older or unreadable lines that are not shown."""


def owner_content(run: RunFolder, scores: Sequence[Score]) -> OwnerContent:
    plan = Plan.load(run.plan_path) if run.plan_path.is_file() else None
    logged, unreadable = read_log(run.vault / LOG)
    lines = [line for line in logged if line.get("event") != PROGRESS]
    return OwnerContent(
        folder=str(run.path.resolve()),
        reservation=plan.reservation if plan is not None else None,
        plan_warnings=list(plan.warnings) if plan is not None else [],
        data_warnings=_distinct(text for line in lines for text in _texts(line.get("warnings"))),
        score_warnings=_score_warnings(scores),
        seconds=_seconds(logged, scores),
        history=history_figure(read_log(run.vault / HISTORY)[0], logged),
        log=[_log_row(line) for line in lines[-LOG_LINES:]],
        log_hidden=max(0, len(lines) - LOG_LINES) + unreadable,
    )


def read_scores(vault: Path) -> list[Score]:
    """The scores of `vault/scores.json`; none where nothing was evaluated yet.

    Raises: RunError for a file that is not a list of scores. Skipping a bad one could hide that it is private.
    """
    path = vault / EXACT_SCORES
    if not path.is_file():
        return []
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, list):
            raise ValueError(f"{type(values).__name__} instead of a list")
        return [Score.from_json(value) for value in values]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, VeilsetError) as error:
        raise RunError(
            f"a list of scores in vault/{EXACT_SCORES}",
            f"{error.found if isinstance(error, VeilsetError) else repr(error)}",
            "Remove the file and run `veilset evaluate` again.",
        ) from error


def read_log(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines that can be read, and how many cannot: a crash may tear the last one, which is no reason to stop."""
    if not path.is_file():
        return [], 0
    lines, unreadable = [], 0
    for text in path.read_text(errors="replace").splitlines():
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, dict):
            lines.append(value)
        else:
            unreadable += 1
    return lines, unreadable


def training_cost(lines: Sequence[dict[str, Any]]) -> tuple[float | None, str | None]:
    """Seconds and device of a fit from its log, over all its sittings.

    A sitting that was killed has no last line with its seconds: it counts from its first line to its last one.
    """
    sittings: list[list[dict[str, Any]]] = []
    for line in lines:
        if line.get("event") == "started":
            sittings.append([])
        if sittings:
            sittings[-1].append(line)
    devices = dict.fromkeys(str(sitting[0].get("device", "unknown")) for sitting in sittings)
    if not sittings:
        return None, None
    return round(sum(_sitting_seconds(sitting) for sitting in sittings), 3), ", ".join(devices)


def _sitting_seconds(lines: Sequence[dict[str, Any]]) -> float:
    for line in lines:
        if line.get("event") == "finished" and isinstance(line.get("seconds"), int | float):
            return float(line["seconds"])
    times = [line["time"] for line in lines if isinstance(line.get("time"), int | float)]
    return max(times) - min(times) if times else 0.0


def _log_row(line: dict[str, Any]) -> dict[str, str]:
    rest = {name: value for name, value in line.items() if name not in ("time", "event", "warnings")}
    return {
        "time": _clock(line.get("time")),
        "event": str(line.get("event", "")),
        "details": ", ".join(f"{name} {value}" for name, value in rest.items()),
    }


def _clock(seconds: Any) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _seconds(lines: Sequence[dict[str, Any]], scores: Sequence[Score]) -> list[list[str]]:
    scored = [(score.metric, score.details.get("seconds")) for score in scores]
    timed = [("training", training_cost(lines)[0]), *scored]
    return [[name, time_taken(value)] for name, value in timed if isinstance(value, int | float)]


def _score_warnings(scores: Sequence[Score]) -> list[str]:
    """Each text once, with the scores it is about. A mean repeats what its classifiers say: it is left out."""
    about: dict[str, list[str]] = {}
    for score in scores:
        for text in (text for key in ("warnings", "notes") for text in _texts(score.details.get(key))):
            if "classifiers" not in score.details:
                about.setdefault(text, []).append(score.metric)
    return [
        f"{', '.join(metrics) if len(metrics) <= 3 else f'{metrics[0]} and {len(metrics) - 1} others'}: {text}"
        for text, metrics in about.items()
    ]


def _texts(value: Any) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []


def _distinct(texts: Any) -> list[str]:
    """A resumed run logs the warnings of its images again."""
    return list(dict.fromkeys(texts))
