"""Killed anywhere, a run can be resumed; its ledger may over-count what was released, never under-count."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import veilset
from veilset.data.spec import ImageSet
from veilset.engines import checkpointing, shard_teaching, sketch_rounds, teaching_settings
from veilset.errors import BudgetExceeded, LedgerError, RunError
from veilset.methods import dpaf, ndpdc, psg
from veilset.methods.plan import Plan
from veilset.model import Model
from veilset.privacy.events import steps
from veilset.privacy.ledger import LedgerRecord, read_chain
from veilset.privacy.noise import NoiseSource, SeededNoise
from veilset.run import execute, resume
from veilset.run_folder import RunFolder
from veilset.sharing import verify

from .cases import METHODS, digest, make_images, num_releases, tiny_plan


class Killed(Exception):
    """Stands in for a crash: nothing in Veilset catches it."""


def dies_at(call: int) -> Callable[[str, int, int], None]:
    """A progress callback that dies the `call`-th time (from 0; negative: never)."""
    calls = iter(range(10**9))

    def progress(*_: Any) -> None:
        if next(calls) == call:
            raise Killed

    return progress


def progress_calls(images: ImageSet, plan: Plan, path: Path) -> int:
    calls = []
    execute(images, plan, path, progress=lambda *event: calls.append(event))
    return len(calls)


@pytest.fixture(autouse=True)
def _checkpoints_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "PARTS", 1)  # plans of the suite are too short to be kept in twenty parts
    for engine in (teaching_settings, sketch_rounds):
        monkeypatch.setattr(engine, "CHECKPOINT_EVERY", 2)
    for method in veilset.all_methods().values():
        module = sys.modules[type(method).__module__]
        monkeypatch.setattr(module, "CHECKPOINT_EVERY", 2, raising=False)


def charged(run: Path) -> Counter[Any]:
    return LedgerRecord(read_chain((run / "vault" / "ledger.jsonl").read_text().splitlines())).charged


def weights(model: Model) -> str:
    return digest(model._module.state_dict())


def crash(images: ImageSet, plan: Plan, run: Path, at: int, noise: NoiseSource | None = None) -> None:
    with pytest.raises(Killed):
        execute(images, plan, run, progress=dies_at(at), noise=noise)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_at_any_point_can_be_resumed_and_never_under_counts(
    method: str, tmp_path: Path, noise_drawn: Counter[str]
) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    calls = progress_calls(images, plan, tmp_path / "undisturbed")
    assert calls >= 2
    points = sorted({0, 1, calls // 2, calls - 2, calls - 1})
    for at in points:
        run = tmp_path / f"killed at {at}"
        noise_drawn.clear()
        crash(images, plan, run, at)
        assert noise_drawn["releases"] <= num_releases(charged(run))
        assert not (run / "release").exists()
        before = charged(run)
        model = resume(images, run)
        record = model.privacy.record
        assert before <= record.charged, "what was charged stays charged"
        assert noise_drawn["releases"] <= num_releases(record.charged)
        assert record.charged <= steps(plan.planned) + steps(plan.reserve)
        assert record.resumed == 1
        assert record.closed
        assert model.claim.epsilon is not None
        assert model.claim.epsilon <= 5.0
        assert verify(run)["method"] == method


@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_again_and_again_still_finishes_within_plan_and_reserve(method: str, tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    calls = progress_calls(images, plan, tmp_path / "undisturbed")
    run = tmp_path / "run"
    crash(images, plan, run, calls - 1)
    for _ in range(2):
        with pytest.raises(Killed):
            resume(images, run, progress=dies_at(1))  # the first call is about comparing the images
    model = resume(images, run)
    assert model.privacy.record.resumed == 3
    assert model.privacy.record.charged <= steps(plan.planned) + steps(plan.reserve)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_after_its_last_release_ends_with_the_weights_of_an_undisturbed_one(
    method: str, tmp_path: Path
) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    calls = progress_calls(images, plan, tmp_path / "count")
    undisturbed = execute(images, plan, tmp_path / "undisturbed", noise=SeededNoise(5))
    crash(images, plan, tmp_path / "killed", calls - 1, noise=SeededNoise(5))
    assert weights(resume(images, tmp_path / "killed")) == weights(undisturbed)


KILLED_HARD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from contract.cases import make_images, tiny_plan
from veilset.run import execute
images, calls = make_images(), iter(range(10**9))
def progress(*_):
    if next(calls) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
execute(images, tiny_plan(images, sys.argv[2]), Path(sys.argv[3]), progress=progress)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_process_killed_by_signal_9_can_be_resumed_by_another(method: str, tmp_path: Path) -> None:
    images = make_images()
    calls = progress_calls(images, tiny_plan(images, method), tmp_path / "undisturbed")
    run = tmp_path / "run"
    arguments = [str(Path(__file__).parents[1]), method, str(run), str(calls - 1)]
    done = subprocess.run([sys.executable, "-c", KILLED_HARD, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert charged(run).total() > 0
    model = resume(images, run)
    assert model.privacy.record.resumed == 1
    assert model.claim.epsilon is not None
    assert model.claim.epsilon <= 5.0


@pytest.mark.parametrize("method", METHODS)
def test_a_crash_between_charge_and_checkpoint_costs_the_release_and_a_resume_pays_again_or_stops(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise_drawn: Counter[str]
) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    original = RunFolder.save

    def dies(self: RunFolder, name: str, tensors: Any) -> None:
        if not noise_drawn["releases"]:
            original(self, name, tensors)
            return
        monkeypatch.setattr(RunFolder, "save", original)
        raise Killed

    monkeypatch.setattr(RunFolder, "save", dies)
    run = tmp_path / "run"
    with pytest.raises(Killed):
        execute(images, plan, run)
    assert noise_drawn["releases"] > 0, "the value was drawn and lost"
    spent = charged(run)
    drawn = noise_drawn["releases"]
    planned = steps(plan.planned)
    if all(planned[event] == count for event, count in spent.items()) and not steps(plan.reserve):
        with pytest.raises(BudgetExceeded, match="Nothing was released"):
            resume(images, run)
        assert noise_drawn["releases"] == drawn
        assert not (run / "release").exists()
        assert charged(run) == spent
    else:
        model = resume(images, run)
        assert noise_drawn["releases"] <= num_releases(model.privacy.record.charged)


@pytest.mark.parametrize("method", METHODS)
def test_resuming_a_finished_run_just_loads_it(
    method: str, copy_of_run: Callable[[str], Path], noise_drawn: Counter[str]
) -> None:
    run = copy_of_run(method)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    model = resume(make_images(), run)
    assert model.claim.epsilon is not None
    assert noise_drawn["releases"] == 0
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("method", METHODS)
def test_a_crash_while_the_release_is_written_leaves_no_half_release(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images()
    run = tmp_path / "run"
    with monkeypatch.context() as patch:

        def dies(folder: Path) -> None:
            raise Killed

        patch.setattr("veilset.artifact.update_manifest", dies)
        with pytest.raises(Killed):
            execute(images, tiny_plan(images, method), run)
    with pytest.raises(RunError):
        veilset.from_pretrained(run)
    model = resume(images, run)
    assert model.privacy.record.closed
    assert verify(run)["files"] == "unchanged"


def test_resume_without_a_run_or_ledger_is_an_error(tmp_path: Path) -> None:
    images = make_images()
    with pytest.raises(RunError):
        resume(images, tmp_path / "nowhere")
    crash(images, tiny_plan(images, "dp-merf"), tmp_path / "run", 0)
    (tmp_path / "run" / "vault" / "ledger.jsonl").unlink()
    with pytest.raises(RunError, match="ledger"):
        resume(images, tmp_path / "run")


@pytest.mark.parametrize("method", METHODS)
def test_a_ledger_that_was_tampered_with_stops_a_resume(method: str, tmp_path: Path, noise_drawn: Counter[str]) -> None:
    images = make_images()
    plan = tiny_plan(images, method)
    calls = progress_calls(images, plan, tmp_path / "undisturbed")
    run = tmp_path / "run"
    crash(images, plan, run, calls - 1)
    drawn = noise_drawn["releases"]
    path = run / "vault" / "ledger.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace("add-remove", "replace"), *lines[1:]]) + "\n")
    with pytest.raises(LedgerError):
        resume(images, run)
    assert noise_drawn["releases"] == drawn


@pytest.mark.parametrize("shares", [{"rounds": 3}, {"rounds": 2, "first_share": 0.5}])
def test_rounds_of_equal_price_are_paid_one_by_one_so_that_a_crash_between_them_costs_none(
    shares: dict[str, float], tmp_path: Path
) -> None:
    images = make_images()
    plan = tiny_plan(images, "sketch", **shares)
    calls = progress_calls(images, plan, tmp_path / "undisturbed")
    for at in (calls // 3, calls // 2, calls - 2):
        run = tmp_path / f"killed at {at}"
        crash(images, plan, run, at)
        assert resume(images, run).privacy.record.charged == steps(plan.planned)


LONG: list[tuple[str, dict[str, Any], str]] = [
    ("dpac", {"steps": 600}, shard_teaching.DOING),
    ("dpaf", {"classifier_steps": 600, "expected_batch": 20}, "pre-training a classifier"),
    ("dpaf", {"steps": 600, "expected_batch": 20, "body_rate": 1e-4, "head_rate": 1e-4}, dpaf.DOING),
    ("gs-wgan", {"steps": 600}, shard_teaching.DOING),
    ("ndpdc", {"steps": 600}, ndpdc.DOING),
    ("psg", {"runs": 1, "rounds": 300, "steps": 2, "epochs": 1, "expected_batch": 20}, psg.DOING),
]
"""Plans of 600 releases, and what a fit is doing meanwhile."""


@pytest.mark.parametrize("died_at", [1, 329])
@pytest.mark.parametrize(("method", "options", "doing"), LONG, ids=[f"{method}-{doing}" for method, _, doing in LONG])
def test_a_crash_costs_a_long_plan_few_of_its_steps_and_the_owner_is_told_how_many(
    method: str, options: dict[str, Any], doing: str, died_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # checkpoints as often as they are kept for users
    images, told = make_images(), []

    def dies(message: str, done: int, total: int) -> None:
        if message == doing and done == died_at:
            raise Killed

    def listens(message: str, done: int, total: int) -> None:
        if message.startswith(doing) and done:
            told.append((message, total))
            raise Killed

    with pytest.raises(Killed):
        execute(images, tiny_plan(images, method, **options), tmp_path / "run", progress=dies)
    with pytest.raises(Killed):
        resume(images, tmp_path / "run", progress=listens)
    ((message, last),) = told
    assert 540 <= last < 600
    assert message == f"{doing}: {600 - last} of 600 steps are left out, as a crash cost what they would"
