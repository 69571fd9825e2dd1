"""Accuracy after each task, on the classes so far; what touched private images never gets into a release."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import veilset
from veilset.courses import scores as scores_module
from veilset.courses.folder import CourseFolder
from veilset.courses.scores import Judges, asked_before, score_course, union
from veilset.data.spec import ImageSet, ImageSpec, Source
from veilset.errors import ConfigError, DataError, PrivacyError, RunError, VeilsetError
from veilset.evaluate import Score
from veilset.score_release import COMPARED

from .cases import BENCHMARK, FAST, SETTINGS, TASKS, learned, some_course, some_images


def measured(folder: CourseFolder, test: ImageSet, **options: Any) -> list[Score]:
    return score_course(folder, some_course(), test, options.pop("judges", FAST), **options)


def test_every_stage_is_judged_on_the_classes_so_far(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course")
    first, second = measured(folder, some_images(seed=1, source=BENCHMARK))
    assert first.details["classes"] == list(TASKS[0])
    assert second.details["classes"] == [*TASKS[0], *TASKS[1]]
    assert first.details["num_synthetic"] == 8
    assert second.details["num_synthetic"] == 16
    assert sum(map(sum, first.details["confusion"])) == 13
    assert sum(map(sum, second.details["confusion"])) == 22


def test_public_scores_are_shared_and_their_figure_is_drawn_by_whoever_wants_it(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course")
    found = measured(folder, some_images(seed=1, source=BENCHMARK))
    released = json.loads((folder.release / "course.json").read_text())["scores"]
    assert [score["mean"] for score in released] == [score.mean for score in found]
    assert (folder.vault / "accuracy.png").is_file()
    assert {path.name for path in folder.release.iterdir()} == {"course.json", "README.md"}
    card = (folder.release / "README.md").read_text()
    assert "Accuracy on a public test set" in card
    assert "veilset compare" in card
    assert COMPARED in card, "the training images are private"


def test_private_scores_stay_in_the_vault_and_leave_a_note(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course")
    before = {path: path.read_bytes() for path in folder.release.iterdir()}
    found = measured(folder, some_images(seed=1))
    assert all(score.touched_private_data for score in found)
    assert {path: path.read_bytes() for path in folder.release.iterdir()} == before
    for path in (folder.vault / "scores.json", folder.vault / "accuracy.png"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for number in (1, 2):
        assert (folder.task(number).vault / "exact-scores.jsonl").is_file()


def test_training_images_are_no_test_images(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course")
    with pytest.raises(DataError, match="kept back from training"):
        measured(folder, some_images())
    assert not (folder.vault / "scores.json").exists()


def test_a_public_test_set_holds_no_image_of_any_private_task(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course")
    with pytest.raises(PrivacyError, match="of this run, which is private"):
        measured(folder, some_images(source=BENCHMARK))
    assert not (folder.vault / "scores.json").exists()


def test_stages_measured_before_an_interrupt_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, test = learned(tmp_path / "course"), some_images(seed=1, source=BENCHMARK)
    stages: list[int] = []
    plain = scores_module._score

    def counting(*arguments: Any) -> Score:
        stages.append(arguments[4])
        if stages == [1, 2]:
            raise KeyboardInterrupt
        return plain(*arguments)

    monkeypatch.setattr(scores_module, "_score", counting)
    with pytest.raises(KeyboardInterrupt):
        measured(folder, test)
    measured(folder, test)
    assert stages == [1, 2, 2]
    measured(folder, test, judges=Judges(classifier="lda", samples_per_class=5))
    assert stages == [1, 2, 2, 1, 2], "other judges measure anew"


def test_a_resumed_course_is_judged_by_those_who_judged_it_where_nobody_else_is_named(tmp_path: Path) -> None:
    test = some_images(seed=1, source=BENCHMARK)
    options = {"epsilon": 2.0, "tasks": TASKS, "declared_sizes": (20, 30), "test": test, **SETTINGS["dp-merf"]}
    begun = veilset.continual(some_images(), method="dp-merf", out=tmp_path / "a", judges=FAST, **options)
    again = veilset.continual(some_images(), method="dp-merf", out=tmp_path / "a", resume=True, **options)
    assert again.scores == begun.scores
    assert again.scores[0].metric == "gen2real/lda"


ASKED = {"test": "mnist", "test_benchmark": None, "classifier": "lda", "seeds": [0], "samples_per_class": 5}
WITHOUT = [{name: ASKED[name] for name in ASKED if name != missing} for missing in ASKED]
WRONG = [{**ASKED, name: wrong} for name in ("classifier", "seeds", "samples_per_class") for wrong in (None, 0.5)]


@pytest.mark.parametrize(
    "content",
    ["{}", '{"asked": {}, "stages": [{}]}', '{"asked": 3, "stages": []}', "[]", "{",
     *(json.dumps({"asked": asked, "stages": []}) for asked in (*WITHOUT, *WRONG))],
)  # fmt: skip
def test_damaged_scores_are_named_and_not_a_traceback(tmp_path: Path, content: str) -> None:
    folder = CourseFolder(tmp_path)
    folder.vault.mkdir()
    (folder.vault / "scores.json").write_text(content)
    with pytest.raises(RunError, match=r"expected scores of a course at .*scores\.json"):
        asked_before(folder)


def test_a_released_classifier_is_judged_among_the_classes_it_has_seen(tmp_path: Path) -> None:
    folder = learned(tmp_path / "course", "dp-sgd")
    found = score_course(folder, some_course(method="dp-sgd"), some_images(seed=1, source=BENCHMARK), FAST)
    assert [score.metric for score in found] == ["continual/dp-sgd"] * 2
    assert len(found[0].details["confusion"]) == 2
    assert len(found[1].details["confusion"]) == 4


def bars(counts: tuple[int, ...], seed: int = 0) -> ImageSet:
    """Images that any classifier tells apart: class k is bright in the k-th pair of rows."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    pixels = torch.randint(0, 60, (len(labels), 1, 8, 8), generator=draws, dtype=torch.uint8)
    for row, label in enumerate(labels.tolist()):
        pixels[row, :, 2 * label : 2 * label + 2] += 180
    spec = ImageSpec(height=8, width=8, channels=1, class_names=tuple(f"kind {k}" for k in range(len(counts))))
    return ImageSet(spec=spec, pixels=pixels, labels=labels, source=BENCHMARK)


@pytest.mark.slow
def test_images_remember_earlier_tasks_and_a_trained_on_classifier_forgets_them(tmp_path: Path) -> None:
    train, test = bars((60,) * 4), bars((25,) * 4, seed=1)
    common: dict[str, Any] = {
        "epsilon": 1000.0, "tasks": TASKS, "declared_sizes": (120,), "test": test, "device": "cpu",
        "judges": Judges(classifier="lda", samples_per_class=50),
    }  # fmt: skip
    settings = {"epochs": 25, "expected_batch": 30, "width": 16, "learning_rate": 2.0, "clip_norm": 1.0}
    forgets = veilset.continual(train, method="dp-sgd", out=tmp_path / "sgd", **common, **settings)
    assert forgets.scores[0].mean > 0.9
    assert forgets.scores[1].mean < 0.6, "it knows the last task and has forgotten the first"
    generator = {**SETTINGS["dp-merf"], "frequencies": 200, "steps": 300, "hidden_size": 32, "images_per_step": 40}
    remembers = veilset.continual(train, method="dp-merf", out=tmp_path / "merf", **common, **generator)
    assert remembers.scores[1].mean > forgets.scores[1].mean + 0.2
    assert remembers.claim.epsilon == pytest.approx(1000.0, rel=1e-3)
    assert len(remembers.models) == len(forgets.models) == 2


def test_a_union_has_the_classes_of_all_in_their_order() -> None:
    images = some_images()
    whole = union([images.of_classes(task) for task in TASKS])
    assert whole.spec.class_names == (*TASKS[0], *TASKS[1])
    for name in whole.spec.class_names:
        mine = images.pixels[images.labels == images.spec.class_names.index(name)]
        assert torch.equal(whole.pixels[whole.labels == whole.spec.class_names.index(name)], mine)


@pytest.mark.parametrize("wrong", [{"classifier": "oracle"}, {"seeds": ()}, {"samples_per_class": 0}])
def test_judges_that_cannot_judge_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Judges(**wrong)


def test_a_test_set_that_does_not_fit_stops_before_anything_is_spent(tmp_path: Path) -> None:
    boastful = Source(benchmark="toys | eps_proven=0.1")
    for test in (
        some_images(seed=1, height=9, width=9),
        some_images(seed=1).of_classes(TASKS[0]),
        some_images(seed=1, source=boastful),
    ):
        with pytest.raises(VeilsetError):
            veilset.continual(
                some_images(), method="dp-merf", epsilon=1.0, tasks=TASKS, declared_sizes=(20,), test=test,
                out=tmp_path / "course",
            )  # fmt: skip
    assert not (tmp_path / "course").exists()
