"""`veilset continual` as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veilset.score_release import COMPARED

from .conftest import Cli

TASKS = ["--tasks", "dog, cat;bird,fish", "--declared-sizes", "10"]
TINY = ["--method", "dp-merf", "--steps", "3", "--frequencies", "8", "--hidden-size", "8", "--map-channels", "8"]
JUDGES = ["--classifier", "lda", "--samples-per-class", "4"]


Interrupts = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Interrupts:
    """Stops a course after the release of its first task."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    @contextmanager
    def interrupting() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr("veilset.methods.dp_merf.matching_loss", interrupt)
            yield

    return interrupting


def some_photos(folder: Path, seed: int) -> Path:
    values = np.random.default_rng(seed)
    for name in ("bird", "cat", "dog", "fish"):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            Image.fromarray(values.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return some_photos(tmp_path / "photos", 0)


def test_the_way_of_the_docs_from_photos_to_a_verified_export(cli: Cli, photos: Path, tmp_path: Path) -> None:
    test, course, shared = some_photos(tmp_path / "test", 1), tmp_path / "course", tmp_path / "shared"
    words = ["continual", photos, "--epsilon", "1", *TINY, *TASKS, *JUDGES, "--test", test, "--out", course]
    code, out, err = cli(*words)
    assert code == 0, err
    value = json.loads(out)
    assert value["claim"]["epsilon"] == pytest.approx(1.0)
    assert [score["details"]["classes"] for score in value["scores"]] == [
        ["dog", "cat"],
        ["dog", "cat", "bird", "fish"],
    ]
    assert "of each task and of all together (parallel composition" in err
    assert "task 1        dog, cat; declared size 10" in err
    assert "touched private data: do not publish" in err
    assert cli(*words, "--resume")[1] == out
    assert cli("export", course, "--out", shared)[0] == 0
    code, out, _ = cli("verify", shared)
    assert code == 0
    assert json.loads(out)["epsilon"] == pytest.approx(1.0)
    assert "accuracy" not in (shared / "README.md").read_text().lower()
    assert cli("sample", course / "tasks" / "2", "-n", "4", "--out", tmp_path / "images")[0] == 0


@pytest.mark.parametrize("there", ["a course", "a file", "no right"])
def test_where_a_course_cannot_be_written_no_image_is_read(
    there: str, cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "course"
    words = ["continual", photos, "--epsilon", "1", *TINY, *TASKS, "--out", out]
    if there == "a course":
        assert cli(*words)[0] == 0
    elif there == "a file":
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    else:
        monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("veilset.cli.continual.read_images", None)
    code, _, err = cli(*words)
    assert code == 2
    assert {"a course": "--resume", "a file": "empty", "no right": "may not be written to"}[there] in err


def test_classes_of_no_task_are_named(cli: Cli, photos: Path, tmp_path: Path) -> None:
    tasks = ["--tasks", "dog,fish", "--declared-sizes", "10"]
    code, _, err = cli("continual", photos, "--epsilon", "1", *TINY, *tasks, "--out", tmp_path / "course")
    assert code == 0, err
    assert "not learned   bird, cat: in none of the tasks" in err


def test_public_images_do_not_make_the_test_images_public(cli: Cli, photos: Path, tmp_path: Path) -> None:
    test = some_photos(tmp_path / "test", 1)
    words = ["continual", photos, "--epsilon", "1", *TINY, *TASKS, *JUDGES, "--test", test, "--benchmark", "mine"]
    for more, private in (([], True), (["--test-benchmark", "theirs"], False)):
        code, out, err = cli(*words, *more, "--out", tmp_path / f"{private}")
        assert code == 0, err
        assert {score["touched_private_data"] for score in json.loads(out)["scores"]} == {private}
        card = (tmp_path / f"{private}" / "release" / "README.md").read_text()
        assert ("Accuracy on a public test set" in card) == (not private)


def test_courses_are_compared_with_what_public_scores_of_private_images_tell(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    test = some_photos(tmp_path / "test", 1)
    words = ["continual", photos, "--epsilon", "1", *TINY, *TASKS, *JUDGES, "--test", test]
    for name, more, told in (
        ("a", ["--test-benchmark", "theirs"], True),
        ("b", ["--test-benchmark", "theirs", "--benchmark", "mine"], False),
        ("c", [], False),
    ):
        assert cli(*words, *more, "--out", tmp_path / name)[0] == 0
        code, _, err = cli("compare", tmp_path / name, "--out", tmp_path / f"{name}.svg")
        assert code == 0, err
        assert (COMPARED in err) == told
        assert f"wrote {tmp_path / name}.svg" in err


def test_courses_of_other_tasks_have_a_table_of_their_own(cli: Cli, photos: Path, tmp_path: Path) -> None:
    words = ["continual", photos, "--epsilon", "1", *TINY, *JUDGES, "--test", some_photos(tmp_path / "test", 1)]
    courses = {
        "a": TASKS,
        "other order": ["--tasks", "bird,fish;dog,cat", *TASKS[2:]],
        "three tasks": ["--tasks", "dog,cat;bird;fish", *TASKS[2:]],
    }
    for name, tasks in courses.items():
        code, _, err = cli(*words, *tasks, "--out", tmp_path / name)
        assert code == 0, err
    code, _, err = cli("compare", *(tmp_path / name for name in courses))
    assert code == 0, err
    assert [err.count(f"{tmp_path / name}  dp-merf") for name in courses] == [1, 1, 1]
    heads = [line for line in err.splitlines() if "eps proven" in line]
    assert sorted(line.split("eps proven")[1].split() for line in heads) == [
        ["task", "1", "task", "2"],
        ["task", "1", "task", "2"],
        ["task", "1", "task", "2", "task", "3"],
    ]


def test_the_classifier_baseline_is_a_method_of_this_command_alone(cli: Cli, photos: Path, tmp_path: Path) -> None:
    tiny = ["--epochs", "1", "--expected-batch", "5", "--width", "16"]
    code, out, err = cli(
        "continual", photos, "--method", "dp-sgd", "--epsilon", "5", *tiny, *TASKS, "--out", tmp_path / "a"
    )
    assert code == 0, err
    assert json.loads(out)["claim"]["accountant"].startswith("PLD")
    assert cli("verify", tmp_path / "a" / "tasks" / "2")[0] == 0
    assert cli("fit", photos, "--method", "dp-sgd", "--epsilon", "5", "--out", tmp_path / "b")[0] == 2
    code, _, err = cli("sample", tmp_path / "a" / "tasks" / "2", "--out", tmp_path / "images")
    assert code == 2
    assert "a classifier" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--epsilon", "1"], "the classes of each task"),
        (["--epsilon", "1", "--tasks", "dog,cat;bird,fish"], "a declared size for each of 2 tasks"),
        (["--epsilon", "1", *TASKS[:2], "--declared-sizes", "ten"], "whole numbers"),
        (["--epsilon", "1", "--tasks", "dog,cat;cat,fish", *TASKS[2:]], "every class in one task"),
        (["--epsilon", "1", "--tasks", "dog,cat;whale", *TASKS[2:]], "whale"),
        (["--epsilon", "1", *TASKS, "--adjacency", "replace"], "may change its class"),
        (["--epsilon", "1", *TASKS, "--unit", "user"], "images in several tasks"),
        (TASKS, "an epsilon"),
        (["--epsilon", "1", *TASKS, "--classifier", "oracle"], "distinct classifiers"),
        (["--epsilon", "1", *TASKS, "--test-benchmark", "mine"], "together with --test"),
        (["--epsilon", "1", *TASKS, "--test", "mnist", "--test-benchmark", "mine"], "together with --test"),
        (["--epsilon", "1", *TASKS, "--method", "pgs"], "psg"),
        (["--epsilon", "1", *TASKS, "--wings", "2"], "an option of"),
        (["--epsilon", "1", *TASKS, *TINY, "--resume"], "a course at"),
    ],
)
def test_what_is_typed_wrongly_is_told(
    words: list[str], complaint: str, cli: Cli, photos: Path, tmp_path: Path
) -> None:
    code, _, err = cli("continual", photos, *words, "--out", tmp_path / "out")
    assert code == 2
    assert complaint in err
    assert not (tmp_path / "out" / "tasks").exists()


def test_a_resumed_course_goes_on_as_it_was_begun(
    cli: Cli, photos: Path, tmp_path: Path, interrupts: Interrupts
) -> None:
    """Its images are read in their size and among all classes of the source, also those of no task."""
    Image.new("RGB", (20, 11)).save(photos / "cat" / "other.png")
    reading = ["--size", "9x10", "--fit", "crop", "--color", "grey", "--class-names", "bird,cat,cow,dog,fish"]
    words = ["--epsilon", "1", *TINY, "--tasks", "dog, cat;bird", "--declared-sizes", "10", "--seed", "3", *reading]
    with interrupts():
        assert cli("continual", photos, *words, "--out", tmp_path / "a")[0] == 130
    test = some_photos(tmp_path / "test", 1)
    code, out, err = cli("continual", photos, "--out", tmp_path / "a", "--resume", "--test", test, *JUDGES)
    assert code == 0, err
    value = json.loads(out)
    assert (value["method"], len(value["scores"])) == ("dp-merf", 2)
    assert value["claim"]["epsilon"] == pytest.approx(1.0)
    assert cli("continual", photos, *words, "--out", tmp_path / "a", "--resume")[0] == 0


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (["--epsilon", "2"], "epsilon"), (["--method", "psg"], "method"), (["--tasks", "dog,fish"], "tasks"),
        (["--declared-sizes", "20"], "declared_sizes"), (["--seed", "1"], "seed"), (["--steps", "4"], "steps"),
        (["--learning-rate", "1"], "learning_rate"), (["--wings", "2"], "wings"), (["--unit", "user"], "several tasks"),
        (["--size", "9"], "size"), (["--class-names", "fish,dog,cat,bird"], "class_names"),
    ],
)  # fmt: skip
def test_a_resumed_course_refuses_what_is_typed_differently(
    other: list[str], named: str, cli: Cli, photos: Path, tmp_path: Path, interrupts: Interrupts
) -> None:
    with interrupts():
        assert cli("continual", photos, "--epsilon", "1", *TINY, *TASKS, "--out", tmp_path / "a")[0] == 130
    code, _, err = cli("continual", photos, "--out", tmp_path / "a", "--resume", *other)
    assert code == 2
    assert named in err
    assert cli("continual", photos, "--out", tmp_path / "a", "--resume", *TASKS, *TINY, "--epsilon", "1.0")[0] == 0


def test_a_resumed_course_is_measured_as_it_was_begun(
    cli: Cli, photos: Path, tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_photos(tmp_path / "test", 1)
    monkeypatch.chdir(tmp_path)
    words = ["continual", photos, "--out", tmp_path / "a"]
    measured = [*JUDGES, "--seeds", "2", "--test", "test", "--test-benchmark", "theirs"]
    with interrupts():
        assert cli(*words, "--epsilon", "1", *TINY, *TASKS, *measured)[0] == 130
    monkeypatch.chdir(photos)
    code, out, err = cli(*words, "--resume")
    assert code == 0, err
    scores = json.loads(out)["scores"]
    assert [(score["metric"], score["n"], score["details"]["num_synthetic"]) for score in scores] == [
        ("gen2real/lda", 2, 8), ("gen2real/lda", 2, 16),
    ]  # fmt: skip
    assert "Measured on theirs." in (tmp_path / "a" / "release" / "README.md").read_text()
    monkeypatch.setattr("veilset.courses.scores._score", None)  # nothing is measured again
    monkeypatch.chdir(tmp_path)
    assert cli(*words, "--resume", *measured)[1] == out
    assert cli(*words, "--resume", "--seeds", "2")[1] == out


@pytest.mark.parametrize(
    "other",
    [["--classifier", "cnn"], ["--seeds", "2"], ["--samples-per-class", "5"], ["--test", "photos"],
     ["--test", "mnist"], ["--test-benchmark", "mine"]],
    ids=str,
)  # fmt: skip
def test_a_resumed_course_is_not_measured_otherwise(
    other: list[str], cli: Cli, photos: Path, tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_photos(tmp_path / "test", 1)
    monkeypatch.chdir(tmp_path)
    words = ["continual", photos, "--out", "a"]
    with interrupts():
        assert cli(*words, "--epsilon", "1", *TINY, *TASKS, *JUDGES, "--test", "test")[0] == 130
    code, _, err = cli(*words, "--resume", *other)
    assert code == 2
    assert "begun with: " + other[0].strip("-").replace("-", "_") in err
    assert "found " + other[0].strip("-").replace("-", "_") in err


def test_test_images_of_other_classes_are_to_be_left_out(cli: Cli, photos: Path, tmp_path: Path) -> None:
    test = some_photos(tmp_path / "test", 1)
    (test / "fish").rename(test / "cow")
    code, _, err = cli("continual", photos, "--epsilon", "1", *TINY, *TASKS, "--test", test, "--out", tmp_path / "a")
    assert code == 2
    assert "--class-names" not in err
    assert "leave others out" in err


def test_test_images_that_were_refused_are_not_what_a_course_was_begun_with(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    test, words = some_photos(tmp_path / "test", 1), ["continual", photos, "--out", tmp_path / "a"]
    code, _, err = cli(*words, "--epsilon", "1", *TINY, *TASKS, *JUDGES, "--test", photos, "--test-benchmark", "mine")
    assert code == 2
    assert "among the training images" in err
    code, out, err = cli(*words, "--resume", *JUDGES, "--test", test)
    assert code == 0, err
    assert len(json.loads(out)["scores"]) == 2


def test_judges_without_anything_to_judge_by_are_refused(
    cli: Cli, photos: Path, tmp_path: Path, interrupts: Interrupts
) -> None:
    """A resume with test images would not know them."""
    words = ["continual", photos, "--epsilon", "1", *TINY, *TASKS, "--out", tmp_path / "a"]
    code, _, err = cli(*words, *JUDGES)
    assert code == 2
    assert "--classifier, --samples-per-class together with --test" in err
    with interrupts():
        assert cli(*words)[0] == 130
    assert cli(*words, "--resume", *JUDGES)[0] == 2


def test_options_of_a_resumed_course_agree_however_they_are_written(
    cli: Cli, photos: Path, tmp_path: Path, interrupts: Interrupts
) -> None:
    words = ["continual", photos, "--epsilon", "1", *TINY, *TASKS, "--out", tmp_path / "a"]
    with interrupts():
        assert cli(*words, "--learning-rate", "1e-3", "--delta", "1e-5")[0] == 130
    code, _, err = cli(*words, "--resume", "--learning-rate", "0.0010", "--delta", "0.00001", "--images-per-step", "64")
    assert code == 2
    assert "images_per_step 64" in err
    assert "learning_rate" not in err
    code, _, err = cli(*words, "--resume", "--learning-rate", "0.0010", "--delta", "0.00001", "--steps", "03")
    assert code == 0, err


def test_help_says_why_epsilon_is_not_a_sum_and_when_it_would_be(cli: Cli) -> None:
    code, out, _ = cli("continual", "--help")
    assert code == 0
    for word in ("parallel composition", "refused", "--declared-sizes", "dp-sgd", "Example"):
        assert word in " ".join(out.split())


def test_a_report_is_made_of_runs_and_not_of_courses(cli: Cli, photos: Path, tmp_path: Path) -> None:
    assert cli("continual", photos, "--epsilon", "1", *TINY, *TASKS, "--out", tmp_path / "a", "--quiet")[0] == 0
    code, _, err = cli("report", tmp_path / "a")
    assert code == 2
    assert "README.md" in err
