"""What happened during a fit, for the owner's page: losses that the method recorded, and progress over time.

`vault/history.jsonl` holds one line per value, {"name", "step", "value"}, as `FitContext.history` was called.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

from veilset.report.plots import HistoryPanel, Trace, history

MAX_PANELS = 8
_FEWEST = 2
"""Points that make a line."""


def history_figure(recorded: Sequence[dict[str, Any]], log: Sequence[dict[str, Any]]) -> str | None:
    """An SVG in base64, or None where nothing was recorded. Lines that are no numbers are passed over."""
    panels = [*loss_panels(recorded), *progress_panels(log)][:MAX_PANELS]
    return base64.b64encode(history(panels)).decode() if panels else None


def loss_panels(recorded: Sequence[dict[str, Any]]) -> list[HistoryPanel]:
    """One panel for all names that are alike up to a "/". Of a step that was repeated, the last value counts."""
    named: dict[str, dict[float, float]] = {}
    for line in recorded:
        name, numbers = line.get("name"), [line.get(key) for key in ("step", "value")]
        if isinstance(name, str) and all(map(_finite, numbers)):
            named.setdefault(name, {})[line["step"]] = line["value"]
    panels: dict[str, list[Trace]] = {}
    for name, values in named.items():
        title, _, label = name.partition("/")
        panels.setdefault(title, []).extend(_trace(label or title, values))
    return [
        HistoryPanel(title=title, x_label="step", y_label=title, traces=tuple(traces))
        for title, traces in panels.items()
        if traces
    ]


def progress_panels(log: Sequence[dict[str, Any]]) -> list[HistoryPanel]:
    """Share of each task that was done, over the minutes since the run was started; a crash shows as a gap."""
    start = next((line["time"] for line in log if line.get("event") == "started" and _finite(line.get("time"))), None)
    tasks: dict[str, dict[float, float]] = {}
    for line in log:
        numbers = [line.get(key) for key in ("time", "done", "total")]
        if start is None or line.get("event") != "progress" or not all(map(_finite, numbers)) or not line["total"]:
            continue
        share = 100 * line["done"] / line["total"]
        task = str(line.get("doing", "")).partition(":")[0]  # what follows is about a part of it
        tasks.setdefault(task, {})[(line["time"] - start) / 60] = share
    traces = [trace for task, shares in tasks.items() for trace in _trace(task, shares)]
    if not traces:
        return []
    return [HistoryPanel(title="progress", x_label="minutes", y_label="per cent done", traces=tuple(traces))]


def _trace(label: str, values: dict[float, float]) -> list[Trace]:
    steps = sorted(values)
    if len(steps) < _FEWEST:
        return []
    return [Trace(label=label, steps=tuple(steps), mean=tuple(values[step] for step in steps))]


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
