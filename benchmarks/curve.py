"""Draws docs/images/epsilon.png from results.jsonl: what a smaller epsilon costs in accuracy.

    python benchmarks/curve.py

Only figures on the same terms are in it: the table's, of a record, at delta 1e-5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results
import table

from veilset.files import write_atomically
from veilset.report.plots import Curve, Point, UtilityPanel, privacy_utility

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "epsilon.png"
DELTA = 1e-5
FEWEST = 2
"""Epsilons that make a curve."""


def panels(lines: Sequence[dict[str, Any]]) -> list[UtilityPanel]:
    """One for each data set at a glance that has curves."""
    drawn = []
    for dataset in table.AT_A_GLANCE:
        found: dict[str, dict[float, Point]] = {}
        for line in lines:
            if line["dataset"] == dataset and table.is_plain(line) and line["delta"] == DELTA:
                point = Point(x=line["epsilon_target"], mean=line["mean"], sd=line["sd"], basis="proven")
                found.setdefault(table.maker(line).replace("`", ""), {})[point.x] = point
        curves = tuple(
            Curve(method=name, points=tuple(points.values()), terms=f"delta {DELTA:g}, add/remove of one image")
            for name, points in sorted(found.items())
            if len(points) >= FEWEST
        )
        if curves:
            drawn.append(UtilityPanel(title=dataset, metric="accuracy", curves=curves))
    return drawn


if __name__ == "__main__":
    write_atomically(PICTURE, privacy_utility(panels(results.read(results.RESULTS)), image_format="png"))
