"""Scores of a run on real test images: computed by the owner, kept in the vault."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from veilset.artifact import read_privacy
from veilset.data.spec import ImageSet, ImageSpec
from veilset.errors import ConfigError, DataError, PrivacyError
from veilset.evaluate import Score, calibrated, fidelity, gen2real, real2gen, real2real, run_preset
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.extractors import Extractor, get_extractor
from veilset.evaluate.fidelity import METRICS, check_metrics
from veilset.evaluate.inception import CPU_IMAGES_PER_SECOND, InceptionExtractor
from veilset.evaluate.matching import check_classes, check_shapes
from veilset.evaluate.presets import calibrated_metric, get_preset
from veilset.evaluate.utility import check_choices, check_sets
from veilset.files import write_atomically
from veilset.looks import note_look
from veilset.methods.base import Progress
from veilset.model import Model, from_pretrained
from veilset.report.vault import read_scores
from veilset.run_folder import EXACT_SCORES, RunFolder
from veilset.score_release import on_benchmark

JUDGED_ON = "judged on"
"""In the details of a score: where its test images lie."""
MOST_SHARED = 0.01
"""Share of test images that may be training images: public sets hold a few repetitions, more is a mistake."""
Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of an evaluation: checked when it is made, before anything is read, sampled, trained or paid."""

    number: int
    """Synthetic images to draw; a model that is a smaller set of images is judged by all of them."""
    classifiers: tuple[str, ...] = ()
    """None of them where only fidelity is asked for."""
    seeds: tuple[int, ...] = (0,)
    preset: str | None = None
    """A published protocol, whose classifiers take the place of `classifiers`."""
    fidelity: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.preset is not None:
            object.__setattr__(self, "classifiers", get_preset(self.preset).classifiers)
        if self.classifiers or not self.fidelity:
            check_choices(self.classifiers, self.seeds)
        if self.fidelity:
            check_metrics(self.fidelity)

    def check_fits(self, ours: ImageSpec, real: ImageSpec) -> None:
        """Whether a model of images like `ours` can be measured on images like `real` as asked."""
        if self.number < max(ours.num_classes, 2):
            raise ConfigError(
                f"at least one synthetic image for each of {ours.num_classes} classes, and two in all",
                f"{self.number}",
                "Draw more with --number.",
            )
        if self.classifiers:
            return check_sets(ours, real)
        check_shapes(ours, real)
        check_classes(ours, real)

    def images_of(self, model: Model, device: torch.device, progress: Progress) -> ImageSet:
        """The images to judge: repetitions of a fixed set would say nothing new."""
        number = self.number if model.size is None else min(self.number, model.size)
        return model.sample(number, device=device, progress=progress)


def score_run(
    folder: RunFolder,
    test: ImageSet,
    request: Request,
    *,
    device: torch.device,
    progress: Progress,
    real: ImageSet | None = None,
    warn: Warn = lambda text: None,
) -> list[Score]:
    """Samples images and scores them as asked. Scores of before on the same test images stay, unless measured again.

    With ``real``, the real training images, the same classifiers are also trained on those: what there is to reach
    (real2real), the mean ratio to it (calibrated), and whether synthetic images show their class (real2gen).

    Raises: DataError where the test images do not fit the model or are its training images, PrivacyError where images
      declared public are images of a private run.
    """
    model = from_pretrained(folder.path)
    request.check_fits(model.spec, test.spec)
    if real is not None:
        request.check_fits(model.spec, real.spec)
    for images in (test, real):
        check_public(folder, images)
    shared = overlap_warnings(folder, test, judged=bool(request.classifiers))
    extractor = _extractor(request, device)
    for text in (*shared, *_slowness(extractor, request.number + len(test))):
        warn(text)
    read_scores(folder.vault)  # a file that cannot be read is noticed before the work
    note_look(folder, [images.source for images in (test, real) if images is not None])
    measured = _measure(folder, model, test, real, request, extractor, device, progress)
    judged_on = _place_of(test)
    scores = [replace(score, details={**score.details, JUDGED_ON: judged_on}) for score in measured]
    scores = [_with_warnings(score, shared) for score in scores]
    kept = [score for score in read_scores(folder.vault) if _still_holds(score, scores, judged_on)]
    value = json.dumps([score.to_json() for score in (*kept, *scores)], indent=1).encode()
    write_atomically(folder.vault / EXACT_SCORES, value, mode=0o600)
    return scores


def _place_of(images: ImageSet) -> str | None:
    """Of test images, for the owner; None for arrays, of which nothing says whether they are the same."""
    return str(Path(images.source.path).resolve()) if images.source.path else images.source.benchmark


def _still_holds(score: Score, measured: Sequence[Score], judged_on: str | None) -> bool:
    """Scores on other test images would be taken for scores on these, and means over classifiers for means over those
    that were measured now."""
    name = score.metric.partition("/")[2]
    is_mean = bool(name) and name not in CLASSIFIERS
    stale = is_mean and any("/" in one.metric for one in measured)
    again = any(one.metric == score.metric for one in measured)
    return judged_on is not None and score.details.get(JUDGED_ON) == judged_on and not (again or stale)


def _measure(
    folder: RunFolder,
    model: Model,
    test: ImageSet,
    real: ImageSet | None,
    request: Request,
    extractor: Extractor | str,
    device: torch.device,
    progress: Progress,
) -> list[Score]:
    synthetic = request.images_of(model, device, progress)
    common: dict[str, Any] = {"device": device, "progress": progress}
    scores = _utility(synthetic, test, real, request, common) if request.classifiers else []
    if request.fidelity:
        cache = folder.vault / "features"
        scores += fidelity(synthetic, test, metrics=request.fidelity, extractor=extractor, cache=cache, **common)
    return scores


def _utility(
    synthetic: ImageSet, test: ImageSet, real: ImageSet | None, request: Request, common: dict[str, Any]
) -> list[Score]:
    chosen = {"classifiers": request.classifiers, "seeds": request.seeds, **common}
    if request.preset is None:
        scores = gen2real(synthetic, test, **chosen)
    else:
        scores = run_preset(request.preset, synthetic, test, seeds=request.seeds, **common)
    if real is None:
        return scores
    reference = real2real(real, test, **chosen)
    ratio = calibrated(scores[: len(reference)], reference, calibrated_metric(request.preset))
    return [*scores, ratio, *reference, *real2gen(real, synthetic, **chosen)]


def check_public(folder: RunFolder, images: ImageSet | None) -> None:
    """Scores on public images may be published, so none of them may be an image of a private run.

    The comparison has no noise, so a published score says how it ended. The pages with such scores name that.

    Raises: PrivacyError where one is.
    """
    if images is None or images.source.benchmark is None:
        return
    claim = read_privacy((folder.release / "privacy.json").read_bytes()).claim
    if known := 0 if on_benchmark(claim) else folder.count_training_images(images):
        raise PrivacyError(
            f"public images where '{images.source.benchmark}' was declared a benchmark",
            f"{known:,} of them among the training images of this run, which is private",
            "Nothing was measured. Do not declare them a benchmark: scores on them are the owner's.",
        )


def overlap_warnings(folder: RunFolder, test: ImageSet, *, judged: bool) -> list[str]:
    """What the owner must know about test images that are training images.

    A classifier that is `judged` by them looks better than it is: memorised images come back as test images. Measuring
    fidelity against training images has its uses, above all to find copies.

    Raises: DataError where classifiers would be judged by more of them than chance explains.
    """
    known, readable = folder.count_training_images(test), int(test.valid.sum())
    if known is None:
        return ["this run kept no hashes of its training images: whether test images are among them is unknown"]
    if known == 0:
        return []
    found = f"{known:,} of {readable:,} test images are training images, pixel by pixel"
    if judged and known > MOST_SHARED * readable:
        raise DataError(
            "test images that were kept back from training",
            found,
            "Use other images: --split test where the source has one, or a part that was set aside before the fit. To "
            "look for copies of training images: --classifiers none --fidelity nearest-real.",
        )
    return [f"{found}: scores on them flatter the model"]


def _extractor(request: Request, device: torch.device) -> Extractor | str:
    """Made before anything is trained, so that missing or wrong weights cost no time."""
    needed = any(METRICS[name].features for name in request.fidelity)
    return get_extractor(device=device) if needed else "auto"


def _slowness(extractor: Extractor | str, num_images: int) -> list[str]:
    if not isinstance(extractor, InceptionExtractor) or extractor.device.type != "cpu":
        return []
    minutes = num_images / CPU_IMAGES_PER_SECOND / 60
    return [
        f"Inception features of {num_images:,} images take about {minutes:,.0f} minutes on two CPU cores "
        f"({CPU_IMAGES_PER_SECOND} images/s): use --device cuda or fewer images; those of the test set are kept"
    ]


def _with_warnings(score: Score, texts: list[str]) -> Score:
    if not texts:
        return score
    return replace(score, details={**score.details, "warnings": [*score.details.get("warnings", []), *texts]})
