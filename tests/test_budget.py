"""One budget per data set, over all runs, wherever the data lies."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract.cases import make_images, tiny_plan

import veilset
from veilset import run as run_module
from veilset.budget import ChargeTerms, DatasetBudget
from veilset.budget_prices import BudgetTerms
from veilset.data.spec import ImageSet, Source
from veilset.data.write import write_folder, write_npz
from veilset.errors import BudgetExceeded, ConfigError, LedgerError, MixedAdjacency
from veilset.methods.plan import Plan
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import NOTHING, Composed, Event, Gaussian, PoissonSampled, Repeated
from veilset.privacy.gaussian import gaussian_mu
from veilset.privacy.ledger import ChainedFile, PrivacyLedger
from veilset.reserved_plans import reserve
from veilset.run import execute, resume

RECORD_ADDED = {"adjacency": Adjacency.ADD_REMOVE, "unit": Unit.RECORD}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_folder(make_images(), tmp_path / "data")
    return tmp_path / "data"


def opened(data: Path, epsilon: float = 5.0, **terms: object) -> DatasetBudget:
    options = {"delta": 1e-5, **RECORD_ADDED, **terms}
    return DatasetBudget.create(data, epsilon=epsilon, **options)  # type: ignore[arg-type]


def costing(epsilon: float) -> Event:
    return Gaussian(1 / gaussian_mu(epsilon, 1e-5))


def charged(data: Path) -> float:
    budget = DatasetBudget.find(data)
    assert budget is not None
    return budget.status().epsilon_charged


def loaded(data: Path) -> tuple[ImageSet, Plan]:
    images = veilset.load(data)
    return images, tiny_plan(images, "dp-merf", epsilon=2.0)


def test_data_without_a_budget_has_none(data: Path) -> None:
    assert DatasetBudget.find(data) is None


def test_a_new_budget_is_found_again_with_its_terms(data: Path, vault_home: Path) -> None:
    opened(data, epsilon=4.0)
    found = DatasetBudget.find(data)
    assert found is not None
    status = found.status()
    assert (status.epsilon, status.delta, status.adjacency, status.unit) == (4.0, 1e-5, "add-remove", "record")
    assert (status.epsilon_charged, status.runs_settled, status.runs_unsettled) == (0.0, 0, 0)
    assert found.epsilon_left() == 4.0
    assert vault_home.is_dir()


@pytest.mark.parametrize(
    "charged", [Gaussian(3.7), Repeated(300, PoissonSampled(0.02, Gaussian(1.5))), Repeated(2, Gaussian(3.7))], ids=str
)
def test_what_is_left_can_be_spent_and_a_little_more_cannot(data: Path, charged: Event) -> None:
    budget = opened(data, epsilon=3.0)
    terms = ChargeTerms(adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    budget.reserve(charged, **terms)
    left = budget.epsilon_left()
    assert 3.0 - budget.status().epsilon_charged < left < 3.0
    with pytest.raises(BudgetExceeded, match=f"about epsilon {left:.3g} at most"):
        budget.reserve(Gaussian(1 / gaussian_mu(left * 1.01, 1e-5)), **terms)
    budget.reserve(Gaussian(1 / gaussian_mu(left * 0.999, 1e-5)), **terms)
    assert budget.epsilon_left() < 0.2


@pytest.mark.parametrize("charged", [0.3, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("epsilon", [2.0, 3.0, 9.9999])
def test_the_epsilon_that_a_refusal_names_is_not_refused(data: Path, epsilon: float, charged: float) -> None:
    budget = opened(data, epsilon=epsilon)
    terms = ChargeTerms(adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    assert float(f"{budget.epsilon_left():.3g}") <= epsilon
    budget.reserve(Gaussian(1 / gaussian_mu(charged, 1e-5)), **terms)
    with pytest.raises(BudgetExceeded) as refusal:
        budget.reserve(Gaussian(1 / gaussian_mu(epsilon, 1e-5)), **terms)
    named = float(re.findall(r"about epsilon (\S+) at most", refusal.value.todo)[0])
    assert named == budget.epsilon_left()
    budget.reserve(Gaussian(1 / gaussian_mu(named, 1e-5)), **terms)


def test_an_account_is_not_locked_while_a_refusal_looks_for_what_fits(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = opened(data, epsilon=1.0)
    terms = ChargeTerms(adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)

    def left(self: BudgetTerms, charged: object) -> float:
        budget.reserve(Gaussian(100.0), **terms)
        return 1.0

    monkeypatch.setattr("veilset.budget.WAIT_SECONDS", 0.0)
    monkeypatch.setattr(BudgetTerms, "left", left)
    with pytest.raises(BudgetExceeded):
        budget.reserve(Gaussian(0.1), **terms)


def test_a_large_budget_with_samples_is_shown_though_not_every_further_run_has_a_price(data: Path) -> None:
    budget = opened(data, epsilon=1000.0)
    budget.reserve(Repeated(10, PoissonSampled(0.01, Gaussian(1.1))), adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    assert 100 < budget.epsilon_left() < 1000


def test_the_account_lies_in_the_vault_and_only_an_id_beside_the_data(data: Path, vault_home: Path) -> None:
    opened(data)
    marker = json.loads((data / ".veilset" / "dataset.json").read_text())
    account = vault_home / marker["dataset"]
    assert set(marker) == {"dataset"}
    assert {path.name for path in account.iterdir()} == {"budget.jsonl", "shard.key"}
    assert account.stat().st_mode & 0o777 == 0o700
    assert (account / "shard.key").stat().st_mode & 0o777 == 0o600
    assert len((account / "shard.key").read_bytes()) == 32


def test_two_data_sets_have_two_keys(data: Path, tmp_path: Path) -> None:
    write_folder(make_images(), tmp_path / "other")
    assert opened(data).shard_key != opened(tmp_path / "other").shard_key


def test_a_second_budget_for_the_same_data_is_refused(data: Path) -> None:
    opened(data)
    with pytest.raises(ConfigError, match="without a budget"):
        opened(data, epsilon=100.0)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (float("nan"), 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_terms_that_mean_nothing_are_refused_and_leave_no_marker(data: Path, epsilon: float, delta: float) -> None:
    with pytest.raises(ConfigError):
        opened(data, epsilon=epsilon, delta=delta)
    assert DatasetBudget.find(data) is None


def test_a_budget_for_data_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Check the path"):
        opened(tmp_path / "nowhere")


def test_reservations_compose_and_are_charged_before_anything_is_spent(data: Path) -> None:
    budget = opened(data)
    budget.reserve(costing(2.0), **RECORD_ADDED)
    assert charged(data) == pytest.approx(2.0, rel=1e-6)
    budget.reserve(costing(2.0), **RECORD_ADDED)
    both = price(Repeated(2, costing(2.0)), 1e-5, Adjacency.ADD_REMOVE).epsilon
    assert charged(data) == pytest.approx(both, rel=1e-9)
    assert 2.0 < both < 4.0
    assert budget.status().runs_unsettled == 2


def test_an_exhausted_budget_refuses_and_charges_nothing(data: Path) -> None:
    budget = opened(data, epsilon=2.5)
    budget.reserve(costing(2.0), **RECORD_ADDED)
    before = charged(data)
    with pytest.raises(BudgetExceeded, match="Nothing was charged"):
        budget.reserve(costing(2.0), **RECORD_ADDED)
    assert charged(data) == before
    budget.reserve(costing(0.5), **RECORD_ADDED)
    assert before < charged(data) <= 2.5


def test_a_plan_of_exactly_the_budget_fits(data: Path) -> None:
    opened(data, epsilon=2.0).reserve(costing(2.0), **RECORD_ADDED)
    assert charged(data) <= 2.0


def test_settling_replaces_the_reservation_by_what_was_spent(data: Path) -> None:
    budget = opened(data)
    name = budget.reserve(costing(4.0), **RECORD_ADDED)
    budget.settle(name, costing(1.0))
    assert charged(data) == pytest.approx(1.0, rel=1e-6)
    assert (budget.status().runs_settled, budget.status().runs_unsettled) == (1, 0)


@pytest.mark.parametrize(
    ("method", "accounting"), [("dpaf", "published"), ("dp-merf", "none")], ids=["no proof", "no noise"]
)
def test_runs_of_no_proven_epsilon_are_noted_though_nothing_can_be_charged(
    data: Path, tmp_path: Path, method: str, accounting: Any
) -> None:
    budget = opened(data)
    images = veilset.load(data)
    plan = tiny_plan(images, method, accounting=accounting)
    assert budget.status().runs_unproven == 0
    execute(images, plan, tmp_path / "void", allow_published=True)
    resume(images, tmp_path / "void", allow_published=True)
    assert (budget.status().epsilon_charged, budget.status().runs_unproven) == (0.0, 1)
    assert budget.noted("unproven") == (str((tmp_path / "void").resolve()),)
    shutil.rmtree(tmp_path / "void")
    execute(images, plan, tmp_path / "void", allow_published=True)
    assert budget.status().runs_unproven == 2, "another look, though it lies where the first one did"
    claim = execute(images, loaded(data)[1], tmp_path / "proven").claim
    assert any("no proven epsilon" in text and "counted nowhere" in text for text in claim.assumptions)
    assert budget.status().runs_unproven == 2


def test_what_is_never_settled_stays_charged(data: Path) -> None:
    name = opened(data).reserve(costing(4.0), **RECORD_ADDED)
    again = DatasetBudget.find(data)
    assert again is not None
    other = again.reserve(costing(0.5), **RECORD_ADDED)
    again.settle(other, NOTHING)
    assert name != other
    assert charged(data) == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize(("adjacency", "unit"), [(Adjacency.REPLACE, Unit.RECORD), (Adjacency.ADD_REMOVE, Unit.USER)])
def test_plans_for_other_neighbours_or_units_are_refused(data: Path, adjacency: Adjacency, unit: Unit) -> None:
    budget = opened(data)
    with pytest.raises(MixedAdjacency):
        budget.reserve(costing(1.0), adjacency=adjacency, unit=unit)
    assert charged(data) == 0.0


def test_moving_the_folder_keeps_the_budget(data: Path, tmp_path: Path) -> None:
    opened(data).reserve(costing(2.0), **RECORD_ADDED)
    data.rename(tmp_path / "elsewhere")
    assert charged(tmp_path / "elsewhere") == pytest.approx(2.0, rel=1e-6)


def test_adding_a_photo_keeps_the_budget(data: Path) -> None:
    opened(data).reserve(costing(2.0), **RECORD_ADDED)
    write_folder(make_images(counts=(2, 1, 1), seed=9), data.parent / "more")
    (data.parent / "more" / "kind 0" / "000001.png").rename(data / "kind 0" / "new.png")
    assert charged(data) == pytest.approx(2.0, rel=1e-6)
    assert len(veilset.load(data)) == 16, "and the marker is not taken for an image or a class"


def test_a_file_has_its_marker_beside_it(tmp_path: Path) -> None:
    write_npz(make_images(), tmp_path / "images.npz")
    opened(tmp_path / "images.npz")
    assert (tmp_path / "images.npz.veilset.json").is_file()
    assert charged(tmp_path / "images.npz") == 0.0


def test_a_missing_vault_is_an_error_and_not_an_empty_budget(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(data)
    monkeypatch.setenv("VEILSET_HOME", str(tmp_path / "another vault"))
    with pytest.raises(ConfigError, match="VEILSET_HOME"):
        DatasetBudget.find(data)
    images, plan = loaded(data)
    with pytest.raises(ConfigError, match="VEILSET_HOME"):
        execute(images, plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("identity", ["../../elsewhere", "", "a/b", "/etc", None, 3])
def test_a_marker_cannot_lead_out_of_the_vault(data: Path, identity: object) -> None:
    opened(data)
    (data / ".veilset" / "dataset.json").write_text(json.dumps({"dataset": identity}))
    with pytest.raises(ConfigError):
        DatasetBudget.find(data)


@pytest.mark.parametrize("damage", ["emptied", "first line gone", "changed", "not a ledger"])
def test_a_damaged_account_is_an_error_and_not_an_empty_budget(data: Path, vault_home: Path, damage: str) -> None:
    opened(data).reserve(costing(2.0), **RECORD_ADDED)
    path = next(vault_home.glob("*/budget.jsonl"))
    lines = path.read_text().splitlines(keepends=True)
    content = {
        "emptied": "",
        "first line gone": "".join(lines[1:]),
        "changed": "".join(lines).replace("5.0", "9.0"),
        "not a ledger": "hello\n",
    }
    assert content[damage] != "".join(lines)
    path.write_text(content[damage])
    with pytest.raises(LedgerError):
        DatasetBudget.find(data)


SPEND = """
import sys
from pathlib import Path
from veilset.budget import DatasetBudget
from veilset.errors import VeilsetError
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import Gaussian
budget = None
while budget is None:
    try:
        budget = DatasetBudget.find(Path(sys.argv[1]))
    except VeilsetError as error:
        assert "locked" in str(error)
print("ready", flush=True)
sys.stdin.readline()
done = 0
for _ in range(200):
    try:
        budget.reserve(Gaussian(float(sys.argv[2])), adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
        done += 1
    except VeilsetError as error:
        if "locked" not in str(error):
            break
print(done)
"""


def test_two_processes_at_once_cannot_both_spend_the_last_epsilon(data: Path) -> None:
    opened(data, epsilon=1.0)
    multiplier = 1 / gaussian_mu(0.9, 1e-5)  # one fits, two do not
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SPEND, str(data), str(multiplier)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    done = [process.communicate("go\n", timeout=60) for process in processes]
    assert sum(int(out) for out, _ in done) == 1, done
    assert charged(data) <= 1.0


def test_a_fit_reserves_before_and_settles_after(data: Path, tmp_path: Path) -> None:
    opened(data)
    images, plan = loaded(data)
    during = []
    model = execute(images, plan, tmp_path / "run", progress=lambda *_: during.append(charged(data)))
    assert min(during) == max(during) == pytest.approx(2.0, rel=1e-6)
    status = DatasetBudget.find(data).status()  # type: ignore[union-attr]
    assert (status.runs_settled, status.runs_unsettled) == (1, 0)
    assert status.epsilon_charged == pytest.approx(model.claim.epsilon, rel=1e-9)
    assert any("others that are charged to the data set's budget add to it" in text for text in model.claim.assumptions)
    assert not any("it has no budget" in text for text in model.claim.assumptions)


def test_a_fit_without_a_budget_says_that_earlier_releases_are_not_counted(data: Path, tmp_path: Path) -> None:
    images, plan = loaded(data)
    assert any("not counted" in text for text in execute(images, plan, tmp_path / "run").claim.assumptions)


def test_fits_go_on_until_the_budget_is_used_up_and_then_nothing_is_written(data: Path, tmp_path: Path) -> None:
    opened(data, epsilon=2.5)
    images, plan = loaded(data)
    execute(images, plan, tmp_path / "first")
    before = charged(data)
    with pytest.raises(BudgetExceeded):
        execute(images, plan, tmp_path / "new" / "second")
    assert charged(data) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "fault", [LedgerError("a disk", "none", "Buy one."), OSError("full"), KeyboardInterrupt()], ids=repr
)
def test_a_run_that_fails_before_its_ledger_is_open_costs_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    opened(data)
    images, plan = loaded(data)

    def refuses(*_: object, **__: object) -> None:
        raise fault

    with pytest.raises(type(fault)):
        execute(images, plan, tmp_path / "prepared", prepare=refuses)
    monkeypatch.setattr(PrivacyLedger, "open_new", refuses)
    with pytest.raises(type(fault)):
        execute(images, plan, tmp_path / "run")
    assert charged(data) == 0.0


def test_a_run_that_dies_stays_charged_until_it_is_resumed_and_settled(data: Path, tmp_path: Path) -> None:
    opened(data)
    images, plan = loaded(data)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "run", progress=dies)
    status = DatasetBudget.find(data).status()  # type: ignore[union-attr]
    assert status.epsilon_charged == pytest.approx(2.0, rel=1e-6)
    assert status.runs_unsettled == 1
    resume(images, tmp_path / "run")
    assert DatasetBudget.find(data).status().runs_unsettled == 0  # type: ignore[union-attr]
    assert charged(data) == pytest.approx(2.0, rel=1e-6)


def test_what_can_be_refused_beforehand_is_refused_before_the_budget_is_charged(data: Path, tmp_path: Path) -> None:
    opened(data, unit=Unit.USER)
    images = veilset.load(data)
    plan = tiny_plan(images, "dp-merf", unit="user", images_per_user=2)
    with pytest.raises(ConfigError, match="user"):
        execute(images, plan, tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(veilset.VeilsetError):
        execute(images, plan, tmp_path / "full")
    assert charged(data) == 0.0


def test_a_plan_reserved_ahead_is_charged_once_and_good_for_one_run(data: Path, tmp_path: Path) -> None:
    opened(data)
    images, plan = loaded(data)
    reserved = reserve(plan, data)
    assert reserved.reservation is not None
    assert charged(data) == pytest.approx(2.0, rel=1e-6)
    assert reserve(reserved, data) is reserved
    execute(images, reserved, tmp_path / "first")
    assert charged(data) == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(BudgetExceeded, match="run before"):
        execute(images, reserved, tmp_path / "second")
    assert not (tmp_path / "second" / "vault").exists()


def test_a_reserved_plan_cannot_be_run_twice_at_once(data: Path, tmp_path: Path) -> None:
    opened(data)
    images, plan = loaded(data)
    reserved = reserve(plan, data)

    def second_run(*_: object) -> None:
        with pytest.raises(BudgetExceeded, match="run before"):
            execute(images, reserved, tmp_path / "second")

    execute(images, reserved, tmp_path / "first", progress=second_run)


def test_a_plan_file_with_an_invented_reservation_or_a_changed_cost_is_refused(data: Path, tmp_path: Path) -> None:
    opened(data)
    images, plan = loaded(data)
    reserved = reserve(plan, data)
    dearer = tiny_plan(images, "dp-merf", epsilon=50.0)
    for forged in (replace(plan, reservation="invented"), replace(dearer, reservation=reserved.reservation)):
        with pytest.raises(BudgetExceeded, match="no such reservation"):
            execute(images, forged, tmp_path / "run")
    assert charged(data) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(
    "changed",
    [{"adjacency": Adjacency.ADD_REMOVE}, {"unit": Unit.RECORD, "rows_per_user": None}, {"rows_per_user": 5}, {}],
    ids=["adjacency", "unit", "images per user", "delta"],
)
def test_a_plan_that_was_edited_to_protect_others_or_less_is_refused(
    changed: dict[str, object], tmp_path: Path
) -> None:
    """The same noise, and so the same events, with a claim that nobody paid for."""
    images = make_images(per_user=5, source=Source(path=str(tmp_path / "data.npz")))
    write_npz(images, tmp_path / "data.npz")
    opened(tmp_path / "data.npz", epsilon=2.0, adjacency=Adjacency.REPLACE, unit=Unit.USER)
    plan = tiny_plan(images, "dp-merf", epsilon=2.0, unit="user", adjacency="replace", images_per_user=2)
    reserved = reserve(plan, tmp_path / "data.npz")
    edited = replace(reserved, facts=replace(reserved.facts, **changed), delta=1e-5 if changed else 1e-6)
    with pytest.raises(BudgetExceeded, match="on these terms"):
        execute(images, edited, tmp_path / "run")
    assert not (tmp_path / "run" / "vault").exists()
    assert execute(images, reserved, tmp_path / "run").claim.unit is Unit.USER


def test_a_benchmark_needs_no_budget_and_says_so(data: Path, tmp_path: Path) -> None:
    images = veilset.load(data, benchmark="tiny")
    model = execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run")
    assert any("benchmark" in stamp for stamp in model.claim.stamps)
    assert not any("not counted" in text for text in model.claim.assumptions)


def test_the_price_of_a_budget_is_of_all_runs_together(data: Path) -> None:
    budget = opened(data, epsilon=10.0)
    events = [costing(epsilon) for epsilon in (1.0, 2.0, 0.5)]
    for event in events:
        budget.settle(budget.reserve(event, **RECORD_ADDED), event)
    together = price(Composed(tuple(events)), 1e-5, Adjacency.ADD_REMOVE).epsilon
    assert charged(data) == pytest.approx(together, rel=1e-9)


def test_a_budget_holds_critics_that_are_drawn_in_turn_beside_sampled_records(data: Path) -> None:
    budget, images = opened(data), make_images()
    for method, options in (("gs-wgan", {"teachers": "in-turn"}), ("psg", {})):
        plan = tiny_plan(images, method, epsilon=1.0, **options)
        budget.reserve(plan.planned, **RECORD_ADDED)
    assert 1.0 < charged(data) < 2.0


def test_a_budget_covers_what_lies_below_it_and_is_found_through_a_link(data: Path, tmp_path: Path) -> None:
    budget = opened(data)
    (data / "part").mkdir()
    (tmp_path / "link").symlink_to(data)
    for place in (data / "part", tmp_path / "link"):
        found = DatasetBudget.find(place)
        assert found is not None
        assert found.identity == budget.identity


def test_a_folder_that_contains_budgeted_data_is_refused(data: Path) -> None:
    opened(data)
    with pytest.raises(ConfigError, match="a part of them"):
        DatasetBudget.find(data.parent)


def test_a_part_of_budgeted_data_gets_no_budget_of_its_own(data: Path) -> None:
    opened(data)
    with pytest.raises(ConfigError, match="without a budget"):
        opened(next(path for path in data.iterdir() if path.is_dir() and path.name != ".veilset"))


def test_budgeted_data_is_found_however_deep_it_lies(data: Path, tmp_path: Path) -> None:
    deep = tmp_path / "hospital" / "ward" / "2023" / "spring"
    deep.parent.mkdir(parents=True)
    data.rename(deep)
    opened(deep)
    with pytest.raises(ConfigError, match="a part of them"):
        DatasetBudget.find(tmp_path / "hospital")


def listed(name: str, *images: Path) -> Path:
    """A manifest beside the data that lists `images`."""
    manifest = images[0].parents[2] / name
    rows = [f"{image.relative_to(manifest.parent).as_posix()},{image.parent.name}" for image in images]
    manifest.write_text("\n".join(["path,label", *rows]))
    return manifest


def test_a_manifest_draws_on_the_budget_of_the_folder_it_lists(data: Path, tmp_path: Path) -> None:
    budget = opened(data)
    manifest = listed("data.csv", *sorted(data.glob("*/*.png")))
    images = veilset.load(manifest)
    execute(images, tiny_plan(images, "dp-merf", epsilon=2.0), tmp_path / "run")
    assert charged(manifest) == charged(data) > 1.9
    assert budget.status().runs_settled == 1


def test_a_manifest_finds_the_budget_of_images_it_lists_through_a_link(data: Path, tmp_path: Path) -> None:
    budget = opened(data)
    image = next(data.glob("*/*.png"))
    (tmp_path / "linked" / "a").mkdir(parents=True)
    (tmp_path / "linked" / "a" / "1.png").symlink_to(image)
    found = DatasetBudget.find(listed("links.csv", tmp_path / "linked" / "a" / "1.png"))
    assert found is not None
    assert found.identity == budget.identity


@pytest.mark.parametrize("second", [True, False], ids=["two budgets", "one budget and none"])
def test_a_manifest_of_images_without_one_common_budget_is_refused(data: Path, tmp_path: Path, second: bool) -> None:
    write_folder(make_images(), tmp_path / "other")
    opened(data)
    if second:
        opened(tmp_path / "other")
    manifest = listed("both.csv", *data.glob("*/*.png"), *(tmp_path / "other").glob("*/*.png"))
    with pytest.raises(ConfigError, match="one budget for all images"):
        DatasetBudget.find(manifest)


def test_a_file_that_is_read_as_a_part_of_a_folder_is_given_no_budget_of_its_own(tmp_path: Path) -> None:
    """Nobody would look for it there: a fit reads the folder."""
    part = tmp_path / "train-images-idx3-ubyte"
    part.write_bytes(b"")
    with pytest.raises(ConfigError, match=re.escape(f"Give {tmp_path} the budget")):
        DatasetBudget.create(part, epsilon=1.0, delta=1e-5, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    assert [path.name for path in tmp_path.iterdir()] == [part.name]


def test_a_manifest_is_given_no_budget_of_its_own(data: Path) -> None:
    manifest = listed("data.csv", *data.glob("*/*.png"))
    with pytest.raises(ConfigError, match="the folder of the images"):
        opened(manifest)
    assert DatasetBudget.find(manifest) is None


def test_a_budget_that_a_manifest_was_given_once_still_counts(data: Path, tmp_path: Path) -> None:
    manifest = listed("data.csv", *data.glob("*/*.png"))
    (tmp_path / "elsewhere").mkdir()
    opened(tmp_path / "elsewhere")
    marker = tmp_path / "elsewhere" / ".veilset" / "dataset.json"
    marker.rename(tmp_path / "data.csv.veilset.json")
    assert DatasetBudget.find(manifest) is not None
    opened(data)
    with pytest.raises(ConfigError, match="several"):
        DatasetBudget.find(manifest)


def test_settlements_of_one_ledger_count_once_and_those_of_two_add_up(data: Path) -> None:
    budget = opened(data)
    name = budget.reserve(costing(2.0), **RECORD_ADDED)
    for head in ("one", "one", "other"):
        budget.settle(name, costing(2.0), head)
    both = price(Repeated(2, costing(2.0)), 1e-5, Adjacency.ADD_REMOVE).epsilon
    assert charged(data) == pytest.approx(both, rel=1e-9)
    assert (budget.status().runs_settled, budget.status().runs_unsettled) == (1, 0)


def test_copies_of_one_crashed_run_cannot_all_be_resumed(data: Path, tmp_path: Path) -> None:
    opened(data, epsilon=2.5)
    images, plan = loaded(data)
    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "run", progress=_interrupt)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert resume(images, tmp_path / "run").claim.epsilon == pytest.approx(2.0)
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        resume(images, tmp_path / "copy")
    assert charged(data) == pytest.approx(2.0)


def test_a_copy_that_is_resumed_beside_its_run_takes_the_release_from_it(data: Path, tmp_path: Path) -> None:
    opened(data, epsilon=2.5)
    images, plan = loaded(data)

    def copy_and_resume(*_: object) -> None:
        if not (tmp_path / "copy").exists():
            _copied(tmp_path)
            resume(images, tmp_path / "copy")

    with pytest.raises(BudgetExceeded, match="resumed after it"):
        execute(images, plan, tmp_path / "run", progress=copy_and_resume)
    assert (tmp_path / "copy" / "release" / "manifest.json").is_file()
    with pytest.raises(BudgetExceeded, match="resumed after it"):
        resume(images, tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()
    assert charged(data) == pytest.approx(2.0)


def test_a_copy_cannot_be_resumed_while_its_run_writes_the_release(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(data, epsilon=2.5)
    images, plan = loaded(data)
    write = run_module.write_release

    def writes(*arguments: object) -> None:
        with pytest.raises(BudgetExceeded, match="a copy of it is finished"):
            resume(images, tmp_path / "copy")
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run_module, "write_release", writes)
    execute(images, plan, tmp_path / "run", progress=lambda *_: _copied(tmp_path))
    assert charged(data) == pytest.approx(2.0)


def test_a_run_that_dies_while_it_writes_the_release_can_be_resumed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(data, epsilon=2.5)
    images, plan = loaded(data)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_release", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            execute(images, plan, tmp_path / "run")
    assert resume(images, tmp_path / "run").claim.epsilon == pytest.approx(2.0)


def test_a_run_whose_ledger_may_exist_is_never_refunded(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line may have reached the disk before fsync failed; the folder can then be resumed."""
    opened(data, epsilon=2.5)
    images, plan = loaded(data)

    append = ChainedFile.append

    def fail_after_writing(file: ChainedFile, entry: dict[str, object]) -> None:
        append(file, entry)
        if file.path.name == "ledger.jsonl":
            file.unlock()
            raise LedgerError("to sync", "a failing disk", "")

    with monkeypatch.context() as patch:
        patch.setattr(ChainedFile, "append", fail_after_writing)
        with pytest.raises(LedgerError):
            execute(images, plan, tmp_path / "run")
    assert charged(data) == pytest.approx(2.0)
    assert resume(images, tmp_path / "run").claim.epsilon == pytest.approx(2.0)
    assert charged(data) == pytest.approx(2.0)


def test_budgeted_data_cannot_be_declared_a_benchmark(data: Path, tmp_path: Path) -> None:
    opened(data)
    images = veilset.load(data, benchmark="mine")
    with pytest.raises(ConfigError, match="benchmark"):
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _copied(root: Path) -> None:
    if not (root / "copy").exists():
        shutil.copytree(root / "run", root / "copy")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
