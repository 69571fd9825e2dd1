"""The numbers of figures, checked when they are put together: what must not be drawn as one cannot be built as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from veilset.errors import ConfigError, MixedAdjacency, PrivacyError

Basis = Literal["proven", "published"]
BASES: tuple[Basis, ...] = ("proven", "published")
XAxis = Literal["epsilon", "noise scale", "iterations", "sampling rate"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured value and the accounting under which its epsilon was stated."""

    x: float
    mean: float
    sd: float | None
    basis: Basis

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise ConfigError("proven or published accounting", f"{self.basis!r}", "A run without noise has no point.")
        require_finite((self.x, self.mean, self.sd or 0.0))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method over several runs. All points are of one accounting, and their epsilons mean the same."""

    method: str
    points: tuple[Point, ...]
    terms: str
    """What the epsilons are about, e.g. "delta 1e-05, add-remove of one record"."""
    status: str | None = None
    """Of a published epsilon: sound, conservative or refuted. Drawn beside the name."""

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError(f"a point for {self.method}", "none", "Leave the curve out.")
        if len({point.basis for point in self.points}) > 1:
            raise PrivacyError(
                "proven or published epsilons in one curve",
                f"both, for {self.method}",
                "Make two curves: a published epsilon may be refuted, a proven one is not.",
            )
        if (self.basis == "published") != (self.status is not None):
            raise PrivacyError(
                "a status for published epsilons, and for these alone",
                f"{self.status!r} for {self.basis} {self.method}",
                "Pass sound, conservative or refuted.",
            )

    @property
    def basis(self) -> Basis:
        return self.points[0].basis


@dataclass(frozen=True, kw_only=True)
class UtilityPanel:
    """Curves of one metric on one data set. Drawn as one panel, or two where both accountings occur."""

    title: str
    metric: str
    x_axis: XAxis
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        for basis in BASES:
            terms = sorted({curve.terms for curve in self.curves if curve.basis == basis})
            if len(terms) > 1:
                raise MixedAdjacency(
                    "curves whose epsilons mean the same", " beside ".join(terms), "Draw one panel for each."
                )


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A quantity over steps, with the spread within a batch where there is one."""

    label: str
    steps: tuple[float, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.steps or {len(self.mean), len(self.sd or self.steps)} != {len(self.steps)}:
            lengths = f"{len(self.steps)} steps, {len(self.mean)} means"
            raise ConfigError(f"one value a step for {self.label}", lengths, "Log the two together.")
        require_finite((*self.mean, *(self.sd or ())))


@dataclass(frozen=True, kw_only=True)
class StagePanel:
    """Accuracy over all classes so far, after each task of continual learning: a trace for each method."""

    title: str
    metric: str
    terms: str
    """What the one epsilon of all traces is about."""
    tasks: tuple[str, ...]
    """What each stage added."""
    traces: tuple[Trace, ...]

    def __post_init__(self) -> None:
        stages = tuple(range(1, len(self.tasks) + 1))
        if not self.traces or any(trace.steps != stages for trace in self.traces):
            raise ConfigError(
                f"one value after each of {len(self.tasks)} tasks", "more or fewer", "Measure every stage."
            )


@dataclass(frozen=True, kw_only=True)
class HistoryPanel:
    """What a run logged while it was trained. Vault-side."""

    title: str
    x_label: str
    y_label: str
    traces: tuple[Trace, ...]


def require_finite(values: Sequence[float]) -> None:
    if not all(math.isfinite(value) for value in values):
        raise ConfigError("finite numbers to draw", "NaN or infinity", "Check where they come from.")
