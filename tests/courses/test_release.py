"""What may be shared about a course says what its tasks' ledgers say; anybody can see if it does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract.cases import tiny_plan

from veilset.artifact import update_manifest
from veilset.courses.release import export_course, is_course, privacy_of_tasks, verify_course
from veilset.courses.scores import score_course
from veilset.errors import ArtifactError, PrivacyError, VeilsetError
from veilset.run import execute

from .cases import BENCHMARK, FAST, TASKS, learned, some_course, some_images


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished courses. Read only: copy before changing anything."""
    folders = {method: learned(tmp_path_factory.mktemp("courses") / method, method) for method in ("dp-merf", "dp-sgd")}
    measured = learned(tmp_path_factory.mktemp("courses") / "measured")
    score_course(measured, some_course(), some_images(seed=1, source=BENCHMARK), FAST)
    return {"measured": measured.path, **{method: folder.path for method, folder in folders.items()}}


@pytest.fixture
def copy(finished: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda method: Path(shutil.copytree(finished[method], tmp_path / "copy"))


def forge(path: Path, **changes: Any) -> None:
    file = path / "release" / "course.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("method", ["dp-merf", "dp-sgd"])
def test_an_exported_course_holds_no_vault_and_verifies(method: str, finished: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "shared"
    checked = export_course(finished[method], out)
    assert is_course(out)
    assert verify_course(out) == checked
    assert not list(out.rglob("vault"))
    assert not list(out.rglob("plan*.json"))
    assert len(checked["tasks"]) == 2


@pytest.mark.parametrize("method", ["dp-merf", "dp-sgd"])
def test_no_count_of_private_images_is_in_what_may_be_shared(
    method: str, finished: dict[str, Path], tmp_path: Path
) -> None:
    """Seven, five, six and four images: 13 in the first task, 9 in the second, 22 in all."""
    export_course(finished[method], tmp_path / "shared")
    for name in ("course.json", "README.md"):
        words = (tmp_path / "shared" / name).read_text().replace(",", " ").replace("|", " ").split()
        assert not {"13", "9", "22"} & set(words)


def test_the_card_states_the_tasks_and_parallel_composition(finished: dict[str, Path]) -> None:
    text = (finished["dp-merf"] / "release" / "README.md").read_text()
    for task, size in zip(TASKS, (20, 30), strict=True):
        assert f"| {', '.join(task)} | {size} |" in text
    assert "parallel composition" in text
    assert "whose losses add up" in text


def test_a_smaller_epsilon_is_noticed(copy: Callable[[str], Path]) -> None:
    path = copy("dp-merf")
    claim = json.loads((path / "release" / "course.json").read_text())["claim"]
    forge(path, claim={**claim, "epsilon": 1.0}, veilset="another version")
    with pytest.raises(ArtifactError):
        verify_course(path)


def test_dropped_assumptions_are_noticed(copy: Callable[[str], Path]) -> None:
    path = copy("dp-merf")
    claim = json.loads((path / "release" / "course.json").read_text())["claim"]
    forge(path, claim={**claim, "assumptions": claim["assumptions"][:-1]})
    with pytest.raises(ArtifactError):
        verify_course(path)


@pytest.mark.parametrize("method", ["dp-merf", "dp-sgd"])
def test_tasks_that_share_a_class_are_no_course(method: str, copy: Callable[[str], Path]) -> None:
    path = copy(method)
    tasks = json.loads((path / "release" / "course.json").read_text())["tasks"]
    tasks[1]["classes"] = [tasks[0]["classes"][0], tasks[1]["classes"][1]]
    forge(path, tasks=tasks)
    with pytest.raises(PrivacyError, match="every class in one task"):
        verify_course(path)


@pytest.mark.parametrize("method", ["dp-merf", "dp-sgd"])
def test_another_declared_size_or_order_is_noticed(method: str, copy: Callable[[str], Path]) -> None:
    path = copy(method)
    tasks = json.loads((path / "release" / "course.json").read_text())["tasks"]
    for forged in ([{**tasks[0], "declared_size": 40}, tasks[1]], tasks[::-1], tasks[:1]):
        forge(path, tasks=forged)
        with pytest.raises(VeilsetError):
            verify_course(path)


@pytest.mark.parametrize("stranger", ["private.npz", "release/README.md"])
def test_what_lies_beside_an_exported_course_is_not_taken_for_a_part_of_it(
    stranger: str, finished: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "shared"
    export_course(finished["dp-merf"], out)
    (out / stranger).parent.mkdir(exist_ok=True)
    (out / stranger).write_text("epsilon 0.001")
    with pytest.raises(ArtifactError, match="nothing else"):
        verify_course(out)


def test_tasks_that_were_all_fitted_on_all_classes_are_no_course(copy: Callable[[str], Path]) -> None:
    """A generator that says it is a classifier may list all classes; but it is none."""
    path, images = copy("dp-merf"), some_images()
    about = json.loads((path / "release" / "course.json").read_text())
    images = images.of_classes(tuple(about["spec"]["class_names"]))
    for number, size in ((1, 20), (2, 30)):
        task = path / "tasks" / str(number)
        shutil.rmtree(task)
        execute(images, tiny_plan(images, "dp-merf", epsilon=2.0, declared_size=size), task)
        config = json.loads((task / "release" / "config.json").read_text())
        (task / "release" / "config.json").write_text(json.dumps({**config, "tasks": about["tasks"][:number]}))
        update_manifest(task / "release")
    forge(path, claim=privacy_of_tasks(path, 2).claim.to_json(), veilset="another version")
    with pytest.raises(ArtifactError, match="a task of"):
        verify_course(path)


def test_a_missing_task_or_another_card_is_noticed(copy: Callable[[str], Path]) -> None:
    path = copy("dp-merf")
    card = path / "release" / "README.md"
    text = card.read_text()
    card.write_text(text.replace("is (2, 1e-05)", "is (1, 1e-05)"))
    with pytest.raises(ArtifactError, match="card"):
        verify_course(path)
    card.write_text(text)
    verify_course(path)
    shutil.rmtree(path / "tasks" / "2")
    with pytest.raises(ArtifactError, match="every task"):
        verify_course(path)


def test_a_dearer_task_cannot_be_put_in_the_place_of_another(copy: Callable[[str], Path], tmp_path: Path) -> None:
    path = copy("dp-merf")
    dear = learned(tmp_path / "dear", epsilon=8.0).path
    shutil.rmtree(path / "tasks" / "2")
    shutil.copytree(dear / "tasks" / "2", path / "tasks" / "2")
    with pytest.raises(ArtifactError):
        verify_course(path)


@pytest.mark.parametrize("stranger", ["3", "history.jsonl"])
def test_a_course_with_more_than_its_tasks_is_not_verified(
    stranger: str, finished: dict[str, Path], tmp_path: Path
) -> None:
    export_course(finished["dp-merf"], tmp_path / "shared")
    tasks = tmp_path / "shared" / "tasks"
    if stranger == "3":
        shutil.copytree(tasks / "1", tasks / stranger)
    else:
        (tasks / stranger).write_text("{}")
    with pytest.raises(ArtifactError, match=stranger):
        verify_course(tmp_path / "shared")


@pytest.mark.parametrize(
    "stated",
    [{"epsilon_of_each_task": 0.1}, {"epsilon": 0.1}, {"method": "psg"}, {"spec": {"height": 64}},
     {"spec": {"class_names": ["kind 0", "kind 1", "kind 2", "kind 3"]}}],
    ids=str,
)  # fmt: skip
def test_nothing_is_stated_about_a_course_that_its_tasks_do_not_say(
    stated: dict[str, Any], copy: Callable[[str], Path]
) -> None:
    path = copy("dp-merf")
    about = json.loads((path / "release" / "course.json").read_text())
    if "spec" in stated:
        stated = {"spec": {**about["spec"], **stated["spec"]}}
    forge(path, **stated, veilset="another version")
    with pytest.raises(ArtifactError):
        verify_course(path)


def test_public_scores_are_the_owners_word_and_everybody_is_told(finished: dict[str, Path]) -> None:
    word = verify_course(finished["measured"])["scores"]
    assert word.startswith("the owner's word")
    assert word.removeprefix("the owner's word") in (finished["measured"] / "release" / "README.md").read_text()
    assert "scores" not in verify_course(finished["dp-merf"])


@pytest.mark.parametrize(
    "change",
    [{"stage": 2}, {"num_classes": 4}, {"mean": 1.2}, {"mean": float("nan")}, {"sd": -0.1}, {"n": 0}, {"n": True},
     {"n": 2}, {"test": "another"}, {"test": None}, {"metric": "another"}, {"epsilon": 0.1}],
    ids=str,
)  # fmt: skip
def test_scores_that_cannot_be_those_of_the_tasks_are_noticed(
    change: dict[str, Any], copy: Callable[[str], Path]
) -> None:
    path = copy("measured")
    first, second = json.loads((path / "release" / "course.json").read_text())["scores"]
    forge(path, scores=[{**first, **change}, second], veilset="another version")
    with pytest.raises(ArtifactError):
        verify_course(path)


def test_scores_of_some_tasks_alone_are_noticed(copy: Callable[[str], Path]) -> None:
    path = copy("measured")
    first, _ = json.loads((path / "release" / "course.json").read_text())["scores"]
    forge(path, scores=[first], veilset="another version")
    with pytest.raises(ArtifactError, match="accuracy after each task"):
        verify_course(path)


def test_a_figure_nobody_can_check_is_no_part_of_a_course(copy: Callable[[str], Path]) -> None:
    path = copy("measured")
    verify_course(path)
    (path / "release" / "accuracy.png").write_bytes(b"epsilon 0.1")
    with pytest.raises(ArtifactError, match="nothing else"):
        verify_course(path)
