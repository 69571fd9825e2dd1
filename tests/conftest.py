"""Shared fixtures. No test touches the owner's real vault: VEILSET_HOME always points into a temporary folder."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract.cases import METHODS, make_images, tiny_plan
from sketch_cases import copy_of, made  # noqa: F401  (fixtures)

import veilset
from veilset.budget import DatasetBudget
from veilset.data.spec import ImageSet
from veilset.methods.plan import Plan
from veilset.model import Model
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.noise import NoiseSource
from veilset.privacy.release import Door
from veilset.run import execute
from veilset.run_folder import RunFolder


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine() -> Iterator[None]:
    """Tiny tensors: more threads than processes only fight each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def vault_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "veilset-home"
    monkeypatch.setenv("VEILSET_HOME", str(home))
    return home


@pytest.fixture
def images() -> ImageSet:
    return make_images()


@pytest.fixture
def plan(images: ImageSet) -> Plan:
    """A plan of the plainest method for `images`."""
    return tiny_plan(images, "dp-merf")


@pytest.fixture
def with_budget(tmp_path: Path) -> tuple[ImageSet, DatasetBudget]:
    """Twelve images of three classes in an archive, and its budget of epsilon 6."""
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((12, 8, 8), dtype=np.uint8), y=np.arange(12) % 3)
    terms = {"delta": 1e-5, "adjacency": Adjacency.ADD_REMOVE, "unit": Unit.RECORD}
    return veilset.load(path), DatasetBudget.create(path, epsilon=6.0, **terms)


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One finished run folder for every method, made once. Read only: copy before changing anything."""
    folders = {}
    for method in METHODS:
        path = tmp_path_factory.mktemp("finished") / method
        execute(make_images(), tiny_plan(make_images(), method), path)
        folders[method] = path
    return folders


@pytest.fixture
def copy_of_run(finished_runs: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A private copy of the finished run of a method, to be changed at will."""

    def copy(method: str = "dp-merf") -> Path:
        return Path(shutil.copytree(finished_runs[method], tmp_path / f"copy of {method}"))

    return copy


@pytest.fixture
def model(finished_runs: dict[str, Path]) -> Model:
    from veilset.model import from_pretrained

    return from_pretrained(finished_runs["dp-merf"])


@pytest.fixture
def noise_drawn(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often the door really added noise."""
    counts: Counter[str] = Counter()
    original = Door._noisy

    def counting(self: Door, *arguments: Any) -> Any:
        counts["releases"] += 1
        return original(self, *arguments)

    monkeypatch.setattr(Door, "_noisy", counting)
    return counts


@pytest.fixture
def normals_drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many normal numbers each draw from the noise source had."""
    drawn: list[int] = []
    original = NoiseSource.normal

    def counting(self: NoiseSource, count: int, *device: Any) -> Any:
        drawn.append(count)
        return original(self, count, *device)

    monkeypatch.setattr(NoiseSource, "normal", counting)
    return drawn


@pytest.fixture
def run(copy_of_run: Callable[[], Path]) -> RunFolder:
    """A run that was fitted on `make_images()`."""
    return RunFolder.open(copy_of_run())
