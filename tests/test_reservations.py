"""What happens to a paid reservation when a purchase is stopped, or when two of them meet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from purchases import buy, charged, fix_classifiers, held_out, with_budget, write_held_out

from veilset import budget as accounts
from veilset.budget import DatasetBudget
from veilset.data.spec import ImageSet, Source
from veilset.dp_scores import reserve_scores
from veilset.errors import BudgetExceeded, LedgerError, RunError
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.fitting import Classifier
from veilset.model import Model
from veilset.privacy.ledger import ChainedFile
from veilset.run_folder import RunFolder
from veilset.score_plan import PURCHASES, RESERVED


@pytest.fixture(autouse=True)
def _fixed_classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_classifiers(monkeypatch)


@pytest.fixture
def test_folder(tmp_path: Path) -> Path:
    folder = write_held_out(tmp_path / "held out")
    with_budget(folder)
    return folder


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Does something while the second classifier of a purchase is trained, once."""
    fit = CLASSIFIERS["second"].fit

    def fit_and_act(train: ImageSet, ctx: Any) -> Any:
        monkeypatch.setitem(CLASSIFIERS, "second", Classifier(fit=fit))
        action()
        return fit(train, ctx)

    monkeypatch.setitem(CLASSIFIERS, "second", Classifier(fit=fit_and_act))


def test_a_budget_that_another_command_holds_leaves_the_reservation_to_the_next_purchase(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, account = held_out(test_folder), DatasetBudget.find(test_folder)
    assert account is not None
    begin = DatasetBudget.begin

    def begin_while_held(self: DatasetBudget, *planned: Any, **terms: Any) -> None:
        holder = ChainedFile(self._account, create=False)
        try:
            begin(self, *planned, **terms)
        finally:
            holder.unlock()

    with monkeypatch.context() as patch:
        patch.setattr(accounts, "WAIT_SECONDS", 0.0)
        patch.setattr(DatasetBudget, "begin", begin_while_held)
        with pytest.raises(LedgerError, match="locked"):
            buy(run, test)
    assert (run.vault / PURCHASES / RESERVED).is_file()
    assert buy(run, test)
    assert charged(test_folder) == pytest.approx(4.0), "paid once"


def test_a_second_purchase_at_the_same_time_is_refused_before_it_trains_anything(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = held_out(test_folder)
    refusals: list[str] = []

    def second() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Model, "sample", None)
            with pytest.raises(RunError, match="one purchase of a run at a time") as caught:
                buy(run, test)
        refusals.append(caught.value.todo)

    meanwhile(monkeypatch, second)
    assert buy(run, test)
    assert len(refusals) == 1
    assert charged(test_folder) == pytest.approx(4.0)


def test_a_reservation_that_vanishes_during_training_is_explained(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, lambda: (run.vault / PURCHASES / RESERVED).unlink())
    with pytest.raises(RunError, match="the reservation of this purchase"):
        buy(run, held_out(test_folder))
    assert not (run.release / "scores.json").exists()


def test_a_reservation_that_a_copy_of_the_run_used_is_refused_before_training_and_then_out_of_the_way(
    run: RunFolder, test_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve_scores(run, Source(path=str(test_folder)), 4.0, before_fit=True)
    copy = RunFolder.open(Path(shutil.copytree(run.path, tmp_path / "copy of the run")))
    test = held_out(test_folder)
    buy(run, test)
    with monkeypatch.context() as patch:
        patch.setattr(Model, "sample", None)
        with pytest.raises(BudgetExceeded, match="run before") as caught:
            buy(copy, test)
    assert "another purchase" in caught.value.todo
    assert not buy(copy, test).reserved_before_fit, "a new one, charged again"
    assert charged(test_folder) > 4.0


def test_killed_after_the_reservation_was_used_stays_charged_and_blocks_nothing(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = held_out(test_folder)
    begin = DatasetBudget.begin

    def begin_and_die(self: DatasetBudget, *planned: Any, **terms: Any) -> None:
        begin(self, *planned, **terms)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DatasetBudget, "begin", begin_and_die)
        with pytest.raises(KeyboardInterrupt):
            buy(run, test)
    with pytest.raises(BudgetExceeded, match="run before"):
        buy(run, test)
    assert buy(run, test)
    assert charged(test_folder) > 4.0
