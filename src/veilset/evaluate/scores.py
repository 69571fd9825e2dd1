"""A measured number, and whether it may be shared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from veilset.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric over ``n`` seeds.

    A score that touched private data is private itself: it belongs into the owner's report and never into a release.
    """

    metric: str
    """A path, such as ``gen2real/cnn``."""
    mean: float
    """Accuracies are fractions of 1."""
    sd: float | None
    """Sample standard deviation over the seeds; None for a single seed."""
    n: int
    touched_private_data: bool
    details: dict[str, Any] = field(default_factory=dict)
    """JSON values only."""

    def __post_init__(self) -> None:
        if self.n < 1 or (self.sd is None) != (self.n == 1):
            raise ConfigError(
                "a standard deviation exactly when there are two or more values",
                f"n = {self.n}, sd = {self.sd} for {self.metric}",
                "Build scores with Score.over_seeds(), which computes both.",
            )
        if not math.isfinite(self.mean) or (self.sd is not None and not math.isfinite(self.sd)):
            raise ConfigError(
                f"finite numbers for {self.metric}", f"mean = {self.mean}, sd = {self.sd}", "Check the metric's inputs."
            )

    @classmethod
    def over_seeds(
        cls, metric: str, values: Sequence[float], *, touched_private_data: bool, details: dict[str, Any] | None = None
    ) -> Score:
        """The score of one value per seed.

        >>> Score.over_seeds("gen2real/cnn", [0.5, 0.75, 1.0], touched_private_data=False).sd
        0.25
        """
        if not values:
            raise ConfigError(f"at least one value for {metric}", "none", "Pass at least one seed.")
        return cls(
            metric=metric,
            mean=statistics.fmean(values),
            sd=statistics.stdev(values) if len(values) > 1 else None,
            n=len(values),
            touched_private_data=touched_private_data,
            details=details or {},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "mean": self.mean,
            "sd": self.sd,
            "n": self.n,
            "touched_private_data": self.touched_private_data,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Score:
        return cls(
            metric=str(value["metric"]),
            mean=float(value["mean"]),
            sd=None if value["sd"] is None else float(value["sd"]),
            n=int(value["n"]),
            touched_private_data=_strict_bool(value["touched_private_data"]),
            details=dict(value["details"]),
        )


def _strict_bool(value: object) -> bool:
    # bool("false") is True and bool(0) is False: this flag decides what may be shared, so nothing is converted.
    if not isinstance(value, bool):
        raise ConfigError("true or false for touched_private_data", repr(value), "Restore the score file.")
    return value
