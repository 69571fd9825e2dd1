"""The figure of accuracy against epsilon has what was measured on the same terms, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import curve
import results


def line(epsilon: float, mean: float, **changes: Any) -> dict[str, Any]:
    plain = {
        "method": "sketch", "dataset": "mnist", "metric": "gen2real/cnn", "unit": "record", "settings": {},
        "delta": 1e-5, "epsilon_target": epsilon, "mean": mean, "sd": 0.01,
    }  # fmt: skip
    return {**json.loads(results.RESULTS.read_text().splitlines()[0]), **plain, **changes}


def test_a_curve_has_the_newest_figure_of_each_epsilon_on_the_same_terms() -> None:
    lines = [
        line(1.0, 0.7), line(10.0, 0.9), line(1.0, 0.8), line(5.0, 0.1, delta=1e-6), line(5.0, 0.2, unit="user"),
        line(5.0, 0.3, settings={"steps": 7}), line(1.0, 0.4, method="psg"),
    ]  # fmt: skip
    (panel,) = curve.panels(lines)
    (drawn,) = panel.curves
    assert (panel.title, drawn.method) == ("mnist", "sketch, fast")
    assert [(point.x, point.mean) for point in drawn.points] == [(1.0, 0.8), (10.0, 0.9)]


def test_what_was_measured_is_drawn() -> None:
    assert curve.PICTURE.is_file()
    assert {"mnist", "fashion-mnist"} <= {panel.title for panel in curve.panels(results.read(results.RESULTS))}
