"""A measured number, and whether it may be shared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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


def average(scores: Sequence[Score], metric: str = "gen2real/average") -> Score:
    """The mean over classifiers, seed by seed: GS-WGAN's "Avg" where the scores are those of its thirteen classifiers.

    Every score counts the same; none is left out or chosen by its value.
    """
    seeds = _common_seeds(scores)
    values = [statistics.fmean(score.details["per_seed"][i] for score in scores) for i in range(len(seeds))]
    by_class = [score.details.get("per_class", {}) for score in scores]
    common = [name for name in by_class[0] if all(name in one for one in by_class)]
    combined = _combined(metric, values, scores, seeds, {score.metric: score.mean for score in scores})
    per_class = {name: statistics.fmean(one[name] for one in by_class) for name in common}
    return replace(combined, details={**combined.details, "per_class": per_class})


def calibrated(gen: Sequence[Score], real: Sequence[Score], metric: str = "gen2real/calibrated") -> Score:
    """GS-WGAN's calibrated accuracy: the mean over classifiers of accuracy(synthetic) / accuracy(real).

    A mean of ratios, not a ratio of means. ``gen`` and ``real`` hold one score for each of the same classifiers, tested
    on the same images: trained on synthetic ones in ``gen``, on real ones in ``real`` (the mean over its seeds counts).

    >>> score = lambda name, value: Score.over_seeds(
    ...     name, [value], touched_private_data=False, details={"per_seed": [value], "seeds": [0]}
    ... )
    >>> gen = [score("gen2real/cnn", 0.8), score("gen2real/mlp", 0.3)]
    >>> round(calibrated(gen, [score("real2real/cnn", 1.0), score("real2real/mlp", 0.5)]).mean, 6)
    0.7
    """
    bases = {_variant(score): score.mean for score in real}
    names = [_variant(score) for score in gen]
    if len(bases) != len(real) or len(set(names)) != len(names) or set(names) != set(bases):
        raise ConfigError(
            "one score for each of the same classifiers in both lists",
            f"{names} on synthetic images and {[_variant(score) for score in real]} on real ones",
            "Run both with the same classifiers.",
        )
    if not all(base > 0 for base in bases.values()):
        failed = [name for name, base in bases.items() if base <= 0]
        raise ConfigError(
            "classifiers that learn something from real images", f"accuracy 0 of {failed}", "Leave it out."
        )
    seeds = _common_seeds(gen)
    ratios = [
        statistics.fmean(score.details["per_seed"][i] / bases[_variant(score)] for score in gen)
        for i in range(len(seeds))
    ]
    by_classifier = {score.metric: score.mean / bases[_variant(score)] for score in gen}
    return _combined(metric, ratios, [*gen, *real], seeds, by_classifier)


def _variant(score: Score) -> str:
    return score.metric.partition("/")[2]


def _common_seeds(scores: Sequence[Score]) -> list[int]:
    found = [score.details.get("seeds") for score in scores]
    if not found or found[0] is None or any(seeds != found[0] for seeds in found):
        raise ConfigError(
            "one or more scores over the same seeds", f"seeds {found}", "Pass the scores of one evaluation."
        )
    return list(found[0])


def _combined(
    metric: str, values: list[float], scores: Sequence[Score], seeds: list[int], by_classifier: dict[str, float]
) -> Score:
    """A score over scores is private as soon as one of them is."""
    private = any(score.touched_private_data for score in scores)
    notes = [f"{score.metric}: {note}" for score in scores for note in score.details.get("notes", ())]
    details = {"classifiers": by_classifier, "seeds": seeds, "per_seed": values, "notes": notes}
    return Score.over_seeds(metric, values, touched_private_data=private, details=details)


def _strict_bool(value: object) -> bool:
    # bool("false") is True and bool(0) is False: this flag decides what may be shared, so nothing is converted.
    if not isinstance(value, bool):
        raise ConfigError("true or false for touched_private_data", repr(value), "Restore the score file.")
    return value
