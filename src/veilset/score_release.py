"""Noisy accuracies as a release holds them: what was counted, with how much noise, and the claim about the test set."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from veilset.artifact import PUBLIC, Privacy, parse_json, read_privacy
from veilset.errors import ArtifactError, ConfigError
from veilset.privacy.bounds import sum_sensitivity
from veilset.privacy.claim import VOID, Claim, price_of_parts, shown
from veilset.privacy.events import Gaussian

NOISY_SCORES = "scores.json"
SUBJECT = "test set"
ASSUMPTIONS = (
    "this epsilon is about the test images; that of the model is about its training images",
    "nobody has images in both the test set and the training set, else the losses of both add up",
    "that the two sets share no image pixel by pixel, and at user level no user id, was found out without noise: that "
    "there are scores reveals it, and neither epsilon covers it",
    "the two sets were separated by person before any plan for the model or these scores was announced",
    "the classifiers saw synthetic images only, and each test image was judged by itself",
    "whether to publish these scores, and of which classifiers, was decided before any score on these test images",
)
"""Beside those of every claim."""
COMPARED = (
    "Whether an image of these test sets is a training image, pixel by pixel, was asked without noise where hashes of "
    "the training images were at hand, and none was: that there are scores reveals it to whoever supplied the test "
    "images, and no epsilon covers it."
)
"""What exact scores on public test sets say beside their numbers, where the training images are private."""


_BENCHMARK = r"[^|=\x00-\x1f\x7f]{1,80}"
"""No name that would read like a part of the claim it stands beside."""


def is_benchmark_name(name: str) -> bool:
    return re.fullmatch(_BENCHMARK, name) is not None


def benchmark_stamps(name: str | None) -> tuple[str, ...]:
    """What a claim about a public benchmark is stamped with; nothing for private images."""
    if name is None:
        return ()
    if not is_benchmark_name(name):
        raise ConfigError(
            "a benchmark's name of at most 80 letters, without '|' and '='", repr(name)[:200], "Shorten --benchmark."
        )
    return (f"{PUBLIC} ({name})",)


def benchmark_in(stamps: Sequence[str]) -> str | None:
    """The name in the first of these that is a stamp of `benchmark_stamps`; None where none of them is."""
    found = (re.fullmatch(rf"{PUBLIC} \(({_BENCHMARK})\)", stamp) for stamp in stamps)
    return next((match[1] for match in found if match), None)


def names_a_benchmark(stamps: tuple[str, ...]) -> bool:
    """Whether these are the stamps of `benchmark_stamps` for some name."""
    return len(stamps) == 1 and benchmark_in(stamps) is not None


def on_benchmark(claim: Claim) -> bool:
    """Whether a claim is about public images alone, so that nothing about them is a secret."""
    stamps = [stamp for stamp in claim.stamps if not stamp.startswith(VOID)]
    return bool(stamps) and all(names_a_benchmark((stamp,)) for stamp in stamps)


def told_by_scores(claim: Claim, *, public: bool) -> str:
    """What has to stand beside exact scores, some of them `public`; nothing where they tell no more than numbers."""
    return COMPARED if public and not on_benchmark(claim) else ""


def row_bound(num_counts: int) -> float:
    """Norm of a test image's row: at most all of `num_counts` answers right, and 1 for the total."""
    return math.sqrt(num_counts + 1)


class Accuracy(NamedTuple):
    metric: str
    accuracy: float
    standard_error: float
    """Of privacy noise and of the choice of test images together."""

    @property
    def note(self) -> str:
        """For whoever would take all or nothing for a finding: noisy counts never end there by themselves."""
        return "cut off: with its noise it lay beyond" if self.accuracy in (0.0, 1.0) else ""


@dataclass(frozen=True, kw_only=True)
class NoisyScores:
    """One purchase: a single noisy vector and what follows from it without looking at a test image again."""

    classifiers: tuple[str, ...]
    seeds: tuple[int, ...]
    preset: str | None
    num_synthetic: int
    images_per_user: int | None
    reserved_before_fit: bool
    correct: tuple[float, ...]
    """Noisy numbers of right answers: all seeds of the first classifier, then of the second, and so on."""
    total: float
    """Noisy number of test images."""
    privacy: Privacy

    def __post_init__(self) -> None:
        names = [*self.classifiers, *([] if self.preset is None else [self.preset])]
        numbers = (*self.correct, self.total)
        if not (
            all(re.fullmatch(r"[a-z0-9-]{1,40}", name) for name in names)
            and len(self.correct) == len(self.classifiers) * len(self.seeds) > 0
            and all(math.isfinite(number) for number in numbers)
            and isinstance(self.privacy.record.planned, Gaussian)
        ):
            raise ArtifactError("one noisy count for each classifier and seed", "others", "Do not trust these scores.")

    @property
    def noise_std(self) -> float:
        """Of every count, from the ledger's noise multiplier."""
        record = self.privacy.record
        assert isinstance(record.planned, Gaussian)
        bound = row_bound(len(self.correct)) * (self.images_per_user or 1)
        return record.planned.noise_multiplier * sum_sensitivity(bound, record.adjacency, nonnegative=True)

    @property
    def accuracies(self) -> list[Accuracy]:
        """The mean over the seeds for each classifier and, where there are several, the mean over all of them."""
        width = len(self.seeds)
        parts = {
            f"gen2real/{name}": self.correct[place * width : (place + 1) * width]
            for place, name in enumerate(self.classifiers)
        }
        if len(parts) > 1:
            parts[f"gen2real/mean of {self.preset}" if self.preset else "gen2real/mean"] = self.correct
        return [Accuracy(name, *_accuracy(part, self.total, self.noise_std)) for name, part in parts.items()]

    def to_json(self) -> dict[str, Any]:
        """Nothing but noisy counts, public settings and what follows from both."""
        return {
            "subject": SUBJECT,
            "classifiers": list(self.classifiers),
            "seeds": list(self.seeds),
            "preset": self.preset,
            "num_synthetic": self.num_synthetic,
            "images_per_user": self.images_per_user,
            "reserved_before_fit": self.reserved_before_fit,
            "correct": list(self.correct),
            "total": self.total,
            "noise_std": self.noise_std,
            "accuracies": [accuracy._asdict() for accuracy in self.accuracies],
            "claim": self.privacy.claim.to_json(),
            "ledger": list(self.privacy.ledger_lines),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> NoisyScores:
        return cls(
            classifiers=tuple(map(str, value["classifiers"])),
            seeds=tuple(map(int, value["seeds"])),
            preset=None if value["preset"] is None else str(value["preset"]),
            num_synthetic=int(value["num_synthetic"]),
            images_per_user=None if value["images_per_user"] is None else int(value["images_per_user"]),
            reserved_before_fit=bool(value["reserved_before_fit"]),
            correct=tuple(map(float, value["correct"])),
            total=float(value["total"]),
            privacy=read_privacy(json.dumps({"claim": value["claim"], "ledger": value["ledger"]}).encode()),
        )


def _accuracy(correct: Sequence[float], total: float, noise_std: float) -> tuple[float, float]:
    """Share of right answers and its standard error, from noisy counts alone.

    Noise: to first order (mean of `correct`) / total varies by noise_std / total * sqrt(1 / counts + share^2).
    Sampling: the mean over classifiers and seeds lies in [0, 1] for each image, so its variance is at most
    share * (1 - share); with one more hit and one more miss, so that a share of 0 or 1 does not look certain.
    """
    images = max(total, 1.0)  # noise may have eaten a tiny test set
    share = min(max(fmean(correct) / images, 0.0), 1.0)
    likely = (share * images + 1) / (images + 2)
    noise = noise_std * math.sqrt(1 / len(correct) + share**2) / images
    return share, math.hypot(noise, math.sqrt(likely * (1 - likely) / images))


def together(purchases: Sequence[NoisyScores]) -> str:
    """The epsilon of several purchases, which compose; nothing where there are not several.

    Raises: MixedAdjacency for purchases on different terms, which no release holds.
    """
    if len(purchases) < 2:
        return ""
    ledgers = [scores.privacy.record for scores in purchases]
    cost = price_of_parts([ledgers])
    return f"epsilon {shown(cost.epsilon)} at delta {ledgers[0].delta:g}, if they are of one test set"


def scores_bytes(purchases: Sequence[NoisyScores]) -> bytes:
    return json.dumps({"purchases": [scores.to_json() for scores in purchases]}, indent=1).encode()


def read_noisy_scores(data: bytes) -> list[NoisyScores]:
    """All purchases of a release. What is derived is computed again: nothing may stand there that does not follow.

    Raises: ArtifactError for anything else than what `scores_bytes` writes. The price is checked by `verify`.
    """
    try:
        purchases = [NoisyScores.from_json(value) for value in parse_json(data, NOISY_SCORES)["purchases"]]
        same = scores_bytes(purchases) == data
        if not purchases:
            raise ValueError("no purchase")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"noisy scores in {NOISY_SCORES}", f"{error!r}", "Do not trust these scores.") from error
    if not same:
        raise ArtifactError(
            f"only what follows from the noisy counts in {NOISY_SCORES}", "something else", "Do not trust these scores."
        )
    return purchases
