"""What the tests of noisy scores share: a test set, classifiers that cost nothing, and a purchase."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images

import veilset
from veilset.budget import DatasetBudget
from veilset.data.spec import ImageSet
from veilset.data.write import write_folder
from veilset.dp_scores import buy_scores
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.fitting import Classifier
from veilset.privacy.bounds import Adjacency, Unit
from veilset.run_folder import RunFolder
from veilset.score_release import NoisyScores
from veilset.scoring import Request

QUIET: dict[str, Any] = {"device": torch.device("cpu"), "progress": lambda *_: None}
REQUEST = {"number": 12, "classifiers": ("first", "second"), "seeds": (0, 1)}


def fix_classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classifiers that always answer with the first and with the second class."""
    for label, name in enumerate(("first", "second")):

        def fit(train: ImageSet, ctx: Any, label: int = label) -> Callable[[torch.Tensor], torch.Tensor]:
            ctx.tick("fitted")
            return lambda images: torch.full((len(images),), label)

        monkeypatch.setitem(CLASSIFIERS, name, Classifier(fit=fit))


def write_held_out(folder: Path) -> Path:
    """600 test images: 300, 200 and 100 of the three classes."""
    write_folder(make_images((300, 200, 100), seed=42), folder)
    return folder


def held_out(folder: Path, **options: Any) -> ImageSet:
    return veilset.load(folder, **options)


def with_budget(folder: Path, epsilon: float = 10.0, **terms: Any) -> DatasetBudget:
    wanted = {"delta": 1e-5, "adjacency": Adjacency.ADD_REMOVE, "unit": Unit.RECORD, **terms}
    return DatasetBudget.create(folder, epsilon=epsilon, **wanted)


def buy(run: RunFolder, test: ImageSet, epsilon: float = 4.0, **options: Any) -> NoisyScores:
    more = {key: options.pop(key) for key in ("warn",) if key in options}
    return buy_scores(run, test, Request(**{**REQUEST, **options}), epsilon=epsilon, **QUIET, **more)


def charged(folder: Path) -> float:
    budget = DatasetBudget.find(folder)
    assert budget is not None
    return budget.status().epsilon_charged
