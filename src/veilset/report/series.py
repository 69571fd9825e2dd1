"""The numbers of figures, checked when they are put together: what must not be drawn as one cannot be built as one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from veilset.errors import ConfigError, MixedAdjacency, PrivacyError

Basis = Literal["proven", "published"]
BASES: tuple[Basis, ...] = ("proven", "published")


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


@dataclass(frozen=True, kw_only=True)
class NormPanel:
    """Gradient norms of one network over the iterations, e.g. before and after clipping. Vault-side."""

    title: str
    clip_norm: float
    traces: tuple[Trace, ...]


@dataclass(frozen=True, kw_only=True)
class NormHistogram:
    """Norms of all iterations, counted in bins before and after clipping. Vault-side."""

    title: str
    clip_norm: float
    edges: tuple[float, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    summary: tuple[str, str]
    """Mean and spread before and after, for the legend."""

    @classmethod
    def of(
        cls, title: str, before: Sequence[float], after: Sequence[float], *, clip_norm: float, bins: int = 40
    ) -> NormHistogram:
        """Counts norms in equal bins from 0 to the largest one."""
        require_finite((*before, *after))
        if not (before and after and bins >= 1):
            raise ConfigError("norms before and after clipping", f"{len(before)} and {len(after)}", "Log both.")
        top = max(*before, *after, clip_norm) * (1 + 1e-9) or 1.0
        counts = [[0] * bins, [0] * bins]
        for kind, norms in enumerate((before, after)):
            for norm in norms:
                counts[kind][min(int(norm / top * bins), bins - 1)] += 1
        edges = tuple(top * edge / bins for edge in range(bins + 1))
        summary = (_mean_and_sd(before), _mean_and_sd(after))
        return cls(
            title=title, clip_norm=clip_norm, edges=edges, before=tuple(counts[0]), after=tuple(counts[1]),
            summary=summary,
        )  # fmt: skip


def _mean_and_sd(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3g} ± {statistics.pstdev(values):.3g}"


def require_finite(values: Sequence[float]) -> None:
    if not all(math.isfinite(value) for value in values):
        raise ConfigError("finite numbers to draw", "NaN or infinity", "Check where they come from.")
