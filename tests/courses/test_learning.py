"""Every task has its own run, ledger and images; a course that was killed goes on where it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from veilset.budget import DatasetBudget
from veilset.classifier import open_classifier
from veilset.courses import learning
from veilset.courses.learning import learn, shared_between_tasks, task_images
from veilset.courses.release import privacy_of_tasks, verify_course
from veilset.data import load
from veilset.data.spec import ImageSet, Source
from veilset.data.write import write_folder
from veilset.errors import BudgetExceeded, DataError, RunError
from veilset.model import from_pretrained
from veilset.partition import PARTITIONED
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import Composed
from veilset.privacy.ledger import LedgerRecord, read_chain
from veilset.run import execute_for

from .cases import TASKS, learned, some_course, some_images

METHODS = ("psg", "dp-merf", "sketch", "dp-sgd")


class Killed(Exception):
    """Stands in for a crash: nothing in Veilset catches it."""


def ledger_of(path: Path) -> LedgerRecord:
    return LedgerRecord(read_chain((path / "vault" / "ledger.jsonl").read_text().splitlines()))


@pytest.mark.parametrize("method", METHODS)
def test_the_claim_of_a_course_is_the_dearest_of_the_ledgers_its_tasks_really_have(method: str, tmp_path: Path) -> None:
    folder = learned(tmp_path / "course", method, declared_sizes=(20, 20) if method == "psg" else (20, 30))
    spent = [ledger_of(folder.task(number).path).spent for number in (1, 2)]
    prices = [price(event, 1e-5, Adjacency.ADD_REMOVE).epsilon for event in spent]
    claim = privacy_of_tasks(folder.path, 2).claim
    assert claim.epsilon == max(prices) <= 2.0 * (1 + 1e-6)
    assert claim.epsilon < price(Composed(tuple(spent)), 1e-5, Adjacency.ADD_REMOVE).epsilon
    assert verify_course(folder.path)["epsilon"] == claim.epsilon
    assert set(PARTITIONED) <= set(claim.assumptions)
    assert (claim.adjacency, claim.unit) == (Adjacency.ADD_REMOVE, Unit.RECORD)


@pytest.mark.parametrize("method", ["dp-merf", "dp-sgd"])
def test_a_record_is_in_the_task_of_its_class_and_in_no_other(method: str) -> None:
    images = some_images()
    course = some_course(images, method)
    ordered = images.of_classes(course.partition.class_names)
    parts = [task_images(ordered, course, number) for number in (1, 2)]
    assert sum(map(len, parts)) == len(images)
    for part, classes in zip(parts, TASKS, strict=True):
        assert {part.spec.class_names[label] for label in part.labels.tolist()} == set(classes)
    pixels = [{bytes(image.numpy().tobytes()) for image in part.pixels} for part in parts]
    assert not pixels[0] & pixels[1]


def test_no_task_sees_an_image_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def watching(goal: Any, images: ImageSet, *arguments: Any, **options: Any) -> Any:
        seen.append({images.spec.class_names[label] for label in images.labels.tolist()})
        return execute_for(goal, images, *arguments, **options)

    monkeypatch.setattr(learning, "execute_for", watching)
    learned(tmp_path / "course")
    assert seen == [set(task) for task in TASKS]


def test_classes_in_no_task_are_used_by_nothing(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course", tasks=(("kind 2", "kind 0"),), declared_sizes=(20,))
    assert from_pretrained(folder.task(1).path).spec.class_names == ("kind 2", "kind 0")
    assert not folder.task(2).path.exists()


def dies_at(call: int) -> Any:
    calls = iter(range(10**9))

    def progress(*_: Any) -> None:
        if next(calls) == call:
            raise Killed

    return progress


def test_a_course_does_not_go_on_with_a_record_that_was_in_a_finished_task(tmp_path: Path) -> None:
    """Given another class between two tasks, it would be in both, and their losses would add up."""
    images = some_images()
    course = some_course(images)

    def dies(message: str, done: int, total: int) -> None:
        if message.startswith("task 2"):
            raise Killed

    with pytest.raises(Killed):
        learn(images, course, tmp_path / "course", progress=dies)
    labels = images.labels.clone()
    labels[int((labels == 0).nonzero()[0])] = 1
    with pytest.raises(RunError, match="0 added, 1 removed"):
        learn(replace(images, labels=labels), course, tmp_path / "course", resume=True)
    learn(images, course, tmp_path / "course", resume=True)
    learn(replace(images, labels=labels), course, tmp_path / "course", resume=True)  # nothing is left to learn


@pytest.mark.parametrize("method", ["dp-merf", "dp-sgd"])
def test_a_course_killed_anywhere_goes_on_and_never_under_counts(
    method: str, tmp_path: Path, noise_drawn: Counter[str]
) -> None:
    images = some_images()
    course = some_course(images, method)
    calls: list[Any] = []
    learn(images, course, tmp_path / "undisturbed", progress=lambda *event: calls.append(event))
    for at in sorted({0, 3, len(calls) // 2, len(calls) - 1}):
        noise_drawn.clear()
        path = tmp_path / f"killed at {at}"
        with pytest.raises(Killed):
            learn(images, course, path, progress=dies_at(at))
        folder = learn(images, course, path, resume=True)
        records = [ledger_of(folder.task(number).path) for number in (1, 2)]
        assert noise_drawn["releases"] <= sum(record.charged.total() for record in records)
        assert verify_course(path)["epsilon"] <= 2.0 * (1 + 1e-6)


def test_a_task_that_stopped_before_its_ledger_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, path = some_images(), tmp_path / "course"
    course = some_course(images)

    def dies(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("veilset.run.PrivacyLedger.open_new", dies)
        with pytest.raises(Killed):
            learn(images, course, path)
    assert (path / "tasks" / "1" / "vault" / "plan.json").is_file()
    learn(images, course, path, resume=True)
    assert verify_course(path)["epsilon"] == pytest.approx(2.0)


@pytest.mark.parametrize("where", ["run.PrivacyLedger.open_new", "run.free"], ids=["stopped", "killed outright"])
def test_a_task_that_stopped_before_its_ledger_is_charged_once_though_it_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    images, budget = budgeted(tmp_path, 10.0)
    course, path = some_course(images), tmp_path / "course"

    def dies(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("veilset.run.PrivacyLedger.open_new", dies)
        patch.setattr(f"veilset.{where}", dies)  # a process that is killed frees nothing
        with pytest.raises(Killed):
            learn(images, course, path)
    learn(images, course, path, resume=True)
    assert budget.status().runs_unsettled == 0
    assert 2.0 < budget.status().epsilon_charged < 4.0


def test_a_course_whose_folder_cannot_be_written_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, budget = budgeted(tmp_path, 10.0)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError("full")

    monkeypatch.setattr("veilset.courses.folder.write_atomically", full)
    with pytest.raises(OSError, match="full"):
        learn(images, some_course(images), tmp_path / "course")
    assert (budget.status().epsilon_charged, budget.status().runs_unsettled) == (0.0, 0)


def test_a_task_that_lost_its_ledger_is_not_released_a_second_time(tmp_path: Path, noise_drawn: Counter[str]) -> None:
    images, course, path = some_images(), some_course(), tmp_path / "course"
    with pytest.raises(Killed):
        learn(images, course, path, progress=dies_at(6))
    (path / "tasks" / "1" / "vault" / "ledger.jsonl").unlink()
    before = noise_drawn["releases"]
    assert before == 1
    with pytest.raises(RunError, match="its ledger"):
        learn(images, course, path, resume=True)
    assert noise_drawn["releases"] == before


def test_a_finished_course_is_left_as_it_is(tmp_path: Path, noise_drawn: Counter[str]) -> None:
    folder = learned(tmp_path / "course")
    before = noise_drawn["releases"]
    learn(some_images(), some_course(), folder.path, resume=True)
    assert noise_drawn["releases"] == before


def test_other_settings_or_a_used_folder_are_refused(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course")
    with pytest.raises(RunError, match="epsilon"):
        learn(some_images(), some_course(epsilon=3.0), folder.path, resume=True)
    with pytest.raises(RunError, match="a course in"):
        learn(some_images(), some_course(), folder.path)
    with pytest.raises(RunError, match="a course at"):
        learn(some_images(), some_course(), tmp_path / "nothing", resume=True)


def budgeted(tmp_path: Path, epsilon: float) -> tuple[ImageSet, DatasetBudget]:
    (tmp_path / "photos").mkdir()
    budget = DatasetBudget.create(
        tmp_path / "photos", epsilon=epsilon, delta=1e-5, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD
    )
    return some_images(source=Source(path=str(tmp_path / "photos"))), budget


def test_a_budget_is_charged_for_all_tasks_before_the_first_begins(tmp_path: Path) -> None:
    images, budget = budgeted(tmp_path, 10.0)
    learn(images, some_course(images), tmp_path / "course")
    status = budget.status()
    assert (status.runs_settled, status.runs_unsettled) == (2, 0)
    assert 2.0 < status.epsilon_charged < 4.0, "one after the other: more than the tasks cost, never less"


@pytest.mark.parametrize("method", ["dp-merf", "dp-sgd"])
def test_a_course_under_a_budget_goes_on_after_a_kill(method: str, tmp_path: Path) -> None:
    images, budget = budgeted(tmp_path, 10.0)
    course = some_course(images, method)
    with pytest.raises(Killed):
        learn(images, course, tmp_path / "course", progress=dies_at(6))
    learn(images, course, tmp_path / "course", resume=True)
    assert (budget.status().runs_settled, budget.status().runs_unsettled) == (2, 0)


def test_a_budget_that_does_not_cover_all_tasks_stops_the_first(tmp_path: Path, noise_drawn: Counter[str]) -> None:
    images, budget = budgeted(tmp_path, 2.5)
    with pytest.raises(BudgetExceeded):
        learn(images, some_course(images), tmp_path / "course")
    assert noise_drawn["releases"] == 0
    assert budget.status().epsilon_charged == 0, "what was reserved for the first task is given back"
    assert not (tmp_path / "course" / "vault").exists()


def test_the_owner_is_told_of_images_and_people_in_two_tasks() -> None:
    images = some_images(per_user=2)
    partition = some_course(images).partition
    (people,) = shared_between_tasks(images, partition)
    assert "people have images in more than one task" in people
    first, second = ((images.labels == label).nonzero()[0, 0] for label in (0, 1))
    pixels = images.pixels.clone()
    pixels[second] = pixels[first]
    twins = ImageSet(spec=images.spec, pixels=pixels, labels=images.labels)
    assert shared_between_tasks(twins, partition) == ["1 images are in more than one task, pixel by pixel"]
    assert shared_between_tasks(some_images(), partition) == []


def test_a_classifier_is_trained_on_from_the_released_one(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course", "dp-sgd", learning_rate=1e-9)
    first, second = (open_classifier(folder.task(number).path) for number in (1, 2))
    for old, new in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.allclose(old, new, atol=1e-6), "with no step to speak of, the second is the first"
    assert len(second.privacy.parts) == 2
    assert second.privacy.parts[0] == first.privacy.parts[0], (
        "its weights know of the first task, and so does its claim"
    )


def test_a_course_is_not_written_among_its_images(tmp_path: Path) -> None:
    write_folder(some_images(), tmp_path / "photos")
    images = load(tmp_path / "photos")
    terms = {"adjacency": Adjacency.ADD_REMOVE, "unit": Unit.RECORD}
    budget = DatasetBudget.create(tmp_path / "photos", epsilon=10.0, delta=1e-5, **terms)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="outside of the images"):
        learn(images, some_course(images), tmp_path / "photos" / "course")
    assert budget.status().epsilon_charged == 0.0
    assert not (tmp_path / "photos" / "course").exists()
