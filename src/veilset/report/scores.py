"""Scores as a reader meets them. Fields are picked one by one: a score's details may hold times and file names."""

from __future__ import annotations

import math
from typing import Any

from veilset.data.spec import ImageSpec
from veilset.evaluate.scores import Score

MEANING = {
    "gen2real": "accuracy on real images of a classifier that saw synthetic ones only",
    "real2gen": "accuracy on synthetic images of a classifier that saw real ones only",
}
"""Metrics that are accuracies, shown in per cent; all others are shown as they are."""


def score_content(score: Score, spec: ImageSpec) -> dict[str, Any]:
    """What both pages show of a score. Only declared class names get a bar."""
    family, _, variant = score.metric.partition("/")
    return {
        "metric": score.metric,
        "meaning": f"{MEANING[family]}{f' ({variant})' if variant else ''}" if family in MEANING else "",
        "value": _value(score.mean, family),
        "spread": "one seed" if score.sd is None else f"± {_value(score.sd, family)} over {score.n} seeds",
        "private": score.touched_private_data,
        "bars": _bars(score.details.get("per_class"), spec),
        "chance": f"{100 / spec.num_classes:.2f}",
    }


def _value(number: float, family: str) -> str:
    return f"{100 * number:.2f} %" if family in MEANING else f"{number:.4g}"


def _bars(per_class: Any, spec: ImageSpec) -> list[dict[str, str]]:
    """One bar per class that was tested; lengths are per cent, so a value outside of [0, 1] is no accuracy."""
    if not isinstance(per_class, dict):
        return []
    shares = [(name, per_class[name]) for name in spec.class_names if _is_share(per_class.get(name))]
    return [{"name": name, "percent": f"{100 * share:.1f}"} for name, share in shares]


def _is_share(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= 1
