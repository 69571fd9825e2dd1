"""Utility of synthetic data: what a classifier that saw nothing else learns about the real world, and the reverse."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from veilset.data.spec import ImageSet, ImageSpec
from veilset.engines.contexts import Progress
from veilset.errors import ConfigError, DataError
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.counting import UnitCount
from veilset.evaluate.fitting import Predict, TrainContext
from veilset.evaluate.matching import check_classes, check_names, check_shapes
from veilset.evaluate.scores import Score

MAX_CONFUSED = 100
"""Above this many classes a confusion matrix has more numbers than anybody reads."""


def gen2real(
    synthetic: ImageSet,
    test: ImageSet,
    *,
    classifiers: Sequence[str] = ("cnn", "mlp"),
    seeds: Sequence[int] = (0,),
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[Score]:
    """Trains each classifier on synthetic images and returns its accuracy on real ones, one score per classifier.

    The scores are private unless the test set is a public benchmark: they are computed from real images without noise.

    Raises: DataError where the two sets do not fit together, ConfigError for an unknown classifier or unusable seeds.
    """
    sides = _Sides("gen2real", _Side(synthetic, "synthetic"), _Side(test, "real"))
    return _evaluate(sides, classifiers, seeds, device, progress)


def real2gen(
    real: ImageSet,
    synthetic: ImageSet,
    *,
    classifiers: Sequence[str] = ("cnn", "mlp"),
    seeds: Sequence[int] = (0,),
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[Score]:
    """Trains each classifier on real images and returns its accuracy on synthetic ones: do they show their class?

    A generator that shows one prototype per class gets full marks, so the score means little without gen2real. The
    scores are private unless the real set is a public benchmark. Raises what `gen2real` raises.
    """
    sides = _Sides("real2gen", _Side(real, "real"), _Side(synthetic, "synthetic"))
    return _evaluate(sides, classifiers, seeds, device, progress)


def real2real(
    real: ImageSet,
    test: ImageSet,
    *,
    classifiers: Sequence[str] = ("cnn", "mlp"),
    seeds: Sequence[int] = (0,),
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[Score]:
    """What the classifiers reach without synthetic data: the yardstick of calibrated accuracy.

    Private unless both sets are public benchmarks. Raises what `gen2real` raises.
    """
    sides = _Sides("real2real", _Side(real, "real"), _Side(test, "real"))
    return _evaluate(sides, classifiers, seeds, device, progress)


def released2real(predict: Predict, test: ImageSet, *, metric: str) -> Score:
    """The accuracy on real images of a classifier that is released itself; private unless they are a benchmark.

    Raises: DataError for a test set without images.
    """
    side = _Side(test.readable(), "real")
    _check_test(side)
    started = time.perf_counter()
    answers = predict(side.images.pixels)[None]
    accuracies, details = _judged(answers, side.images)
    details |= {"seeds": [0], "per_seed": accuracies, "seconds": round(time.perf_counter() - started, 3)}
    return Score.over_seeds(metric, accuracies, touched_private_data=side.private, details=details)


def fitted_classifiers(
    synthetic: ImageSet,
    *,
    classifiers: Sequence[str],
    seeds: Sequence[int],
    device: torch.device,
    warn: Callable[[str], None],
    progress: Progress | None = None,
) -> Iterator[Predict]:
    """The classifiers that `gen2real` tests, one after the other: all seeds of the first, then of the second.

    They are functions of the synthetic images and of public seeds alone: no test image is at hand here.
    """
    check_choices(classifiers, seeds)
    train = _Side(synthetic.readable(), "synthetic")
    _check_every_class(train)
    run = _Run.of(classifiers, seeds, device, progress)
    for name in classifiers:
        for seed in seeds:
            yield CLASSIFIERS[name].fit(train.images, run.context(f"gen2real/{name}", seed, warn))


class _Side(NamedTuple):
    images: ImageSet
    kind: Literal["real", "synthetic"]

    @property
    def private(self) -> bool:
        return self.kind == "real" and self.images.source.benchmark is None


class _Sides(NamedTuple):
    family: str
    train: _Side
    test: _Side


def _evaluate(
    sides: _Sides,
    classifiers: Sequence[str],
    seeds: Sequence[int],
    device: torch.device | str,
    progress: Progress | None,
) -> list[Score]:
    check_choices(classifiers, seeds)
    # Errors ask for other real images: synthetic ones are as their model makes them.
    ours, real = (sides.test, sides.train) if sides.test.kind == "synthetic" else (sides.train, sides.test)
    check_sets(ours.images.spec, real.images.spec)
    train, test = (_Side(side.images.readable(), side.kind) for side in (sides.train, sides.test))
    _check_contents(train, test)
    run = _Run.of(classifiers, seeds, torch.device(device), progress)
    return [_score(name, _Sides(sides.family, train, test), seeds, run) for name in classifiers]


class _Run(NamedTuple):
    """What the fits of all classifiers and seeds share."""

    device: torch.device
    report: UnitCount

    @classmethod
    def of(
        cls, classifiers: Sequence[str], seeds: Sequence[int], device: torch.device, progress: Progress | None
    ) -> _Run:
        ticks = sum(CLASSIFIERS[name].num_ticks for name in classifiers) * len(seeds)
        return cls(device, UnitCount(ticks, progress))

    def context(self, metric: str, seed: int, warn: Callable[[str], None]) -> TrainContext:
        return TrainContext(
            seed=seed,
            device=self.device,
            tick=lambda message: self.report(f"{metric}, seed {seed}: {message}", 1),
            warn=warn,
        )


def _score(name: str, sides: _Sides, seeds: Sequence[int], run: _Run) -> Score:
    started = time.perf_counter()
    train, test = sides.train.images, sides.test.images
    metric = f"{sides.family}/{name}"
    found: list[str] = []
    answers = []
    for seed in seeds:
        run.report(f"{metric}, seed {seed}: fitting")
        predict = CLASSIFIERS[name].fit(train, run.context(metric, seed, found.append))
        answers.append(predict(test.pixels))
    accuracies, details = _judged(torch.stack(answers), test)
    details |= {
        "seeds": list(seeds),
        "per_seed": accuracies,
        f"num_{sides.train.kind}": len(train),
        "notes": list(CLASSIFIERS[name].notes),
        "seconds": round(time.perf_counter() - started, 3),
        "warnings": found + details["warnings"],
    }
    return Score.over_seeds(
        metric, accuracies, touched_private_data=sides.train.private or sides.test.private, details=details
    )


def _judged(answers: Tensor, test: ImageSet) -> tuple[list[float], dict[str, Any]]:
    """Accuracies of answers, (classifiers, test images), and what they look like class by class."""
    hits = answers == test.labels.cpu()
    per_class = _per_class(hits, test)
    vanished = [name for name, accuracy in per_class.items() if accuracy < _vanishing_point(test)]
    return [float(row.double().mean()) for row in hits], {
        "per_class": per_class,
        "confusion": _confusion(answers, test),
        "vanished": vanished,
        "warnings": _class_warnings(per_class, vanished, test),
    }


def _per_class(hits: Tensor, test: ImageSet) -> dict[str, float]:
    """Mean accuracy of every class that has test images; ``hits`` is bool, (seeds, test images)."""
    labels = test.labels.cpu()
    return {
        name: float(hits[:, labels == label].double().mean())
        for label, name in enumerate(test.spec.class_names)
        if bool((labels == label).any())
    }


def _confusion(answers: Tensor, test: ImageSet) -> list[list[int]]:
    """How often a class (row) was taken for another (column), over all seeds; nothing where no page could show it.

    Shares of a class are as private as its accuracy: they go where the score goes, and nowhere else.
    """
    size = test.spec.num_classes
    if size > MAX_CONFUSED:
        return []
    pairs = test.labels.cpu() * size + answers
    return torch.bincount(pairs.flatten(), minlength=size**2).reshape(size, size).tolist()


def _vanishing_point(test: ImageSet) -> float:
    """Half of chance level: guessing does better than that, so the class was not learnt at all."""
    return 0.5 / test.spec.num_classes


def _class_warnings(per_class: dict[str, float], vanished: list[str], test: ImageSet) -> list[str]:
    limit = f"below half of chance level ({_vanishing_point(test):.3f})"
    untested = [name for name in test.spec.class_names if name not in per_class]
    return [
        *(f"class '{name}' has vanished: accuracy {per_class[name]:.3f} is {limit}" for name in vanished),
        *(f"class '{name}' has no test images: its accuracy is unknown" for name in untested),
    ]


def check_choices(classifiers: Sequence[str], seeds: Sequence[int]) -> None:
    """Raises before anything is fitted: unknown or repeated names, no seed, a package that is not installed."""
    check_names("classifier", classifiers, CLASSIFIERS, "cnn and mlp")
    if not seeds or len(set(seeds)) != len(seeds):
        # A repeated seed would repeat its result and make the spread look smaller than it is.
        raise ConfigError("at least one seed, none of them twice", f"{list(seeds)}", "Pass, for example, (0, 1, 2).")
    for name in classifiers:
        CLASSIFIERS[name].check()


def check_sets(ours: ImageSpec, real: ImageSpec) -> None:
    """Raises where a classifier of the one set cannot be tested on the other."""
    check_shapes(ours, real)
    if ours.num_classes < 2:
        raise DataError(
            "two or more classes", "one", "A classifier needs something to tell apart: measure fidelity instead."
        )
    check_classes(ours, real)


def _check_contents(train: _Side, test: _Side) -> None:
    _check_test(test)
    _check_every_class(train)


def _check_test(test: _Side) -> None:
    if len(test.images) == 0:
        raise DataError(f"a {test.kind} test set with images", "no readable image in it", "Choose another test set.")


def _check_every_class(train: _Side) -> None:
    spec = train.images.spec
    counts = torch.bincount(train.images.labels, minlength=spec.num_classes).tolist()
    absent = [name for name, count in zip(spec.class_names, counts, strict=True) if count == 0]
    if absent:
        todo = "Sample again with at least one image per class" if train.kind == "synthetic" else "Add images of each"
        raise DataError(
            f"{train.kind} images of every class",
            f"none of {absent}",
            f"{todo}; a classifier cannot learn a class it never sees.",
        )
