"""How close synthetic images come to real ones, without a classifier's task: FID, KID, precision, copies and others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veilset.data.spec import ImageSet
from veilset.engines.contexts import Progress
from veilset.errors import DataError
from veilset.evaluate import copies, inception_score, manifold, moments
from veilset.evaluate.cached import extract, extract_cached
from veilset.evaluate.counting import UnitCount
from veilset.evaluate.distances import statistics_device
from veilset.evaluate.extractors import Extractor, get_extractor
from veilset.evaluate.matching import check_classes, check_names, check_shapes
from veilset.evaluate.scores import Score
from veilset.randomness import named_generator

Result = tuple[float, dict[str, Any]]
DEFAULT_METRICS = ("fid", "kid", "precision", "recall", "density", "coverage", "duplicates", "nearest-real")
_WEAK_CLASSIFIER = 0.8
_COMPARABLE = "only with numbers of the same extractor hash and the same numbers of images"


def fidelity(
    synthetic: ImageSet,
    real: ImageSet,
    *,
    extractor: Extractor | str = "auto",
    metrics: Sequence[str] = DEFAULT_METRICS,
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    is_epochs: int = inception_score.EPOCHS,
    progress: Progress | None = None,
) -> list[Score]:
    """One score for each metric, in the order given.

    Private unless `real` is a public benchmark: the scores are computed from real images without noise. `cache` is a
    folder in the owner's vault for the real images' features and for the classifier of the Inception score.

    Raises: DataError where the sets do not fit together or hold fewer than 2 images, ConfigError for an unknown metric
      or an extractor without its weights.
    """
    check_metrics(metrics)
    check_shapes(synthetic.spec, real.spec)
    check_classes(synthetic.spec, real.spec)
    synthetic, real = _several(synthetic.readable(), "synthetic"), _several(real.readable(), "real")
    needs_features = any(METRICS[name].features for name in metrics)
    if isinstance(extractor, str) and needs_features:
        extractor = get_extractor(extractor, device=device)
    total = (len(synthetic) + len(real)) * needs_features + len(metrics) + is_epochs * ("is" in metrics)
    pair = _Pair(
        synthetic=synthetic,
        real=real,
        extractor=extractor,
        device=statistics_device(device),
        network_device=torch.device(device),
        cache=cache,
        is_epochs=is_epochs,
        report=UnitCount(total, progress),
    )
    return [_score(name, pair) for name in metrics]


@dataclass(kw_only=True)
class _Pair:
    """The two sets and what several metrics share, each computed when first asked for."""

    synthetic: ImageSet
    real: ImageSet
    extractor: Extractor | str
    device: torch.device
    network_device: torch.device
    cache: Path | None
    is_epochs: int
    report: UnitCount

    @cached_property
    def features(self) -> tuple[Tensor, Tensor]:
        """Of the synthetic and of the real images, by the same function: unequal preprocessing cannot happen."""
        assert not isinstance(self.extractor, str)
        ours = extract(
            self.synthetic.pixels, self.extractor, lambda done: self.report("features of synthetic images", done)
        )
        theirs = extract_cached(
            self.real.pixels, self.extractor, lambda done: self.report("features of real images", done), self.cache
        )
        for features in (ours, theirs):
            if not bool(features.isfinite().all()):
                raise DataError("finite features", "NaN or infinity", "Check the extractor and its weights.")
        return ours, theirs

    @cached_property
    def manifold(self) -> manifold.Manifold:
        picked = [
            manifold.at_most(features, manifold.MAX_IMAGES, named_generator(0, f"fidelity/manifold/{side}"))
            for side, features in zip(("synthetic", "real"), self.features, strict=True)
        ]
        return manifold.manifold(*picked, device=self.device)


def _fid(pair: _Pair) -> Result:
    ours, theirs = pair.features
    fewest, dim = min(len(ours), len(theirs)), ours.shape[1]
    notes = []
    if fewest <= dim:
        notes.append(
            f"{fewest} images span fewer than the {dim} feature dimensions: this FID compares rank-deficient "
            "covariances, is biased upwards and may only be compared at the same numbers of images; prefer KID"
        )
    return moments.fid(ours, theirs, device=pair.device), {"notes": notes}


def _kid(pair: _Pair) -> Result:
    found = moments.kid(*pair.features, named_generator(0, "fidelity/kid"), device=pair.device)
    notes = [f"subsets of {found.subset_size}: noisier than the usual {moments.KID_SUBSET}"]
    return found.mean, {
        "subset_sd": found.subset_sd,
        "subset_size": found.subset_size,
        "num_subsets": found.num_subsets,
        "notes": notes if found.subset_size < moments.KID_SUBSET else [],
    }


def _of_manifold(name: str) -> Callable[[_Pair], Result]:
    usual = manifold.PRECISION_NEIGHBOURS if name in ("precision", "recall") else manifold.DENSITY_NEIGHBOURS

    def measure(pair: _Pair) -> Result:
        found = pair.manifold
        neighbours = found.neighbours[0 if name in ("precision", "recall") else 1]
        notes = [f"{neighbours} neighbours and not {usual}: there are too few images"]
        return getattr(found, name), {
            "neighbours": neighbours,
            "num_synthetic": found.num_synthetic,
            "num_real": found.num_real,
            "notes": notes if neighbours < usual else [],
        }

    return measure


def _is(pair: _Pair) -> Result:
    classifier = inception_score.score_classifier(
        pair.real,
        epochs=pair.is_epochs,
        device=pair.network_device,
        cache=pair.cache,
        tick=lambda epochs: pair.report("training the classifier of the Inception score", epochs),
    )
    answers = {
        side: classifier.log_probabilities(images.pixels)
        for side, images in (("synthetic", pair.synthetic), ("real", pair.real))
    }
    (ours, sd, splits), (theirs, _, _) = (
        inception_score.inception_score(rows, named_generator(0, f"fidelity/is/{side}"))
        for side, rows in answers.items()
    )
    accuracy = float((answers["real"].argmax(1) == pair.real.labels.cpu()).double().mean())
    facts = {"name": "vgg11-bn", "epochs": pair.is_epochs, "accuracy_on_its_training_images": accuracy}
    weak = [f"its classifier knows {accuracy:.0%} of the real images only: train it longer, this score means little"]
    more = {"split_sd": sd, "splits": splits, "of_real_images": theirs, "classifier": facts}
    return ours, more | {"notes": weak if accuracy < _WEAK_CLASSIFIER else []}


def _duplicates(pair: _Pair) -> Result:
    counts = copies.duplicate_counts(pair.synthetic.pixels)
    return counts["num_duplicates"] / len(pair.synthetic), dict(counts)


def _nearest_real(pair: _Pair) -> Result:
    ours, theirs = pair.synthetic.pixels, pair.real.pixels
    distances = copies.nearest_real(ours, theirs, device=pair.device)
    reference = copies.real_to_real(theirs, named_generator(0, "fidelity/references"), device=pair.device)
    return float(distances.mean()), {
        "quantiles": copies.quantiles(distances),
        "real_to_real_quantiles": copies.quantiles(reference),
        "exact_copies": copies.exact_copies(ours, theirs),
        "unit": "Euclidean distance of pixels in [0, 1]",
    }


@dataclass(frozen=True)
class Metric:
    measure: Callable[[_Pair], Result]
    features: bool = True
    """Whether it is computed from the extractor's features."""


METRICS: dict[str, Metric] = {
    "fid": Metric(_fid),
    "kid": Metric(_kid),
    "precision": Metric(_of_manifold("precision")),
    "recall": Metric(_of_manifold("recall")),
    "density": Metric(_of_manifold("density")),
    "coverage": Metric(_of_manifold("coverage")),
    "is": Metric(_is, features=False),
    "duplicates": Metric(_duplicates, features=False),
    "nearest-real": Metric(_nearest_real, features=False),
}
"""To add a metric: write its function and give it a name here."""


def _score(name: str, pair: _Pair) -> Score:
    pair.report(name)
    details: dict[str, Any] = {"num_synthetic": len(pair.synthetic), "num_real": len(pair.real), "notes": []}
    if METRICS[name].features and not isinstance(pair.extractor, str):
        pair.features  # noqa: B018 (before the clock starts: all metrics share them)
        facts = {"name": pair.extractor.name, "hash": pair.extractor.hash, "dim": pair.extractor.dim}
        details |= {"extractor": facts, "comparable": _COMPARABLE}
    started = time.perf_counter()
    value, more = METRICS[name].measure(pair)
    details |= more | {"seconds": round(time.perf_counter() - started, 3)}
    pair.report(name, 1)
    # Also for "duplicates", which looks at synthetic images alone: whoever passes private images there is covered.
    private = pair.real.source.benchmark is None
    return Score.over_seeds(name, [value], touched_private_data=private, details=details)


def check_metrics(metrics: Sequence[str]) -> None:
    check_names("metric", metrics, METRICS, "fid and kid")


def _several(images: ImageSet, side: str) -> ImageSet:
    if len(images) < 2:
        raise DataError(f"at least 2 {side} images", f"{len(images)}", "Sample or read more images.")
    return images
