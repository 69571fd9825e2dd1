"""Scores as a reader meets them. Fields are picked one by one: a score's details may hold times and file names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from veilset.data.spec import ImageSpec
from veilset.evaluate.copies import MAX_REFERENCES
from veilset.evaluate.presets import calibrated_metric
from veilset.evaluate.scores import Score
from veilset.score_release import Accuracy, NoisyScores

MEANING = {
    "gen2real": "accuracy on real images of a classifier that saw synthetic ones only",
    "real2gen": "accuracy on synthetic images of a classifier that saw real ones only",
    "real2real": "accuracy on real images of a classifier that saw real ones: what there is to reach",
}
"""Metrics that are accuracies, shown in per cent; all others are shown as they are."""
CALIBRATED = "gen2real accuracy in per cent of what the same classifiers reach with real images, mean over all of them"
MEAN_OF = "mean over all classifiers of the protocol: "
OTHER_MEANING = {
    "fid": "Fréchet distance of synthetic and real features; lower is better, 0 is equal statistics",
    "kid": "kernel distance of synthetic and real features; lower is better, about 0 is equal statistics",
    "is": "inception score: sure and varied classes; higher is better",
    "precision": "share of synthetic images near a real one; higher is better, 1 is best",
    "recall": "share of real images near a synthetic one; higher is better, 1 is best",
    "density": "how many real neighbourhoods a synthetic image lies in; higher is better, 1 is like real images",
    "duplicates": "share of synthetic images that repeat another one; lower is better",
    "nearest-real": "mean distance, with pixels from 0 to 1, of a synthetic image to the nearest real one; 0 is a copy",
    "coverage": "share of real images with a synthetic one nearby; higher is better, 1 is best",
}
MAX_CONFUSED = 30
"""Above this many classes a confusion table is wider than a page."""


def score_content(score: Score, spec: ImageSpec, others: Sequence[Score] = ()) -> dict[str, Any]:
    """What both pages show of a score, beside the `others` of the same page. Only declared class names get a bar."""
    return {
        "metric": score.metric,
        "meaning": _meaning(score),
        "to_reach": _to_reach(score, others),
        "beside": _beside(score),
        "value": value_text(score.mean, score.metric),
        "spread": "one seed" if score.sd is None else f"± {value_text(score.sd, score.metric)} over {score.n} seeds",
        "private": score.touched_private_data,
        "extractor": extractor_text(score.details),
        "bars": _bars(score.details.get("per_class"), spec),
        "chance": f"{100 / spec.num_classes:.2f}",
        "short_names": max(map(len, spec.class_names)) <= 3,
        "confusion": _confusion(score.details.get("confusion"), spec),
    }


def _meaning(score: Score) -> str:
    family, _, variant = score.metric.partition("/")
    if variant.endswith("calibrated"):
        return CALIBRATED
    meaning = MEANING.get(family) or OTHER_MEANING.get(family, "")
    if "classifiers" in score.details:
        return f"{MEAN_OF}{meaning}"
    return meaning


def _to_reach(score: Score, others: Sequence[Score]) -> str:
    """What the same classifier reaches with real images, where that is known and may be seen beside this score."""
    family, _, variant = score.metric.partition("/")
    found = [other for other in others if other.metric == f"real2real/{variant}"]
    return value_text(found[0].mean, found[0].metric) if found and family == "gen2real" else ""


def _beside(score: Score) -> str:
    """What makes a mean distance readable: the nearest image of all, and how far real images lie from each other."""
    details = score.details
    ours, theirs = details.get("quantiles"), details.get("real_to_real_quantiles")
    if score.metric != "nearest-real" or not isinstance(ours, dict) or not isinstance(theirs, dict):
        return ""
    numbers = [details.get("exact_copies"), ours.get("0.0"), theirs.get("0.5"), theirs.get("0.0")]
    if not all(map(_is_count, numbers)):
        return ""
    nearest, usual, least = (f"{number:.4g}" for number in numbers[1:])
    return (
        f"Exact copies: {numbers[0]:,}; the nearest synthetic image of all: {nearest}. "
        f"Real images, each to the nearest other one: median {usual}, least {least} (of {MAX_REFERENCES:,} at most)."
    )


def value_text(number: float, metric: str) -> str:
    """
    >>> value_text(0.8603, "gen2real/cnn"), value_text(61.3412, "fid")
    ('86.03 %', '61.34')
    """
    return f"{100 * number:.2f} %" if metric.partition("/")[0] in MEANING else f"{number:.4g}"


def noisy_text(score: Accuracy) -> tuple[str, str]:
    """An accuracy that was bought, and its error: in points, as a per cent of it would be another number."""
    value = value_text(score.accuracy, score.metric)
    return f"{value} ({score.note})" if score.note else value, f"± {100 * score.standard_error:.3g} points"


def noisy_columns(purchases: Sequence[NoisyScores]) -> dict[str, list[tuple[Accuracy, int, str]]]:
    """Accuracies that were bought, with their number of seeds and, of several purchases, the name of theirs, by the
    column they may stand in. None is left out: the better of two purchases would be chosen by looking."""
    columns: dict[str, list[tuple[Accuracy, int, str]]] = {}
    for number, bought in enumerate(purchases, start=1):
        notes = ", ".join(filter(None, ("noisy", bought.preset)))
        name = f"purchase {number}" if len(purchases) > 1 else ""
        for one in bought.accuracies:
            columns.setdefault(f"{one.metric} ({notes})", []).append((one, len(bought.seeds), name))
    return columns


def column_name(score: Score) -> str:
    """What must agree before two values may stand in one column: metric, protocol, extractor and numbers of images, or
    the classifiers of a mean that follows no protocol."""
    notes = [_plain(score.details.get("preset"))]
    classifiers = score.details.get("classifiers")
    if score.metric == calibrated_metric(None) and isinstance(classifiers, dict):
        notes += sorted(_plain(name.partition("/")[2]) for name in classifiers)
    if extractor := extractor_text(score.details):
        numbers = [score.details.get(key) for key in ("num_synthetic", "num_real")]
        known = [f"{number:,}" for number in numbers if isinstance(number, int)]
        notes += [extractor, f"{' and '.join(known)} images" if known else ""]
    kept = ", ".join(note for note in notes if note)
    return f"{score.metric} ({kept})" if kept else score.metric


def extractor_text(details: dict[str, Any]) -> str:
    """Name and hash of the network whose features were compared; values mean nothing across different ones."""
    extractor = details.get("extractor")
    if not isinstance(extractor, dict):
        return ""
    name, digest = _plain(extractor.get("name")), extractor.get("hash")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{8,128}", digest):
        return name
    return f"{name} {digest[:12]}".strip()


def _plain(text: Any) -> str:
    """A short name, or nothing: what looks like a path could name a folder of the owner."""
    return text if isinstance(text, str) and re.fullmatch(r"[\w .,:()+-]{1,80}", text) else ""


def _bars(per_class: Any, spec: ImageSpec) -> list[dict[str, str]]:
    """One bar per class that was tested; lengths are per cent, so a value outside of [0, 1] is no accuracy."""
    if not isinstance(per_class, dict):
        return []
    shares = [(name, per_class[name]) for name in spec.class_names if _is_share(per_class.get(name))]
    return [{"name": name, "percent": f"{100 * share:.1f}"} for name, share in shares]


def _confusion(counts: Any, spec: ImageSpec) -> list[dict[str, Any]]:
    """Rows of the confusion table, each true class divided by its sum; empty for what is no such table."""
    size = spec.num_classes
    square = isinstance(counts, list) and len(counts) == size and all(_is_row(row, size) for row in counts)
    if not square or size > MAX_CONFUSED:
        return []
    totals = [sum(row) or 1 for row in counts]
    return [
        {"name": name, "shares": [round(value / total, 4) for value in row]}
        for name, row, total in zip(spec.class_names, counts, totals, strict=True)
    ]


def _is_row(row: Any, size: int) -> bool:
    return isinstance(row, list) and len(row) == size and all(_is_count(value) for value in row)


def _is_count(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def _is_share(value: Any) -> bool:
    return _is_count(value) and value <= 1
