"""Metrics by name for the runner: utility by classifiers, and fidelity against the training images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from veilset.data.spec import ImageSet
from veilset.errors import ConfigError
from veilset.evaluate import Score
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.fidelity import METRICS, fidelity
from veilset.evaluate.utility import gen2real, real2gen

UTILITY = ("gen2real", "real2gen")


@dataclass(frozen=True)
class Images:
    synthetic: ImageSet
    train: ImageSet
    test: ImageSet


def check_metrics(metrics: Sequence[str]) -> None:
    """Raises: ConfigError for a metric nobody knows, before any time is spent."""
    for metric in metrics:
        family, _, classifier = metric.partition("/")
        if not (metric in METRICS or (family in UTILITY and classifier in CLASSIFIERS)):
            known = ", ".join([*METRICS, *(f"{family}/CLASSIFIER" for family in UTILITY)])
            raise ConfigError(f"a metric of {known}", f"{metric!r}", f"Classifiers: {', '.join(CLASSIFIERS)}.")


def protocol(metric: str, number: int, extractor: str, device: torch.device) -> str:
    """How a figure was measured, in the words of its line; equal words mean comparable figures."""
    words = f"veilset, {number} samples"
    if metric not in METRICS:
        return words
    if not METRICS[metric].features:
        return f"{words}, against the training images"
    from veilset.evaluate.extractors import get_extractor

    found = get_extractor(extractor, device=device)
    return f"{words}, against the training images, {found.name} {found.hash[:12]}"


def measure(metric: str, images: Images, seed: int, extractor: str, device: torch.device) -> tuple[float, float]:
    """Value and seconds of one metric for the samples of one fit."""
    started = time.perf_counter()
    score = _score(metric, images, seed, extractor, device)
    if score.touched_private_data:
        raise ConfigError("public benchmark images", "private ones", "Results are published: measure benchmarks only.")
    return score.mean, time.perf_counter() - started


def _score(metric: str, images: Images, seed: int, extractor: str, device: torch.device) -> Score:
    family, _, classifier = metric.partition("/")
    if family == "gen2real":
        return gen2real(images.synthetic, images.test, classifiers=[classifier], seeds=[seed], device=device)[0]
    if family == "real2gen":
        return real2gen(images.train, images.synthetic, classifiers=[classifier], seeds=[seed], device=device)[0]
    return fidelity(images.synthetic, images.train, extractor=extractor, metrics=[metric], device=device)[0]
