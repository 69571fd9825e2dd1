"""Files that other code wrote in another shape: whoever reads them is told so, and who wrote them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images, rewrite_bytes, rewrite_json, tiny_plan
from courses.cases import learned
from safetensors.torch import load_file, save

from veilset.classifier import open_classifier
from veilset.courses.release import verify_course
from veilset.data.spec import ImageSet
from veilset.errors import ArtifactError, ConfigError, RunError, VeilsetError
from veilset.methods.plan import Plan
from veilset.model import from_pretrained
from veilset.run import execute, resume
from veilset.sharing import verify
from veilset.sketch_release import open_sketch
from veilset.version import __version__, read_as_ours

Change = Callable[[dict[str, Any]], Any]
OPTIONS: dict[str, Change] = {
    "unknown": lambda settings: settings.update(wings=2),
    "missing": lambda settings: settings.pop("latent_size"),
}
TENSORS: dict[str, Change] = {
    "missing": lambda tensors: tensors.pop(min(tensors)),
    "further": lambda tensors: tensors.update(more=torch.zeros(2)),
    "other shape": lambda tensors: tensors.update({min(tensors): torch.zeros(3, 3)}),
}
PLANS: dict[str, Change] = {
    "unknown option": lambda plan: plan["config"].update(wings=2),
    "missing option": lambda plan: plan["config"].pop("steps"),
    "unknown method": lambda plan: plan.update(method="dp-old"),
    "unknown field": lambda plan: plan.update(wings=2),
    "missing field": lambda plan: plan.pop("forecast"),
    "unknown fact": lambda plan: plan["facts"].update(wings=2),
}


def assert_told(error: VeilsetError, writer: str) -> None:
    assert f"as Veilset {__version__} writes it" in error.expected
    assert f"written by {writer}, with other settings or other code" in error.found
    assert error.todo.startswith("Use the version that wrote it")


def dies(*_: object) -> None:
    raise KeyboardInterrupt


def with_settings(release: Path, change: Change, **more: object) -> None:
    settings = json.loads((release / "config.json").read_text())["config"]
    change(settings)
    rewrite_json(release / "config.json", config=settings, **more)


@pytest.mark.parametrize("change", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("method", ["dp-merf", "sketch", "gs-wgan"])
def test_a_release_with_other_options_says_who_wrote_it(
    copy_of_run: Callable[[str], Path], method: str, change: Change
) -> None:
    run = copy_of_run(method)
    with_settings(run / "release", change, veilset="0.0.9")
    for read in (from_pretrained, verify):
        with pytest.raises(ArtifactError) as told:
            read(run)
        assert_told(told.value, "Veilset '0.0.9'")


@pytest.mark.parametrize("change", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize(
    ("method", "file", "read"),
    [("dp-merf", "model", from_pretrained), ("sketch", "sketch", open_sketch), ("sketch", "sketch", verify)],
)
def test_a_release_with_other_tensors_says_who_wrote_it(
    copy_of_run: Callable[[str], Path], method: str, file: str, read: Callable[[Path], Any], change: Change
) -> None:
    run = copy_of_run(method)
    path = run / "release" / f"{file}.safetensors"
    tensors = load_file(path)
    change(tensors)
    rewrite_bytes(path, save(tensors))
    with pytest.raises(ArtifactError, match="tensors of the declared method") as told:
        read(run)
    assert_told(told.value, f"Veilset '{__version__}'")


def test_settings_that_lack_an_option_are_not_taken_for_a_forged_card(copy_of_run: Callable[[], Path]) -> None:
    """A model that does without it is sampled all the same; `verify` compares everything."""
    run = copy_of_run()
    with_settings(run / "release", lambda settings: settings.pop("steps"))
    assert len(from_pretrained(run).sample(3)) == 3
    with pytest.raises(ArtifactError, match="no steps") as told:
        verify(run)
    assert_told(told.value, f"Veilset '{__version__}'")


def test_a_release_that_names_no_version_is_told_too(copy_of_run: Callable[[], Path]) -> None:
    run = copy_of_run()
    with_settings(run / "release", OPTIONS["unknown"], veilset=None)
    with pytest.raises(ArtifactError) as told:
        from_pretrained(run)
    assert_told(told.value, "a version that it does not name")


def test_classifiers_and_courses_say_who_wrote_them(tmp_path: Path) -> None:
    path = learned(tmp_path / "course", "dp-sgd").path
    release = path / "tasks" / "1" / "release"
    with_settings(release, OPTIONS["unknown"], veilset="0.0.9")
    with pytest.raises(ArtifactError) as told:
        open_classifier(path / "tasks" / "1")
    assert_told(told.value, "Veilset '0.0.9'")
    page = path / "release" / "course.json"
    value = json.loads(page.read_text())
    del value["tasks"]
    page.write_text(json.dumps(value))
    with pytest.raises(ArtifactError, match="no 'tasks'") as told:
        verify_course(path)
    assert_told(told.value, f"Veilset '{__version__}'")


@pytest.mark.parametrize("change", PLANS.values(), ids=PLANS)
def test_a_run_that_was_begun_with_other_options_is_not_resumed_and_says_who_began_it(
    images: ImageSet, plan: Plan, tmp_path: Path, change: Change, noise_drawn: Counter[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "run", progress=dies)
    path = tmp_path / "run" / "vault" / "plan.json"
    value = json.loads(path.read_text())
    assert value["veilset"] == __version__
    change(value)
    path.write_text(json.dumps({**value, "veilset": "0.0.9"}))
    with pytest.raises(ConfigError) as told:
        resume(images, tmp_path / "run")
    assert_told(told.value, "Veilset '0.0.9'")
    assert noise_drawn["releases"] == 0


@pytest.mark.parametrize("change", [TENSORS["missing"], TENSORS["other shape"]], ids=["missing", "other shape"])
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("dp-merf", "embedding"), ("sketch", "round 0"), ("sketch", "networks 1"), ("sketch", "generator 0"),
        ("gs-wgan", "generator"), ("psg", "set"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_shape_is_told_in_words(
    tmp_path: Path, method: str, name: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, run = make_images(), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("veilset.run._finish", dies)
        with pytest.raises(KeyboardInterrupt):
            execute(images, tiny_plan(images, method), run)
    path = run / "vault" / "checkpoints" / f"{name}.safetensors"
    tensors = load_file(path)
    change(tensors)
    path.write_bytes(save(tensors))
    with pytest.raises(RunError, match=f"the checkpoint '{name}' as Veilset") as told:
        resume(images, run)
    assert "other settings or other code" in told.value.found
    assert "vault/plan.json names it" in told.value.todo


def test_a_complaint_about_what_no_version_writes_passes_as_it_is() -> None:
    with pytest.raises(ArtifactError, match="Do not trust"), read_as_ours("a model", {}):
        raise ArtifactError("an honest one", "another", "Do not trust it.")
