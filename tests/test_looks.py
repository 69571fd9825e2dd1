"""Buy before you look: an exact measurement on private images is remembered, whatever becomes of its scores."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract.cases import make_images, tiny_plan
from purchases import QUIET, REQUEST, buy, charged, fix_classifiers, held_out, with_budget, write_held_out

from veilset.budget import DatasetBudget
from veilset.data.spec import ImageSet, Source
from veilset.dp_scores import reserve_scores
from veilset.errors import ConfigError, PrivacyError
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.fitting import Classifier
from veilset.looks import LOOKS
from veilset.model import Model
from veilset.run import execute
from veilset.run_folder import RunFolder
from veilset.score_plan import PURCHASES, RESERVED
from veilset.scoring import Request, score_run


@pytest.fixture(autouse=True)
def _fixed_classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_classifiers(monkeypatch)


@pytest.fixture
def other_run(run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder.open(Path(shutil.copytree(run.path, tmp_path / "other run")))


@pytest.fixture
def test_folder(tmp_path: Path) -> Path:
    return write_held_out(tmp_path / "held out")


def look(run: RunFolder, test: ImageSet, **options: Any) -> None:
    score_run(run, test, Request(**REQUEST), **QUIET, **options)


def public_images(seed: int = 77) -> ImageSet:
    return make_images((20, 20, 20), seed=seed, source=Source(benchmark="toy"))


def refused(run: RunFolder, test: ImageSet) -> None:
    with pytest.raises(PrivacyError, match="before exact ones are seen"):
        buy(run, test)


def test_scores_on_a_benchmark_do_not_cover_up_those_on_private_images(run: RunFolder, test_folder: Path) -> None:
    test = held_out(test_folder)
    look(run, test)
    look(run, public_images())
    refused(run, test)


def test_deleting_the_exact_scores_does_not_undo_the_look(run: RunFolder, test_folder: Path) -> None:
    test = held_out(test_folder)
    look(run, test)
    (run.vault / "scores.json").unlink()
    refused(run, test)


def test_the_look_is_noted_before_anything_is_measured(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops an evaluation after its progress told him enough has looked."""
    budget, test = with_budget(test_folder), held_out(test_folder)
    seen: list[bool] = []

    def sample(*_: object, **__: object) -> None:
        seen.append((run.vault / LOOKS).is_file() and bool(budget.noted("look")))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Model, "sample", sample)
        with pytest.raises(KeyboardInterrupt):
            look(run, test)
    assert seen == [True]
    refused(run, test)


def test_a_look_at_a_test_set_with_a_budget_is_known_to_every_other_run(
    run: RunFolder, other_run: RunFolder, test_folder: Path
) -> None:
    with_budget(test_folder)
    test = held_out(test_folder)
    look(run, test)
    refused(other_run, test)
    assert charged(test_folder) == 0.0


def test_without_a_budget_other_runs_cannot_know(run: RunFolder, other_run: RunFolder, test_folder: Path) -> None:
    """The documentation says so; this is why a test set should have a budget."""
    test = held_out(test_folder)
    look(run, test)
    assert buy(other_run, test)


def test_a_look_with_real_training_images_is_one_at_them_too(run: RunFolder, test_folder: Path) -> None:
    budget = with_budget(test_folder)
    look(run, public_images(), real=held_out(test_folder))
    assert len(budget.noted("look")) == 1
    refused(run, held_out(test_folder))


def test_a_look_during_the_training_of_classifiers_stops_the_release(
    run: RunFolder, other_run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_budget(test_folder)
    test = held_out(test_folder)
    fit = CLASSIFIERS["second"].fit

    def look_meanwhile(train: ImageSet, ctx: Any) -> Any:
        monkeypatch.setitem(CLASSIFIERS, "second", Classifier(fit=fit))
        look(other_run, test)
        return fit(train, ctx)

    monkeypatch.setitem(CLASSIFIERS, "second", Classifier(fit=look_meanwhile))
    refused(run, test)
    assert (run.vault / PURCHASES / RESERVED).is_file(), "nothing was released, so the reservation is not used up"
    assert not (run.release / "scores.json").exists()


def test_nothing_is_reserved_for_a_test_set_that_was_looked_at(
    run: RunFolder, test_folder: Path, tmp_path: Path
) -> None:
    with_budget(test_folder)
    look(run, held_out(test_folder))
    images = make_images()

    def reserve(folder: RunFolder) -> None:
        reserve_scores(folder, Source(path=str(test_folder)), 4.0, before_fit=True)

    with pytest.raises(PrivacyError, match="before exact ones are seen"):
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / "new", prepare=reserve)
    assert charged(test_folder) == 0.0


def test_looking_again_adds_nothing_to_the_account(run: RunFolder, other_run: RunFolder, test_folder: Path) -> None:
    budget, test = with_budget(test_folder), held_out(test_folder)
    for folder in (run, run, other_run):
        look(folder, test)
    assert len(budget.noted("look")) == 2
    assert budget.status() == replace(budget.status(), epsilon_charged=0.0, runs_settled=0, runs_unsettled=0)


def test_images_with_a_budget_cannot_be_looked_at_as_a_benchmark(run: RunFolder, test_folder: Path) -> None:
    budget = with_budget(test_folder)
    with pytest.raises(ConfigError, match="a public benchmark"):
        look(run, held_out(test_folder, benchmark="toy"))
    assert DatasetBudget.find(test_folder) is not None
    assert not budget.noted("look")


def test_the_note_is_for_the_owner_alone_and_grows_only(run: RunFolder, test_folder: Path) -> None:
    look(run, held_out(test_folder))
    first = (run.vault / LOOKS).read_bytes()
    look(run, held_out(test_folder))
    assert (run.vault / LOOKS).read_bytes().startswith(first)
    assert (run.vault / LOOKS).stat().st_mode & 0o777 == 0o600


def test_a_refusal_speaks_of_a_charge_only_where_there_is_one(run: RunFolder, test_folder: Path) -> None:
    with_budget(test_folder)
    look(run, held_out(test_folder))
    with pytest.raises(PrivacyError) as caught:
        buy(run, held_out(test_folder))
    assert "charged" not in caught.value.todo


def test_a_refusal_says_that_what_was_reserved_stays_charged(run: RunFolder, test_folder: Path) -> None:
    with_budget(test_folder)
    reserve_scores(run, Source(path=str(test_folder)), 4.0, before_fit=True)
    look(run, held_out(test_folder))
    with pytest.raises(PrivacyError) as caught:
        buy(run, held_out(test_folder))
    assert "What was reserved stays charged." in caught.value.todo
