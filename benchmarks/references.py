"""Published figures of real images beside ours: if these differ, so do all figures of synthetic ones."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import REAL

REFERENCES = Path(__file__).parent / "references.toml"
COLUMNS = ("metric", "published", "ours", "difference", "what changed", "source of the published figure")


@dataclass(frozen=True, kw_only=True)
class Reference:
    dataset: str
    metric: str
    value: float
    tolerance: float
    origin: str
    changed: str | None
    """Why ours may differ by more than the tolerance."""
    extractor: str | None = None

    def ours(self, lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The recorded line of this figure: of several the one with most seeds, whatever their order."""
        fitting = [line for line in lines if self._fits(line)]
        return max(fitting, key=lambda line: (line["n"], str(sorted(line.items()))), default=None)

    def _fits(self, line: dict[str, Any]) -> bool:
        same = (line["method"], line["dataset"], line["metric"]) == (REAL, self.dataset, self.metric)
        # Older lines name the extractor in their settings, newer ones in their protocol.
        return same and (self.extractor or "") in f"{line['protocol']} {line['settings']}"

    def row(self, line: dict[str, Any]) -> tuple[str, ...]:
        difference = line["mean"] - self.value
        far = abs(difference) > self.tolerance
        spread = "" if line["sd"] is None else f" ± {line['sd']:.4f}"
        why = (self.changed or "not explained") if far else ""
        return self.metric, f"{self.value:.2f}", f"{line['mean']:.4f}{spread}", f"{difference:+.4f}", why, self.origin


def read(path: Path = REFERENCES) -> list[Reference]:
    value = tomllib.loads(path.read_text())
    return [
        Reference(
            dataset=entry["dataset"], metric=metric, value=figure, tolerance=entry["tolerance"], origin=entry["origin"],
            changed=value["changed"].get(metric), extractor=entry.get("extractor"),
        )
        for entry in value["references"]
        for metric, figure in entry["values"].items()
    ]  # fmt: skip


def rows(lines: Sequence[dict[str, Any]], dataset: str) -> Iterator[tuple[str, ...]]:
    """A row for each published figure of a data set that we have measured, too."""
    for reference in read():
        line = reference.ours(lines) if reference.dataset == dataset else None
        if line is not None:
            yield reference.row(line)
