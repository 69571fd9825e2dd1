"""What is not planned is not released: the refusal comes before any noise is drawn, and no release is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from veilset.errors import BudgetExceeded, PrivacyError
from veilset.privacy.events import NOTHING, Gaussian, steps
from veilset.privacy.ledger import LedgerRecord, read_chain
from veilset.privacy.release import Door
from veilset.run import execute

from .cases import METHODS, make_images, num_releases, tiny_plan


def twice(release: Callable[..., Any]) -> Callable[..., Any]:
    """A release that, like an off-by-one loop, goes through the door once more than planned."""

    def both(self: Door, *arguments: Any, draw: Any = None) -> Any:
        release(self, *arguments, draw=draw)
        return release(self, *arguments, draw=draw)

    return both


def ledger_of(run: Path) -> LedgerRecord:
    return LedgerRecord(read_chain((run / "vault" / "ledger.jsonl").read_text().splitlines()))


@pytest.mark.parametrize("method", METHODS)
def test_one_release_more_than_planned_is_refused(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise_drawn: Counter[str]
) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    monkeypatch.setattr(Door, "release_sum", twice(Door.release_sum))
    monkeypatch.setattr(Door, "release_rows", twice(Door.release_rows))
    with pytest.raises(PrivacyError):
        execute(images, plan, tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()
    assert 0 < noise_drawn["releases"] <= num_releases(steps(plan.planned))
    assert ledger_of(tmp_path / "run").charged <= steps(plan.planned)


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_without_releases_lets_nothing_through(method: str, tmp_path: Path, noise_drawn: Counter[str]) -> None:
    images = make_images()
    plan = replace(tiny_plan(images, method), planned=NOTHING, reserve=NOTHING)
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        execute(images, plan, tmp_path / "run")
    assert noise_drawn["releases"] == 0
    assert ledger_of(tmp_path / "run").charged == Counter()
    assert not (tmp_path / "run" / "release").exists()


@pytest.mark.parametrize("method", METHODS)
def test_a_release_with_less_noise_than_planned_is_refused(
    method: str, tmp_path: Path, noise_drawn: Counter[str]
) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    with pytest.raises(BudgetExceeded):
        execute(images, replace(plan, noise_multiplier=plan.noise_multiplier / 3), tmp_path / "run")
    assert noise_drawn["releases"] == 0


@pytest.mark.parametrize("method", METHODS)
def test_the_crash_reserve_is_not_for_runs_that_did_not_crash(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise_drawn: Counter[str]
) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    generous = replace(plan, reserve=plan.planned)
    monkeypatch.setattr(Door, "release_sum", twice(Door.release_sum))
    monkeypatch.setattr(Door, "release_rows", twice(Door.release_rows))
    with pytest.raises(PrivacyError):
        execute(images, generous, tmp_path / "run")
    assert noise_drawn["releases"] <= num_releases(steps(plan.planned))


def test_charging_an_event_the_plan_does_not_know_is_refused_even_if_it_is_cheap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images()
    plan = tiny_plan(images, "dp-merf")
    original = Door.release_sum

    def cheaper(self: Door, total: Any, noise_multiplier: float, **options: Any) -> Any:
        return original(self, total, noise_multiplier * 1000, **options)

    monkeypatch.setattr(Door, "release_sum", cheaper)
    with pytest.raises(BudgetExceeded):
        execute(images, plan, tmp_path / "run")
    assert Gaussian(plan.noise_multiplier * 1000) not in ledger_of(tmp_path / "run").charged
