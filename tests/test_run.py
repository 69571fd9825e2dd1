"""Run folders: what is written where, what is refused before anything is written, and the way out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images, rewrite_json, tiny_plan
from courses.cases import some_course, some_images

import veilset
from veilset.artifact import MANIFEST, update_manifest
from veilset.budget import DatasetBudget
from veilset.card import model_card
from veilset.courses.learning import task_images
from veilset.data.spec import ImageSet, Source
from veilset.data.write import write_folder
from veilset.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    LedgerError,
    MissingExtra,
    PrivacyError,
    RunError,
    VeilsetError,
)
from veilset.goals import ClassifierGoal
from veilset.methods import psg
from veilset.methods.base import get_method
from veilset.methods.plan import Plan
from veilset.privacy.claim import Claim
from veilset.privacy.noise import NoiseSource
from veilset.run import check_allowed, execute, execute_for, resume
from veilset.run_folder import FINGERPRINTS, RECORDS, RunFolder
from veilset.sharing import export, verify


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_folder_has_two_sides(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    execute(images, plan, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"release", "vault"}
    vault = {name for name in files(tmp_path / "run" / "vault") if not name.startswith("checkpoints/")}
    hashes = {"training-images.hashes", "training-records.hash"}
    assert vault == {"plan.json", "images.json", "ledger.jsonl", "log.jsonl", "shard.key", *hashes}
    assert (tmp_path / "run" / "vault").stat().st_mode & 0o777 == 0o700
    for name in ("plan.json", "ledger.jsonl", "shard.key", *hashes):
        assert (tmp_path / "run" / "vault" / name).stat().st_mode & 0o077 == 0


def test_the_plan_in_the_vault_is_the_plan(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    execute(images, plan, tmp_path / "run")
    assert Plan.load(tmp_path / "run" / "vault" / "plan.json") == plan


def test_the_log_tells_the_owner_what_happened(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    execute(images, plan, tmp_path / "run")
    entries = [json.loads(line) for line in (tmp_path / "run" / "vault" / "log.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in entries][:: len(entries) - 1] == ["started", "finished"]
    assert entries[0]["device"] == "cpu"
    assert entries[0]["resumed"] == 0


def test_a_run_for_a_classifier_says_so_in_its_folder_before_anything_else_is_done_there(tmp_path: Path) -> None:
    course = some_course(method="dp-sgd")
    images = task_images(some_images().of_classes(course.partition.class_names), course, 1)
    goal, kinds = ClassifierGoal(course.partition.until(1), None), []

    def stopped(folder: RunFolder) -> None:
        kinds.append(folder.kind)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute_for(goal, images, course.plans[0], tmp_path / "run", prepare=stopped)
    assert kinds == ["classifier"]


def test_a_run_folder_that_is_not_empty_is_refused_and_kept(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    execute(images, plan, tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match="new or empty"):
        execute(images, plan, tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_a_run_that_is_not_finished_is_to_be_resumed_and_not_emptied(
    images: ImageSet, plan: Plan, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "run", progress=_interrupted)
    with pytest.raises(RunError, match="--resume"):
        execute(images, plan, tmp_path / "run")
    for use in (veilset.from_pretrained, verify, lambda run: export(run, tmp_path / "shared")):
        with pytest.raises(ArtifactError, match="--resume"):
            use(tmp_path / "run")


def _interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_public_images_that_are_not_there_cost_nothing(
    with_budget: tuple[ImageSet, DatasetBudget], tmp_path: Path
) -> None:
    images, budget = with_budget
    plan = tiny_plan(images, "dpaf", transfer="both", public_images=str(tmp_path / "nothing"))
    with pytest.raises(DataError):
        execute(images, plan, tmp_path / "run")
    assert budget.status().epsilon_charged == 0
    assert not (tmp_path / "run").exists()


def test_a_folder_of_a_run_that_stopped_before_its_ledger_was_opened_is_to_be_removed(
    images: ImageSet, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("veilset.run.PrivacyLedger.open_new", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(images, plan, tmp_path / "run")
    with pytest.raises(RunError, match="has no ledger"):
        execute(images, plan, tmp_path / "run")
    with pytest.raises(RunError, match="fit again into a new folder"):
        resume(images, tmp_path / "run")


def test_a_run_is_not_written_among_its_images(tmp_path: Path) -> None:
    write_folder(make_images(), tmp_path / "photos")
    images = veilset.load(tmp_path / "photos")
    with pytest.raises(DataError, match="outside of the images"):
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / "photos" / "runs" / "a")
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == sorted(images.spec.class_names)
    assert execute(images, tiny_plan(images, "dp-merf"), tmp_path / "photos-run").claim.epsilon is not None


def test_a_run_whose_first_charge_cannot_be_written_keeps_what_is_reserved_and_can_be_resumed(
    with_budget: tuple[ImageSet, DatasetBudget], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, budget = with_budget

    def full_disk(*_: Any) -> None:
        raise LedgerError("room for a line of the ledger", "a full disk", "Free some space and resume.")

    with monkeypatch.context() as patch:
        patch.setattr(type(get_method("dp-merf")), "fit", full_disk)
        with pytest.raises(LedgerError, match="full disk"):
            execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run")
    assert budget.status().epsilon_charged == pytest.approx(5.0)
    assert resume(images, tmp_path / "run").claim.epsilon == pytest.approx(5.0)
    assert budget.status().epsilon_charged == pytest.approx(5.0)


@pytest.mark.parametrize("other", [{"height": 9}, {"channels": 3}, {"counts": (5, 5)}], ids=str)
def test_images_other_than_planned_are_refused_before_anything_is_written(
    plan: Plan, other: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="as planned"):
        execute(make_images(**other), plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_published_accounting_is_for_benchmarks_or_knowing_owners() -> None:
    private = make_images()
    public = make_images(source=Source(benchmark="mnist"))
    plan = tiny_plan(private, "dp-merf", accounting="published")
    with pytest.raises(PrivacyError, match="proven accounting on private data"):
        check_allowed(plan, private, torch.device("cpu"), allow_published=False)
    check_allowed(plan, private, torch.device("cpu"), allow_published=True)
    check_allowed(plan, public, torch.device("cpu"), allow_published=False)


@pytest.mark.parametrize("method", ["psg", "ndpdc", "dpaf"])
def test_a_fit_whose_claim_could_not_be_priced_stops_before_anything_is_written(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    made = tiny_plan(images, method)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)  # makes every import of it fail
    with pytest.raises(MissingExtra, match="dp-accounting"):
        execute(images, made, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    execute(images, tiny_plan(images, "dp-merf"), tmp_path / "exact")


def test_a_benchmark_whose_name_reads_like_a_claim_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    images = make_images(source=Source(benchmark="mnist) | eps_proven=0.01"))
    with pytest.raises(ConfigError, match="benchmark"):
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_benchmark_is_stamped(tmp_path: Path) -> None:
    images = make_images(source=Source(benchmark="mnist"))
    model = execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run")
    assert model.claim.stamps == ("public benchmark data (mnist)",)
    assert "public benchmark data (mnist)" in (model.folder / "README.md").read_text()


def test_opening_what_is_no_run_is_our_error(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match="run folder"):
            RunFolder.open(place)


def test_a_run_is_finished_when_its_manifest_is_there(copy_of_run: Callable[[], Path]) -> None:
    run = copy_of_run()
    assert RunFolder.open(run).finished
    (run / "release" / MANIFEST).unlink()
    assert not RunFolder.open(run).finished


def test_checkpoints_come_back_and_are_for_the_owner_only(plan: Plan, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", plan, make_images(), None)
    assert folder.load("a") is None
    tensors = {"x": torch.arange(6.0).reshape(2, 3).t(), "n": torch.tensor(3)}
    folder.save("a", tensors)
    loaded = folder.load("a")
    assert loaded is not None
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert (folder.vault / "checkpoints" / "a.safetensors").stat().st_mode & 0o777 == 0o600


def test_a_damaged_checkpoint_is_our_error(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", plan, make_images(), None)
    (folder.vault / "checkpoints" / "a.safetensors").write_bytes(b"nonsense")
    with pytest.raises(VeilsetError):
        folder.load("a")


def test_the_shard_key_stays_the_same_within_a_run_and_differs_between_runs(plan: Plan, tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path / name, plan, make_images(), None) for name in "ab"]
    keys = [folder.shard_key(None, NoiseSource()) for folder in folders]
    assert [folder.shard_key(None, NoiseSource()) for folder in folders] == keys
    assert keys[0] != keys[1]
    assert [len(key) for key in keys] == [32, 32]


def test_a_second_process_on_the_same_run_is_refused(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    def meanwhile(*_: object) -> None:
        with pytest.raises(LedgerError, match="locked"):
            resume(images, tmp_path / "run")

    model = execute(images, plan, tmp_path / "run", progress=meanwhile)
    assert model.privacy.record.resumed == 0


def test_a_failed_fit_lets_its_ledger_go(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "run", progress=dies)
    assert resume(images, tmp_path / "run").claim.epsilon is not None


def test_resuming_with_other_images_is_refused(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "run", progress=dies)
    with pytest.raises(ConfigError, match="as planned"):
        resume(make_images(channels=3), tmp_path / "run")


def test_a_damaged_plan_is_our_error(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", plan, make_images(), None)
    for content in ("", "{}", "[]", "null", '{"facts": 3}'):
        folder.plan_path.write_text(content)
        with pytest.raises(ConfigError, match="plan"):
            resume(images, tmp_path / "run")


def test_noise_reaches_the_model_only_from_the_source_given(
    images: ImageSet, plan: Plan, tmp_path: Path, normals_drawn: list[int]
) -> None:
    execute(images, plan, tmp_path / "run")
    assert normals_drawn == [3 * (2 * 8 + 1)], "three classes, sixteen features and a count: one noise value each"


def test_an_export_is_a_verified_copy_of_the_release(finished_runs: dict[str, Path], tmp_path: Path) -> None:
    run = finished_runs["dp-merf"]
    found = export(run, tmp_path / "out")
    assert found["epsilon"] == pytest.approx(5.0, rel=1e-6)
    assert files(tmp_path / "out") == files(run / "release")
    assert veilset.from_pretrained(tmp_path / "out").claim == veilset.from_pretrained(run).claim


def test_a_release_that_does_not_verify_is_not_exported(copy_of_run: Callable[[], Path], tmp_path: Path) -> None:
    run = copy_of_run()
    claim = json.loads((run / "release" / "privacy.json").read_text())["claim"]
    rewrite_json(run / "release" / "privacy.json", claim={**claim, "epsilon": 0.5})
    with pytest.raises(ArtifactError, match="as its ledger is priced"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_over_something_is_refused(finished_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="new or empty"):
        export(finished_runs["dp-merf"], tmp_path)


def test_verify_prices_the_ledger_anew_with_two_accountants(finished_runs: dict[str, Path]) -> None:
    found = verify(finished_runs["dp-merf"])
    assert found["accountant"] == "exact Gaussian"
    assert found["epsilon"] <= found["epsilon_renyi"] <= 2 * found["epsilon"]


def test_a_plan_for_another_seed_gives_another_model_but_the_same_claim(images: ImageSet, tmp_path: Path) -> None:
    plans = [tiny_plan(images, "dp-merf", seed=seed) for seed in (0, 1)]
    models = [execute(images, plan, tmp_path / str(plan.seed)) for plan in plans]
    assert models[0].claim == models[1].claim
    assert json.loads((models[1].folder / "config.json").read_text())["seed"] == 1


def test_a_plan_with_a_reservation_does_not_tell_it_to_the_world(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    execute(images, replace(plan, reservation="secretname"), tmp_path / "run")
    assert not any(b"secretname" in data for data in files(tmp_path / "run" / "release").values())


def test_a_run_cannot_be_resumed_with_other_images(plan: Plan, tmp_path: Path) -> None:
    """Else another data set would be measured at the expense of the first one's budget."""
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    mine, other = (replace(make_images(), source=Source(path=str(tmp_path / name))) for name in ("mine", "other"))
    with pytest.raises(RuntimeError):
        execute(mine, plan, tmp_path / "run", progress=_fail)
    with pytest.raises(RunError, match="started on"):
        resume(other, tmp_path / "run")
    assert resume(mine, tmp_path / "run").claim.epsilon is not None


def _fail(*_: object) -> None:
    raise RuntimeError


@pytest.mark.parametrize("change", ["added", "removed"])
def test_a_run_cannot_be_resumed_after_an_image_was_added_or_removed(change: str, tmp_path: Path) -> None:
    """Else the hashes would miss an image that was trained on, and it could be judged by as a test image."""
    fewer, more = make_images(counts=(7, 5, 3)).subset(torch.arange(14)), make_images(counts=(7, 5, 3))
    begun, given = (fewer, more) if change == "added" else (more, fewer)

    def dies(message: str, done: int, total: int) -> None:
        if message == psg.DOING and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(begun, tiny_plan(begun, "psg"), tmp_path / "run", progress=dies)
    with pytest.raises(RunError, match=f"1 {change}"):
        resume(given, tmp_path / "run")
    resume(begun, tmp_path / "run")
    assert RunFolder(tmp_path / "run").count_training_images(more) == len(begun)


OTHERS: dict[str, Callable[[ImageSet], ImageSet]] = {
    "labels": lambda images: replace(images, labels=images.labels.roll(1)),
    "ids": lambda images: replace(images, ids=tuple(f"{name} renamed" for name in images.ids or ())),
    "users": lambda images: replace(images, users=tuple(reversed(images.users or ()))),
    "order": lambda images: images.subset(torch.arange(len(images)).roll(1)),
    "an image twice": lambda images: images.subset(torch.arange(len(images) + 1) % len(images)),
    "an image for another": lambda images: images.subset(torch.arange(len(images)).clamp(min=1)),
    "an unreadable one": lambda images: replace(images, valid=torch.arange(len(images)) > 0),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("method", ["dp-merf", "psg"])
def test_a_run_cannot_be_resumed_with_other_records(method: str, other: str, tmp_path: Path) -> None:
    """Whatever a method makes of them: a record that lies in another shard, or in another task, is paid for once."""
    images = make_images(per_user=3)
    begun = replace(images, ids=tuple(f"record {number}" for number in range(len(images))))
    plan = tiny_plan(begun, method, unit="user", images_per_user=3)
    with pytest.raises(RuntimeError):
        execute(begun, plan, tmp_path / "run", progress=_fails_after_hashing)
    with pytest.raises(RunError, match="the records this run was begun with"):
        resume(OTHERS[other](begun), tmp_path / "run")
    assert resume(begun, tmp_path / "run").claim.unit == "user"


def test_a_run_that_lost_the_hash_of_its_records_is_not_resumed(images: ImageSet, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        execute(images, plan, tmp_path / "run", progress=_fails_after_hashing)
    (tmp_path / "run" / "vault" / RECORDS).unlink()
    with pytest.raises(RunError, match="a hash of this run's records"):
        resume(images, tmp_path / "run")
    (tmp_path / "run" / "vault" / FINGERPRINTS).unlink()
    assert resume(images, tmp_path / "run").claim.epsilon is not None, "as if stopped before it had looked at any"
    assert RunFolder(tmp_path / "run").count_training_images(images) == len(images)


def test_a_run_that_released_something_and_lost_all_hashes_is_not_resumed(tmp_path: Path) -> None:
    """Otherwise it could go on with other records, in other shards, and a record would be paid for once."""
    images = make_images((20, 10))
    begun = replace(images, ids=tuple(f"a{number}" for number in range(len(images))))
    with pytest.raises(RuntimeError):
        execute(begun, tiny_plan(begun, "gs-wgan"), tmp_path / "run", progress=_fails_after_two_steps)
    for name in (RECORDS, FINGERPRINTS):
        (tmp_path / "run" / "vault" / name).unlink()
    renamed = replace(begun, ids=tuple(f"b{number}" for number in range(len(images))))
    with pytest.raises(RunError, match="a hash of this run's records"):
        resume(renamed, tmp_path / "run")


@pytest.mark.parametrize("method", ["gs-wgan", "dpac"])
def test_a_run_that_released_something_and_lost_the_key_of_its_shards_is_not_resumed(
    tmp_path: Path, method: str
) -> None:
    """With another key a record would lie in a second shard, and move two critics."""
    images = make_images((20, 10))
    with pytest.raises(RuntimeError):
        execute(images, tiny_plan(images, method), tmp_path / "run", progress=_fails_after_two_steps)
    key = (tmp_path / "run" / "vault" / "shard.key").rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="the key of this run's shards"):
        resume(images, tmp_path / "run")
    key.rename(tmp_path / "run" / "vault" / "shard.key")
    assert resume(images, tmp_path / "run").claim.epsilon is not None


def _fails_after_two_steps(message: str, done: int, total: int) -> None:
    if done >= 2 and not message.startswith("hashing"):
        raise RuntimeError


def _fails_after_hashing(message: str, done: int, total: int) -> None:
    if not message.startswith("hashing"):
        raise RuntimeError


def test_a_finished_run_is_loaded_whatever_became_of_its_images(copy_of_run: Callable[[], Path]) -> None:
    assert resume(make_images().subset(torch.arange(5)), copy_of_run()).claim.epsilon is not None


def test_a_card_that_says_something_else_than_its_claim_does_not_verify(
    copy_of_run: Callable[[str], Path],
) -> None:
    release = copy_of_run("dp-merf") / "release"
    card = (release / "README.md").read_text()
    (release / "README.md").write_text(card.replace("(5, 1e-05)", "(0.5, 1e-05)"))
    assert (release / "README.md").read_text() != card
    update_manifest(release)
    with pytest.raises(ArtifactError, match="card"):
        verify(release)


def forged(release: Path, **claim: object) -> None:
    """Changes the claim, writes the card that goes with it, and hashes everything anew."""
    stated = json.loads((release / "privacy.json").read_text())["claim"]
    rewrite_json(release / "privacy.json", claim={**stated, **claim})
    config = json.loads((release / "config.json").read_text())
    made = Claim.from_json(json.loads((release / "privacy.json").read_text())["claim"])
    (release / "README.md").write_text(model_card(config, made))
    update_manifest(release)


def test_a_forged_published_epsilon_or_a_dropped_assumption_does_not_verify(copy_of_run: Callable[[], Path]) -> None:
    release = copy_of_run() / "release"
    stated = json.loads((release / "privacy.json").read_text())["claim"]
    forged(release)
    assert verify(release)["epsilon"] == pytest.approx(5.0, rel=1e-6)
    forged(release, published={"epsilon": 0.01, "status": "sound", "source": "me"})
    with pytest.raises(ArtifactError, match="published"):
        verify(release)
    forged(release, published=None, assumptions=stated["assumptions"][1:])
    with pytest.raises(ArtifactError, match="assumption"):
        verify(release)
