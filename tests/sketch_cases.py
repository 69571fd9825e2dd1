"""Tiny sketches for the tests of everything that is made from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract.cases import TINY, make_images

import veilset
from veilset.data.spec import ImageSet
from veilset.merging import merge
from veilset.methods.plan import Plan
from veilset.sketch_release import SketchRelease
from veilset.sketching import SketchGoal, execute_sketch
from veilset.synthesis import NETWORK_OPTIONS, OPTIONS, synthesize

OPEN = {name: TINY["sketch"][name] for name in OPTIONS if name in TINY["sketch"]}
NETWORKS = {**OPEN, **{name: TINY["sketch"][name] for name in NETWORK_OPTIONS}}
SIZES = {"networks": 2, "width": 4}


def sketch_plan(images: ImageSet, **options: Any) -> Plan:
    settings = {"epsilon": 1.0, "declared_size": 20, "rounds": 1, **SIZES, **options}
    return veilset.plan(images.spec, method="sketch", **settings)


def measured(path: Path, images: ImageSet | None = None, *, noise: Any = None, **options: Any) -> SketchRelease:
    images = make_images() if images is None else images
    return execute_sketch(SketchGoal(), images, sketch_plan(images, **options), path, noise=noise)


def continued(path: Path, first: Path, features: Path, *, images: ImageSet | None = None, **options: Any) -> Any:
    goal = SketchGoal.after(first, features)
    images = make_images() if images is None else images
    return execute_sketch(goal, images, sketch_plan(images, **{**goal.settings(), **options}), path)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind, made once: first, other, merged, run, networks, second. Read only."""
    folder = tmp_path_factory.mktemp("sketches")
    measured(folder / "first")
    measured(folder / "other", make_images(seed=1), epsilon=2.0, declared_size=30)
    merge([folder / "first", folder / "other"], folder / "merged")
    synthesize(folder / "first", folder / "run", options=NETWORKS, features_out=folder / "networks")
    continued(folder / "second", folder / "first", folder / "networks", epsilon=0.5)
    return folder


@pytest.fixture
def copy_of(made: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy to be changed at will."""
    return lambda name: Path(shutil.copytree(made / name, tmp_path / f"copy of {name}"))
