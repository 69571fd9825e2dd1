"""A released classifier: round trip, what it answers, and what a forger cannot change in silence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import rewrite_json
from courses.cases import learned, some_images

from veilset.classifier import open_classifier
from veilset.errors import ArtifactError
from veilset.model import from_pretrained
from veilset.sharing import export, verify


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("course") / "course", "dp-sgd").path


@pytest.fixture
def stage(course: Path, tmp_path: Path) -> Path:
    """A copy of the run of the second task."""
    return Path(shutil.copytree(course / "tasks" / "2", tmp_path / "stage"))


def test_an_exported_classifier_is_the_same_classifier(stage: Path, tmp_path: Path) -> None:
    export(stage, tmp_path / "shared")
    mine, theirs = open_classifier(stage), open_classifier(tmp_path / "shared")
    pixels = some_images().pixels
    assert torch.equal(mine.predict(pixels), theirs.predict(pixels))
    assert mine.claim == theirs.claim
    assert not (tmp_path / "shared" / "vault").exists()


def test_it_answers_with_classes_of_tasks_it_has_seen(course: Path) -> None:
    first = open_classifier(course / "tasks" / "1")
    assert first.spec.num_classes == 4
    first.network.dense.bias.data[2:] += 1e6
    assert set(first.predict(some_images().pixels).tolist()) <= {0, 1}


def test_its_claim_is_about_the_ledgers_of_all_tasks_so_far(course: Path) -> None:
    stages = [open_classifier(course / "tasks" / str(number)) for number in (1, 2)]
    assert [len(stage.privacy.parts) for stage in stages] == [1, 2]
    for number, stage in enumerate(stages, start=1):
        own = (course / "tasks" / str(number) / "vault" / "ledger.jsonl").read_text().splitlines()
        assert list(stage.privacy.parts[-1][0]) == own
        assert verify(course / "tasks" / str(number))["epsilon"] == stage.claim.epsilon


def test_nobody_can_draw_images_from_it(stage: Path) -> None:
    with pytest.raises(ArtifactError, match="a classifier"):
        from_pretrained(stage)


def edited(stage: Path, **changes: Any) -> None:
    rewrite_json(stage / "release" / "config.json", **changes)


def test_forged_tasks_are_noticed(stage: Path) -> None:
    tasks = json.loads((stage / "release" / "config.json").read_text())["tasks"]
    overlapping = [tasks[0], {**tasks[1], "classes": tasks[0]["classes"]}]
    larger = [tasks[0], {**tasks[1], "declared_size": 3000}]
    for forged in (overlapping, larger, tasks[:1], tasks[::-1]):
        edited(stage, tasks=forged)
        with pytest.raises(ArtifactError):
            verify(stage)


def test_a_dropped_ledger_is_noticed(stage: Path) -> None:
    path = stage / "release" / "privacy.json"
    parts = json.loads(path.read_text())["parts"]
    rewrite_json(path, parts=[parts[1], parts[1]])
    with pytest.raises(ArtifactError):
        verify(stage)
    rewrite_json(path, parts=parts)
    verify(stage)


def test_dropped_assumptions_of_the_partition_are_noticed(stage: Path) -> None:
    path = stage / "release" / "privacy.json"
    claim = json.loads(path.read_text())["claim"]
    rewrite_json(path, claim={**claim, "assumptions": claim["assumptions"][:-1]})
    with pytest.raises(ArtifactError, match="assumption"):
        verify(stage)


@pytest.mark.parametrize("changes", [{"kind": "model"}, {"config": {"width": 32}}, {"tasks": []}, {"spec": {}}])
def test_a_changed_configuration_is_refused(changes: dict[str, Any], stage: Path) -> None:
    edited(stage, **changes)
    with pytest.raises(ArtifactError):
        verify(stage)
