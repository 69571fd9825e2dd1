"""Metrics by name for the runner.

| metric                                     | what it is                                                   |
| ------------------------------------------ | ------------------------------------------------------------ |
| gen2real/CLASSIFIER, real2gen/CLASSIFIER   | accuracy, trained on one kind of images, tested on the other |
| real2real/CLASSIFIER                       | the same without synthesis, for the method `real`            |
| PRESET/CLASSIFIER, PRESET/mean             | a published protocol, and the mean over its classifiers      |
| fid, kid, is, ... (see evaluate/fidelity)  | against the training images                                  |

The method `real` puts the real test images where others put their synthetic ones, so that its `fid` and `is` are what a
perfect generator would get. Every metric is the mean of its parts, and no part is measured twice for a seed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from veilset.data.spec import ImageSet
from veilset.errors import ConfigError
from veilset.evaluate import PRESETS, Score, fidelity, gen2real, real2gen, real2real
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.fidelity import METRICS

REAL = "real"
"""The method that synthesises nothing."""
UTILITY = ("gen2real", "real2gen", "real2real")
Figure = tuple[float, float]
"""A value and the seconds it took."""


@dataclass(frozen=True)
class Images:
    synthetic: ImageSet | None
    """None for the method `real`."""
    train: ImageSet
    test: ImageSet


def check_metrics(method: str, metrics: Sequence[str]) -> None:
    """Raises: ConfigError for a metric nobody knows, before any time is spent."""
    families = ("real2real",) if method == REAL else ("gen2real", "real2gen")
    for metric in metrics:
        family, _, name = metric.partition("/")
        preset = PRESETS.get(family)
        known = metric in METRICS or (family in families and name in CLASSIFIERS)
        of_preset = preset is not None and (name in preset.classifiers or (name == "mean" and preset.mean is not None))
        if not known and not of_preset:
            wanted = ", ".join([*METRICS, *(f"{family}/CLASSIFIER" for family in families), "PRESET/CLASSIFIER"])
            raise ConfigError(
                f"a metric of {wanted} or PRESET/mean for the method {method!r}",
                f"{metric!r}",
                f"Classifiers: {', '.join(CLASSIFIERS)}. Presets: {', '.join(PRESETS)}.",
            )


def parts_of(method: str, metric: str) -> list[str]:
    """What a metric is the mean of: itself, one classifier of a preset, or all of them."""
    family, _, name = metric.partition("/")
    if family not in PRESETS:
        return [metric]
    trained = "real2real" if method == REAL else "gen2real"
    return [f"{trained}/{one}" for one in (PRESETS[family].classifiers if name == "mean" else [name])]


def groups(parts: Sequence[str]) -> list[list[str]]:
    """Parts in their order, those together that compare features: extracting them takes nearly all of the time."""
    together = [part for part in parts if part in METRICS and METRICS[part].features]
    firsts = [part for part in parts if part not in together[1:]]
    return [together if part in together else [part] for part in firsts]


def combined(method: str, metric: str, parts: dict[str, Figure]) -> Figure:
    """A metric from its measured parts: their mean, and the seconds of them all."""
    values, seconds = zip(*(parts[part] for part in parts_of(method, metric)), strict=True)
    return statistics.fmean(values), sum(seconds)


def protocol(method: str, metric: str, number: int, extractor: str, device: torch.device) -> str:
    """How a figure was measured, in the words of its line; equal words mean comparable figures."""
    family = metric.partition("/")[0]
    words = f"{family if family in PRESETS else 'veilset'}, {number} samples"
    if method == REAL:
        words = "all training against all test images"
    elif metric in METRICS:
        words += ", against the training images"
    if metric not in METRICS or not METRICS[metric].features:
        return words
    from veilset.evaluate.extractors import get_extractor

    found = get_extractor(extractor, device=device)
    return f"{words}, {found.name} {found.hash[:12]}"


@dataclass(frozen=True)
class Meter:
    """Measures one seed: its images, and what its classifiers are seeded with."""

    images: Images
    seed: int
    extractor: str
    device: torch.device
    cache: Path | None = None
    """Folder for features of the real images, which are the same for every seed."""

    def measure(self, group: list[str]) -> dict[str, Figure]:
        """Figures of parts that are measured in one go: see `groups`.

        Raises: MissingExtra where they need a package this machine lacks.
        """
        started = time.perf_counter()
        scores = self._scores(group)
        seconds = time.perf_counter() - started
        return {part: (_published(score), seconds) for part, score in zip(group, scores, strict=True)}

    def _scores(self, group: list[str]) -> list[Score]:
        family, _, classifier = group[0].partition("/")
        synthetic, train, test = self.images.synthetic, self.images.train, self.images.test
        judged = test if synthetic is None else synthetic
        if family not in UTILITY:
            return fidelity(
                judged, train, extractor=self.extractor, metrics=group, device=self.device, cache=self.cache
            )  # fmt: skip
        measure, pair = {
            "gen2real": (gen2real, (judged, test)),
            "real2gen": (real2gen, (train, judged)),
            "real2real": (real2real, (train, test)),
        }[family]
        return measure(*pair, classifiers=[classifier], seeds=[self.seed], device=self.device)


def _published(score: Score) -> float:
    if score.touched_private_data:
        raise ConfigError("public benchmark images", "private ones", "Results are published: measure benchmarks only.")
    return score.mean
