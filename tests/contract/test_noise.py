"""Noise comes from the operating system and from nowhere else; reproducible noise is stamped as not private."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from veilset.errors import ArtifactError, PrivacyError
from veilset.model import Model, from_pretrained
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import NoiseSource, NoNoise, SeededNoise
from veilset.privacy.release import Door
from veilset.run import execute
from veilset.sharing import export, verify

from .cases import METHODS, digest, make_images, tiny_plan

STAMP = "reproducible noise: no privacy claim"


def weights(model: Model) -> str:
    return digest(model._module.state_dict())


def fitted(method: str, path: Path, *, seed: int = 0, noise: NoiseSource | None = None) -> Model:
    images = make_images()
    return execute(images, tiny_plan(images, method, seed=seed), path, noise=noise)


@pytest.mark.parametrize("method", METHODS)
def test_two_runs_with_the_same_seed_differ_because_noise_has_no_seed(method: str, tmp_path: Path) -> None:
    assert weights(fitted(method, tmp_path / "a", seed=7)) != weights(fitted(method, tmp_path / "b", seed=7))


@pytest.mark.parametrize("method", METHODS)
def test_global_seeds_cannot_make_two_runs_equal(method: str, tmp_path: Path) -> None:
    found = set()
    for name in "ab":
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        found.add(weights(fitted(method, tmp_path / name)))
    assert len(found) == 2


@pytest.mark.parametrize("method", METHODS)
def test_global_seeds_change_nothing_when_the_noise_is_fixed(method: str, tmp_path: Path) -> None:
    found = set()
    for name, seed in (("a", 1), ("b", 2)):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        found.add(weights(fitted(method, tmp_path / name, noise=SeededNoise(3))))
    assert len(found) == 1


@pytest.mark.parametrize("method", METHODS)
def test_seeded_noise_makes_runs_equal_and_other_seeds_make_them_differ(method: str, tmp_path: Path) -> None:
    first = fitted(method, tmp_path / "a", noise=SeededNoise(1))
    second = fitted(method, tmp_path / "b", noise=SeededNoise(1))
    other_noise = fitted(method, tmp_path / "c", noise=SeededNoise(2))
    other_seed = fitted(method, tmp_path / "d", noise=SeededNoise(1), seed=1)
    assert weights(first) == weights(second)
    assert len({weights(first), weights(other_noise), weights(other_seed)}) == 3
    for name in ("config.json", "model.safetensors", "privacy.json", "README.md", "samples.png"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes(), name


@pytest.mark.parametrize("method", METHODS)
def test_reproducible_noise_is_stamped_on_ledger_claim_card_and_release(method: str, tmp_path: Path) -> None:
    model = fitted(method, tmp_path / "run", noise=SeededNoise(1))
    assert model.claim.epsilon is None
    assert STAMP in model.claim.stamps[0]
    assert STAMP in str(model.claim)
    assert model.privacy.record.not_private == STAMP
    assert STAMP in (model.folder / "README.md").read_text()
    assert STAMP in json.loads((model.folder / "privacy.json").read_text())["ledger"][0]
    assert STAMP in verify(tmp_path / "run")["verdict"]
    assert from_pretrained(tmp_path / "run").claim.epsilon is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["seeded", "none"])
def test_a_run_without_a_claim_cannot_be_exported(method: str, how: str, tmp_path: Path) -> None:
    images = make_images()
    accounting = "none" if how == "none" else "proven"
    execute(
        images,
        tiny_plan(images, method, accounting=accounting),
        tmp_path / "run",
        noise=SeededNoise(1) if how == "seeded" else None,
    )
    with pytest.raises(ArtifactError, match="NOT PRIVATE"):
        export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("source", [SeededNoise(0), NoNoise()], ids=["seeded", "none"])
def test_a_private_ledger_refuses_a_door_with_reproducible_noise(source: NoiseSource, tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "dp-merf")
    ledger = PrivacyLedger.open_new(
        tmp_path / "ledger.jsonl", planned=plan.planned, reserve=plan.reserve, adjacency=plan.facts.adjacency,
        unit=plan.facts.unit, delta=plan.delta,
    )  # fmt: skip
    with pytest.raises(PrivacyError, match="operating-system entropy"):
        Door(ledger, source)
