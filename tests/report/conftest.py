"""Tiny runs, fitted once, with things in their vaults that must not be seen outside."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import veilset
from veilset.evaluate.scores import Score
from veilset.run_folder import RunFolder

RECORDS = 137
WARNING = "rejected /clinic/ward7/patient_0042.png: not an image; 137 files were read"
CLASSES = ("<script>", "b & 'c'", "plain")


def fitted(path: Path, **options: object) -> RunFolder:
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (RECORDS, 8, 8), dtype=np.uint8)
    images = veilset.load(pixels, np.arange(RECORDS) % 3, class_names=CLASSES, benchmark=options.pop("benchmark", None))
    images = replace(images, warnings=(WARNING,))
    veilset.fit(images, method="dp-merf", steps=5, frequencies=20, images_per_step=10, out=path, **options)
    return RunFolder(path)


def secret_score() -> Score:
    details = {"per_class": {CLASSES[2]: 0.2719}, "seconds": 45.678, "warnings": ["class 'plain' has vanished"]}
    return Score.over_seeds("gen2real/mlp", [0.6183], touched_private_data=True, details=details)


def open_score() -> Score:
    details = {"per_class": {CLASSES[2]: 0.8461, "stranger": 0.5}, "seconds": 98.765, "warnings": ["leaked note"]}
    return Score.over_seeds("gen2real/cnn", [0.9125, 0.9135], touched_private_data=False, details=details)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    base = tmp_path_factory.mktemp("runs")
    return {
        "proven": fitted(base / "proven", epsilon=1.0),
        "published": fitted(base / "published", epsilon=1.0, accounting="published", benchmark="toy"),
        "none": fitted(base / "none", accounting="none"),
    }


@pytest.fixture
def copy_of(finished: dict[str, RunFolder], tmp_path: Path) -> Callable[..., RunFolder]:
    """A fresh copy of one of the runs, with scores in its vault."""

    def copied(kind: str = "proven", scores: tuple[Score, ...] = (secret_score(), open_score())) -> RunFolder:
        shutil.copytree(finished[kind].path, tmp_path / kind)
        run = RunFolder(tmp_path / kind)
        (run.vault / "scores.json").write_text(json.dumps([score.to_json() for score in scores]))
        return run

    return copied
