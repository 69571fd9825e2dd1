"""Buying noisy accuracies: reserved first, charged before noise, published once, and refused where they would leak."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images, tiny_plan
from purchases import QUIET, REQUEST, buy, charged, fix_classifiers, held_out, with_budget, write_held_out

import veilset
from veilset import dp_scores
from veilset.artifact import read_release, update_manifest
from veilset.budget import DatasetBudget
from veilset.data.spec import Source
from veilset.data.write import write_folder
from veilset.dp_scores import reserve_scores
from veilset.errors import (
    ArtifactError,
    BudgetExceeded,
    ConfigError,
    LedgerError,
    MixedAdjacency,
    PrivacyError,
    RunError,
    VeilsetError,
)
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.fitting import Classifier
from veilset.evaluate.presets import PRESETS, Preset
from veilset.evaluate.scores import Score
from veilset.model import Model
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency
from veilset.privacy.events import Composed, Gaussian
from veilset.privacy.ledger import LedgerRecord, read_chain
from veilset.privacy.noise import NoiseSource
from veilset.run import execute
from veilset.run_folder import FINGERPRINTS, USER_FINGERPRINTS, RunFolder
from veilset.score_plan import PURCHASES, RESERVED, ScorePlan
from veilset.score_release import NoisyScores, scores_bytes
from veilset.scoring import Request, score_run
from veilset.sharing import export, verify


@pytest.fixture(autouse=True)
def _fixed_classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_classifiers(monkeypatch)


@pytest.fixture
def test_folder(tmp_path: Path) -> Path:
    return write_held_out(tmp_path / "held out")


def forbid(monkeypatch: pytest.MonkeyPatch, target: Any, name: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(target, name, refuse)


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_noisy_accuracies_lie_within_their_error_and_in_the_release(run: RunFolder, test_folder: Path) -> None:
    scores = buy(run, held_out(test_folder), epsilon=20.0)
    found = {metric: (value, error) for metric, value, error in scores.accuracies}
    for name, truth in (("gen2real/first", 1 / 2), ("gen2real/second", 1 / 3)):
        value, error = found[name]
        assert abs(value - truth) < 6 * error < 0.2
    released = json.loads((run.release / "scores.json").read_text())["purchases"]
    assert [one["accuracies"][0]["accuracy"] for one in released] == [found["gen2real/first"][0]]


def test_the_claim_is_about_the_test_set_and_names_what_it_assumes(run: RunFolder, test_folder: Path) -> None:
    scores = buy(run, held_out(test_folder))
    claim = scores.privacy.claim
    assert claim.epsilon == pytest.approx(4.0, rel=1e-6)
    assert (claim.delta, claim.adjacency, claim.unit) == (1e-5, "add-remove", "record")
    text = " ".join(claim.assumptions)
    for words in ("about the test images", "both the test set and the training set", "not counted", "judged by itself"):
        assert words in text
    assert "there are scores reveals it, and neither epsilon covers it" in text
    assert scores.to_json()["subject"] == "test set"


def test_the_noise_is_that_of_one_vector_with_bound_sqrt_of_k_plus_1(run: RunFolder, test_folder: Path) -> None:
    scores = buy(run, held_out(test_folder))
    (event,) = scores.privacy.record.charged
    assert isinstance(event, Gaussian)
    assert price(event, 1e-5, Adjacency.ADD_REMOVE).epsilon == pytest.approx(4.0, rel=1e-6)
    assert scores.noise_std == pytest.approx(event.noise_multiplier * math.sqrt(4 + 1))
    assert len({*scores.correct, scores.total}) == 5, "the noise must differ"


def test_every_count_carries_noise_of_the_stated_size(run: RunFolder, test_folder: Path) -> None:
    """With 199 counts of the same classifier and the total: their spread is the noise."""
    scores = buy(run, held_out(test_folder), seeds=tuple(range(199)), classifiers=("first",))
    spread = float(torch.tensor(scores.correct, dtype=torch.float64).std())
    assert spread == pytest.approx(scores.noise_std, rel=0.25)


def test_no_exact_score_or_count_is_written_anywhere(run: RunFolder, test_folder: Path) -> None:
    scores = buy(run, held_out(test_folder))
    assert not (run.vault / "scores.json").exists()
    values = {*scores.correct, scores.total}
    assert not values & {300.0, 200.0, 600.0}
    assert "per_class" not in (run.release / "scores.json").read_text()


def test_verify_prices_the_noisy_scores_and_export_takes_them_along(
    run: RunFolder, test_folder: Path, tmp_path: Path
) -> None:
    buy(run, held_out(test_folder))
    checked = verify(run.path)
    assert checked["noisy_scores"][0].startswith("eps_proven=4 delta=1e-05 adjacency=add-remove unit=record")
    export(run.path, tmp_path / "out")
    assert (tmp_path / "out" / "scores.json").read_bytes() == (run.release / "scores.json").read_bytes()
    assert verify(tmp_path / "out")["noisy_scores"] == checked["noisy_scores"]


def test_verify_adds_several_purchases_up(run: RunFolder, test_folder: Path) -> None:
    buy(run, held_out(test_folder))
    assert "noisy_scores_together" not in verify(run.path)
    buy(run, held_out(test_folder))
    epsilon = float(verify(run.path)["noisy_scores_together"].split()[1])
    assert 4 * math.sqrt(2) < epsilon < 8, "mu adds in squares, and epsilon grows faster than mu"


def forged(run: RunFolder, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads((run.release / "scores.json").read_text())
    change(value["purchases"][0])
    (run.release / "scores.json").write_bytes(json.dumps(value, indent=1).encode())
    update_manifest(run.release)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["claim"].update(epsilon=0.1),
        lambda one: one["claim"].update(mu=0.001),
        lambda one: one["claim"].update(delta=0.1),
        lambda one: one["claim"].update(assumptions=[]),
        lambda one: one["claim"].update(epsilon=None),
        lambda one: one["claim"].update(published={"epsilon": 0.1, "status": "sound", "source": "a paper"}),
        lambda one: one["claim"].update(accountant="exact Gaussian | eps_proven=0.1"),
        lambda one: one["claim"].update(stamps=["eps_proven=0.1"]),
        lambda one: one["claim"].update(stamps=["public benchmark data (mnist)"]),
        lambda one: one["claim"]["assumptions"].pop(),
        lambda one: one["claim"]["assumptions"].append("eps_proven=0.1"),
        lambda one: one["ledger"].pop(1),
        lambda one: one["ledger"].pop(),
        lambda one: one["correct"].__setitem__(0, 1e6),
        lambda one: one["accuracies"][0].update(accuracy=1.0),
        lambda one: one.update(exact=[300]),
    ],
)
def test_verify_refuses_forged_noisy_scores(
    run: RunFolder, test_folder: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    buy(run, held_out(test_folder))
    verify(run.path)
    forged(run, change)
    with pytest.raises((ArtifactError, LedgerError)):
        verify(run.path)


def rewrite(run: RunFolder, purchases: list[NoisyScores]) -> None:
    """A forger who computes everything anew that follows from the counts."""
    (run.release / "scores.json").write_bytes(scores_bytes(purchases))
    update_manifest(run.release)


def test_verify_refuses_a_cap_per_user_at_record_level(run: RunFolder, test_folder: Path) -> None:
    scores = buy(run, held_out(test_folder))
    rewrite(run, [replace(scores, images_per_user=3)])
    with pytest.raises(ArtifactError, match="images per user"):
        verify(run.path)


@pytest.mark.parametrize("cap", [None, 1, 4])
def test_verify_refuses_another_cap_per_user_than_that_of_the_fit(
    test_folder: Path, tmp_path: Path, cap: int | None
) -> None:
    images = make_images(per_user=2)
    execute(images, tiny_plan(images, "dp-merf", unit="user", images_per_user=3), tmp_path / "run")
    run, test = RunFolder.open(tmp_path / "run"), held_out(test_folder)
    scores = buy(run, replace(test, users=tuple(f"stranger {row}" for row in range(len(test)))))
    assert verify(run.path)["noisy_scores"]
    rewrite(run, [replace(scores, images_per_user=cap)])
    with pytest.raises(ArtifactError, match="3 images per user"):
        verify(run.path)


def test_verify_refuses_noisy_scores_in_other_terms_than_the_models(
    run: RunFolder, test_folder: Path, tmp_path: Path
) -> None:
    images = make_images()
    execute(images, tiny_plan(images, "dp-merf", delta=1e-6), tmp_path / "other")
    scores = buy(RunFolder.open(tmp_path / "other"), held_out(test_folder))
    rewrite(run, [scores])
    with pytest.raises(ArtifactError, match="the model's delta"):
        verify(run.path)


def test_verify_refuses_a_file_of_scores_without_a_purchase(run: RunFolder) -> None:
    rewrite(run, [])
    with pytest.raises(ArtifactError, match="no purchase"):
        verify(run.path)


@pytest.mark.parametrize("preset", ["quick", "my-own"])
def test_verify_refuses_a_preset_whose_classifiers_are_others(run: RunFolder, test_folder: Path, preset: str) -> None:
    rewrite(run, [replace(buy(run, held_out(test_folder)), preset=preset)])
    with pytest.raises(ArtifactError, match="classifiers of the preset"):
        verify(run.path)


def test_verify_accepts_the_scores_of_a_whole_preset(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", Preset(description="", classifiers=("first", "second")))
    buy(run, held_out(test_folder), preset="tiny")
    assert verify(run.path)["noisy_scores"]


@pytest.mark.parametrize("name", ["toy | eps_proven=0.1", "line\nbreak", "x" * 81])
def test_a_benchmark_whose_name_reads_like_a_claim_is_refused_before_it_costs_anything(
    run: RunFolder, test_folder: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match="benchmark's name"):
        buy(run, held_out(test_folder, benchmark=name))
    assert not (run.vault / PURCHASES / RESERVED).exists()


def test_the_cost_is_reserved_before_anything_is_sampled_or_trained(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_budget(test_folder)
    test = held_out(test_folder)
    seen: list[float] = []
    monkeypatch.setattr(Model, "sample", lambda *_, **__: seen.append(charged(test_folder)) or interrupted())
    with pytest.raises(KeyboardInterrupt):
        buy(run, test)
    assert seen == [pytest.approx(4.0)]


def test_a_purchase_settles_its_reservation_in_the_budget_of_the_test_set(run: RunFolder, test_folder: Path) -> None:
    with_budget(test_folder)
    scores = buy(run, held_out(test_folder))
    status = DatasetBudget.find(test_folder).status()  # type: ignore[union-attr]
    assert (status.runs_settled, status.runs_unsettled) == (1, 0)
    assert status.epsilon_charged == pytest.approx(4.0)
    told = "others that are charged to the data set's budget add to it"
    assert any(told in text for text in scores.privacy.claim.assumptions)


def test_a_second_purchase_is_a_second_release_and_is_charged_again(run: RunFolder, test_folder: Path) -> None:
    with_budget(test_folder)
    test = held_out(test_folder)
    first, second = buy(run, test), buy(run, test)
    assert first.correct != second.correct
    both = Composed((first.privacy.record.spent, second.privacy.record.spent))
    assert charged(test_folder) == pytest.approx(price(both, 1e-5, Adjacency.ADD_REMOVE).epsilon)
    assert len(json.loads((run.release / "scores.json").read_text())["purchases"]) == 2
    assert len(verify(run.path)["noisy_scores"]) == 2


def test_a_budget_that_is_used_up_refuses_before_anything_is_trained(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_budget(test_folder, epsilon=5.0)
    test = held_out(test_folder)
    buy(run, test)
    before = read_release(run.release)
    forbid(monkeypatch, Model, "sample")
    with pytest.raises(BudgetExceeded):
        buy(run, test)
    assert read_release(run.release) == before
    assert charged(test_folder) == pytest.approx(4.0)


def test_a_budget_in_other_words_is_refused(run: RunFolder, test_folder: Path) -> None:
    with_budget(test_folder, adjacency=Adjacency.REPLACE)
    with pytest.raises(MixedAdjacency):
        buy(run, held_out(test_folder))
    assert charged(test_folder) == 0.0


def test_the_ledger_is_charged_before_noise_and_a_killed_purchase_stays_charged(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_budget(test_folder)
    test = held_out(test_folder)
    with monkeypatch.context() as patch:
        patch.setattr(NoiseSource, "normal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buy(run, test)
    lines = (run.vault / PURCHASES / "1" / "ledger.jsonl").read_text().splitlines()
    assert sum(LedgerRecord(read_chain(lines)).charged.values()) == 1
    assert not (run.release / "scores.json").exists()
    assert DatasetBudget.find(test_folder).status().runs_unsettled == 1  # type: ignore[union-attr]
    buy(run, test)
    twice = price(Composed((ledger_event(run, 1), ledger_event(run, 2))), 1e-5, Adjacency.ADD_REMOVE).epsilon
    assert charged(test_folder) == pytest.approx(twice), "the next purchase pays again"


def ledger_event(run: RunFolder, number: int) -> Gaussian:
    lines = (run.vault / PURCHASES / str(number) / "ledger.jsonl").read_text().splitlines()
    planned = LedgerRecord(read_chain(lines)).planned
    assert isinstance(planned, Gaussian)
    return planned


def test_killed_while_training_leaves_the_reservation_to_the_next_purchase(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_budget(test_folder)
    test = held_out(test_folder)
    with monkeypatch.context() as patch:
        patch.setitem(CLASSIFIERS, "second", Classifier(fit=interrupted))  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            buy(run, test)
    assert charged(test_folder) == pytest.approx(4.0)
    buy(run, test)
    assert charged(test_folder) == pytest.approx(4.0)
    assert not (run.vault / PURCHASES / RESERVED).exists()


def test_killed_between_purchase_and_publication_publishes_and_does_not_buy_again(
    run: RunFolder, test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_budget(test_folder)
    test = held_out(test_folder)
    with monkeypatch.context() as patch:
        patch.setattr(dp_scores, "update_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buy(run, test)
    with pytest.raises(VeilsetError):
        verify(run.path)  # the file is there, the manifest does not know it
    with pytest.raises(RunError, match="paid for"):
        buy(run, test)
    assert len(verify(run.path)["noisy_scores"]) == 1
    assert charged(test_folder) == pytest.approx(4.0)


def test_publishing_does_not_bless_a_release_that_somebody_changed(run: RunFolder, test_folder: Path) -> None:
    with_budget(test_folder)
    (run.release / "README.md").write_text("epsilon 0")
    with pytest.raises(ArtifactError):
        buy(run, held_out(test_folder))
    assert charged(test_folder) == 0.0


def test_scores_reserved_with_the_fit_are_charged_then_and_bought_later(test_folder: Path, tmp_path: Path) -> None:
    with_budget(test_folder)
    images, seen = make_images(), []

    def reserve(folder: RunFolder) -> None:
        reserve_scores(folder, Source(path=str(test_folder)), 4.0, before_fit=True)

    execute(
        images,
        tiny_plan(images, "dp-merf"),
        tmp_path / "run",
        prepare=reserve,
        progress=lambda *_: seen.append(charged(test_folder)),
    )
    assert [min(seen), max(seen)] == pytest.approx([4.0, 4.0])
    run = RunFolder.open(tmp_path / "run")
    with pytest.raises(ConfigError, match="reserved: epsilon 4"):
        buy(run, held_out(test_folder), epsilon=5.0)
    scores = buy(run, held_out(test_folder))
    assert scores.reserved_before_fit
    assert charged(test_folder) == pytest.approx(4.0)
    assert not buy(run, held_out(test_folder)).reserved_before_fit


def test_a_test_set_that_cannot_pay_stops_a_fit_before_it_costs_anything(test_folder: Path, tmp_path: Path) -> None:
    write_folder(make_images(), tmp_path / "train")
    for folder in (tmp_path / "train", test_folder):
        with_budget(folder, epsilon=6.0)
    images = veilset.load(tmp_path / "train")

    def reserve(folder: RunFolder) -> None:
        reserve_scores(folder, Source(path=str(test_folder)), 7.0, before_fit=True)

    with pytest.raises(BudgetExceeded):
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run", prepare=reserve)
    assert charged(tmp_path / "train") == charged(test_folder) == 0.0


def test_a_reservation_copied_with_its_run_is_good_for_one_purchase(
    run: RunFolder, test_folder: Path, tmp_path: Path
) -> None:
    with_budget(test_folder)
    reserved = reserve_scores(run, Source(path=str(test_folder)), 4.0, before_fit=False)
    buy(run, held_out(test_folder))
    (run.vault / PURCHASES / RESERVED).write_text((run.vault / PURCHASES / "1" / "plan.json").read_text())
    assert ScorePlan.load(run.vault / PURCHASES / RESERVED) == reserved
    with pytest.raises(BudgetExceeded, match="run before"):
        buy(run, held_out(test_folder))


def test_training_images_in_the_test_set_are_refused_even_if_there_is_only_one(
    run: RunFolder, test_folder: Path
) -> None:
    with_budget(test_folder)
    test = held_out(test_folder)
    pixels = test.pixels.clone()
    pixels[17] = make_images().pixels[0]
    with pytest.raises(PrivacyError, match="1 training images"):
        buy(run, replace(test, pixels=pixels))
    assert charged(test_folder) == 0.0
    (run.vault / FINGERPRINTS).unlink()
    with pytest.raises(PrivacyError, match="without hashes"):
        buy(run, test)


def test_a_refused_overlap_does_not_promise_that_a_reserved_cost_comes_back(run: RunFolder, test_folder: Path) -> None:
    with_budget(test_folder)
    reserve_scores(run, Source(path=str(test_folder)), 4.0, before_fit=True)
    test = held_out(test_folder)
    pixels = test.pixels.clone()
    pixels[17] = make_images().pixels[0]
    with pytest.raises(PrivacyError, match="1 training images") as caught:
        buy(run, replace(test, pixels=pixels))
    assert "Nothing was charged" not in caught.value.todo
    assert "stays charged" in caught.value.todo
    assert charged(test_folder) == pytest.approx(4.0)


def test_at_user_level_a_person_in_both_sets_is_refused_whatever_the_pictures(
    test_folder: Path, tmp_path: Path
) -> None:
    images = make_images(per_user=2)
    execute(images, tiny_plan(images, "dp-merf", unit="user", images_per_user=3), tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    test = held_out(test_folder)
    strangers = tuple(f"stranger {row}" for row in range(len(test)))
    with pytest.raises(PrivacyError, match="1 training users"):
        buy(run, replace(test, users=(*strangers[:-2], "person 3", "person 3")))
    (run.vault / USER_FINGERPRINTS).unlink()
    with pytest.raises(PrivacyError, match="without hashes of its training users"):
        buy(run, replace(test, users=strangers))


def test_noisy_scores_at_user_level_need_a_cap_also_where_the_method_needs_none(tmp_path: Path) -> None:
    images = make_images(per_user=2)
    RunFolder.create(tmp_path / "run", tiny_plan(images, "gs-wgan", unit="user"), images, None)
    with pytest.raises(ConfigError, match="--images-per-user"):
        reserve_scores(RunFolder(tmp_path / "run"), images.source, 1.0, before_fit=True)


def test_hashes_of_user_ids_are_for_the_owner_alone(tmp_path: Path) -> None:
    images = make_images(per_user=2)
    execute(images, tiny_plan(images, "dp-merf", unit="user", images_per_user=3), tmp_path / "run")
    path = tmp_path / "run" / "vault" / USER_FINGERPRINTS
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes()) == 32 + 8 * len(set(images.users or ()))


def test_after_a_look_at_exact_scores_nothing_is_sold(run: RunFolder, test_folder: Path) -> None:
    test = held_out(test_folder)
    score_run(run, test, Request(**REQUEST), **QUIET)
    with pytest.raises(PrivacyError, match="before exact ones are seen"):
        buy(run, test)


def test_exact_scores_may_be_measured_after_the_purchase(run: RunFolder, test_folder: Path) -> None:
    test = held_out(test_folder)
    buy(run, test)
    score_run(run, test, Request(**REQUEST), **QUIET)
    assert verify(run.path)["noisy_scores"]


def test_scores_on_a_public_benchmark_do_not_spoil_a_purchase(run: RunFolder, test_folder: Path) -> None:
    public = Score.over_seeds("gen2real/cnn", [0.5], touched_private_data=False)
    (run.vault / "scores.json").write_text(json.dumps([public.to_json()]))
    assert buy(run, held_out(test_folder))


def test_a_benchmark_is_stamped_as_one(run: RunFolder, test_folder: Path) -> None:
    claim = buy(run, held_out(test_folder, benchmark="toy")).privacy.claim
    assert verify(run.path)["noisy_scores"][0].startswith("public benchmark data (toy) | ")
    assert claim.stamps == ("public benchmark data (toy)",)
    assert not any("not counted" in text for text in claim.assumptions)


@pytest.mark.parametrize("metric", ["fid", "nearest-real", "is"])
def test_other_metrics_are_not_for_sale(
    run: RunFolder, test_folder: Path, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, Model, "sample")
    with pytest.raises(ConfigError, match="only scores that can be bought"):
        buy(run, held_out(test_folder), fidelity=(metric,))


def test_a_run_without_noise_has_no_release_to_sell_scores_for(test_folder: Path, tmp_path: Path) -> None:
    images = make_images()
    execute(images, tiny_plan(images, "dp-merf", accounting="none", epsilon=None), tmp_path / "run")
    with pytest.raises(ConfigError, match="privacy claim"):
        buy(RunFolder.open(tmp_path / "run"), held_out(test_folder))


def test_user_level_scores_need_users_and_count_the_cap(test_folder: Path, tmp_path: Path) -> None:
    images = make_images(per_user=2)
    plan = tiny_plan(images, "dp-merf", unit="user", images_per_user=3)
    execute(images, plan, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    test = held_out(test_folder)
    with pytest.raises(ConfigError, match="a user for every test image"):
        buy(run, test)
    scores = buy(run, replace(test, users=tuple(f"stranger {row // 4}" for row in range(len(test)))))
    assert scores.privacy.claim.unit == "user"
    assert scores.noise_std == pytest.approx(ledger_event(run, 1).noise_multiplier * 3 * math.sqrt(5))


@pytest.mark.parametrize(("epsilon", "warned"), [(0.2, True), (20.0, False)])
def test_much_noise_on_an_accuracy_is_announced(
    run: RunFolder, test_folder: Path, epsilon: float, warned: bool
) -> None:
    told: list[str] = []
    buy(run, held_out(test_folder), epsilon=epsilon, warn=told.append)
    assert any("standard deviation" in text for text in told) == warned


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_an_epsilon_that_is_none_is_refused(run: RunFolder, test_folder: Path, epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon above 0"):
        buy(run, held_out(test_folder), epsilon=epsilon)


def test_a_damaged_reservation_is_an_error(run: RunFolder, test_folder: Path) -> None:
    reserve_scores(run, Source(path=str(test_folder)), 4.0, before_fit=False)
    rewrite = run.vault / PURCHASES / RESERVED
    rewrite.write_text(json.dumps({"epsilon": 4.0}))
    with pytest.raises(RunError, match="reserved noisy scores"):
        buy(run, held_out(test_folder))


def test_what_is_kept_of_a_purchase_is_for_the_owner_alone(run: RunFolder, test_folder: Path) -> None:
    buy(run, held_out(test_folder))
    place = run.vault / PURCHASES / "1"
    assert {path.name for path in place.iterdir()} == {"plan.json", "ledger.jsonl", "scores.json"}
    assert place.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in place.iterdir())
