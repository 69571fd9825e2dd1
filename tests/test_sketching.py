"""Measuring into a sketch: one release, resumable until its noise is drawn; further rounds compose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images, tiny_plan
from sketch_cases import NETWORKS, continued, measured, sketch_plan

from veilset.budget import DatasetBudget
from veilset.data.spec import Source
from veilset.errors import BudgetExceeded, ConfigError, RunError
from veilset.merging import merge
from veilset.nets.kinds import Kinds
from veilset.nets.mixed_features import MIXTURES
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.gaussian import gaussian_epsilon, gaussian_mu
from veilset.run import resume
from veilset.run_folder import RunFolder
from veilset.sharing import verify
from veilset.sketch_file import row_bound
from veilset.sketch_release import open_sketch
from veilset.sketching import SketchGoal, execute_sketch, resume_sketch
from veilset.synthesis import synthesize


class Killed(Exception):
    """Stands in for a crash: nothing in Veilset catches it."""


def dies(*_: Any) -> None:
    raise Killed


def test_a_sketch_is_one_release_and_no_generator_is_trained(tmp_path: Path, noise_drawn: Counter[str]) -> None:
    said = []
    images = make_images()
    execute_sketch(
        SketchGoal(), images, sketch_plan(images), tmp_path / "a", progress=lambda *event: said.append(event)
    )
    assert noise_drawn["releases"] == 1
    assert {message for message, *_ in said} == {"hashing the images", "measuring, round 1"}


def test_a_sketch_is_forecast_as_the_pass_of_a_fit_without_its_training() -> None:
    images = make_images()
    plans = [sketch_plan(images, declared_size=10_000, steps=steps) for steps in (3000, 300_000)]
    short, long = (SketchGoal().planned(plan).forecast for plan in plans)
    assert short == long
    assert 10 < short.seconds < plans[0].forecast.seconds < plans[1].forecast.seconds


def test_a_further_round_is_forecast_with_its_own_networks_and_kinds(made: Path) -> None:
    goal, images = SketchGoal.after(made / "first", made / "networks"), make_images()
    plan = sketch_plan(images, **goal.settings())
    plain = goal.planned(plan).forecast
    assert plain.released.startswith("per class a noisy sum")
    bank = goal.bank
    bank.kinds = Kinds(torch.zeros(3, 12, bank.numbers, dtype=torch.int16))
    kinds = SketchGoal(goal.before, bank).planned(plan).forecast
    assert kinds.released.startswith("for each of 12 kinds of a class a noisy sum")
    assert kinds.megabytes - plain.megabytes == pytest.approx(16e-6 * 3 * 11 * bank.numbers)
    assert bank.numbers == 2 * MIXTURES + 7 * 7 * 25


def test_a_further_round_knows_what_all_rounds_will_cost_the_dearest_part(made: Path) -> None:
    for name in ("first", "merged"):
        goal = SketchGoal.after(made / name, made / "networks")
        found = goal.epsilon_in_all(sketch_plan(make_images(), **goal.settings(), epsilon=0.5))
        squares = open_sketch(made / name).claim.mu ** 2 + gaussian_mu(0.5, 1e-5) ** 2
        assert found == pytest.approx(gaussian_epsilon(squares**0.5, 1e-5), rel=1e-4)
        assert name == "merged" or found == pytest.approx(open_sketch(made / "second").claim.epsilon)
    assert goal.epsilon_in_all(sketch_plan(make_images(), accounting="none", epsilon=None)) is None


def test_without_noise_the_sums_count_the_images_of_each_class(tmp_path: Path) -> None:
    sketch = measured(tmp_path / "a", make_images(counts=(7, 5, 3)), accounting="none", epsilon=None)
    counts = sketch.sums[0][:, -1] / sketch.layout.total_weight
    assert counts.tolist() == pytest.approx([7, 5, 3], rel=1e-4)
    assert float(sketch.sums[0][:, :-1].norm()) > 0


def test_a_measurement_killed_before_its_noise_goes_on_and_draws_once(
    tmp_path: Path, noise_drawn: Counter[str]
) -> None:
    images = make_images()
    with pytest.raises(Killed):
        execute_sketch(SketchGoal(), images, sketch_plan(images), tmp_path / "a", progress=dies)
    assert noise_drawn["releases"] == 0
    assert not (tmp_path / "a" / "release").exists()
    sketch = resume_sketch(images, tmp_path / "a")
    assert noise_drawn["releases"] == 1
    assert sketch.claim.epsilon == pytest.approx(1.0)
    assert resume_sketch(images, tmp_path / "a").data == sketch.data
    assert noise_drawn["releases"] == 1


def test_a_lost_draw_is_not_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise_drawn: Counter[str]
) -> None:
    images = make_images()
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", dies)
        with pytest.raises(Killed):
            execute_sketch(SketchGoal(), images, sketch_plan(images), tmp_path / "a")
    assert noise_drawn["releases"] == 1
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        resume_sketch(images, tmp_path / "a")
    assert noise_drawn["releases"] == 1


def test_a_crash_after_the_draw_ends_with_the_drawn_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images()
    with monkeypatch.context() as patch:
        patch.setattr("veilset.run.write_release", dies)
        with pytest.raises(Killed):
            execute_sketch(SketchGoal(), images, sketch_plan(images), tmp_path / "a")
    kept = RunFolder(tmp_path / "a").load("round 0")
    assert kept is not None
    assert torch.equal(resume_sketch(images, tmp_path / "a").sums[0], kept["sums"])


def test_a_sketch_cannot_be_resumed_as_a_fit_nor_a_fit_as_a_sketch(made: Path, finished_runs: dict[str, Path]) -> None:
    with pytest.raises(RunError, match="makes a sketch"):
        resume(make_images(), made / "first")
    with pytest.raises(RunError, match="makes a model"):
        resume_sketch(make_images(), finished_runs["sketch"])


def test_a_further_round_whose_networks_are_gone_says_so(copy_of: Callable[[str], Path]) -> None:
    run = copy_of("second")
    (run / "vault" / "checkpoints" / "networks 1.safetensors").unlink()
    with pytest.raises(RunError, match="the checkpoint 'networks 1'"):
        SketchGoal.resumed(RunFolder(run))


def test_a_second_round_composes_with_the_first_and_keeps_its_sums(made: Path) -> None:
    first, second = open_sketch(made / "first"), open_sketch(made / "second")
    assert [len(part) for part in second.privacy.parts] == [2]
    squares = [record.planned.events[0].noise_multiplier ** -2 for record in second.privacy.records[0]]
    assert second.claim.mu**2 == pytest.approx(sum(squares))
    assert second.claim.epsilon > first.claim.epsilon
    assert torch.equal(second.sums[0], first.sums[0])
    bound = row_bound(second.layout.total_weight)
    assert second.noises == pytest.approx([second.facts.sensitivity(bound) * square**-0.5 for square in squares])


def test_a_second_round_of_merged_sketches_costs_everyone(made: Path, tmp_path: Path) -> None:
    synthesize(made / "merged", tmp_path / "run", options=NETWORKS, features_out=tmp_path / "nets")
    second = continued(tmp_path / "c", made / "merged", tmp_path / "nets", epsilon=0.5, declared_size=50)
    assert [len(part) for part in second.privacy.parts] == [2, 2]
    assert second.claim.mu**2 == pytest.approx(open_sketch(made / "merged").claim.mu ** 2 + 0.1405**2, rel=1e-2)
    verify(tmp_path / "c")


def test_an_interrupted_second_round_needs_nothing_but_its_folder(made: Path, tmp_path: Path) -> None:
    goal, images = SketchGoal.after(made / "first", made / "networks"), make_images()
    plan = sketch_plan(images, **goal.settings())
    with pytest.raises(Killed):
        execute_sketch(goal, images, plan, tmp_path / "a", progress=dies)
    sketch = resume_sketch(images, tmp_path / "a")
    assert len(sketch.rounds) == 2
    verify(tmp_path / "a")


@pytest.mark.parametrize(
    "options", [{"delta": 1e-6}, {"adjacency": "replace"}, {"declared_size": 21}, {"networks": 3}, {"rounds": 2},
                {"unit": "user", "images_per_user": 2}],
)  # fmt: skip
def test_a_second_round_on_other_terms_is_refused_before_anything_is_written(
    options: dict[str, Any], made: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError):
        continued(tmp_path / "a", made / "first", made / "networks", **options)
    assert not (tmp_path / "a").exists()


def test_a_second_round_of_other_images_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        continued(tmp_path / "a", made / "first", made / "networks", images=make_images(counts=(7, 5)))


def test_a_round_without_noise_voids_the_whole_sketch(made: Path, tmp_path: Path) -> None:
    sketch = continued(tmp_path / "a", made / "first", made / "networks", accounting="none", epsilon=None)
    assert sketch.claim.epsilon is None
    assert "epsilon" not in verify(tmp_path / "a")


def test_plans_for_something_else_are_refused(tmp_path: Path) -> None:
    images = make_images()
    for plan in (tiny_plan(images, "dp-merf"), sketch_plan(images, rounds=2),
                 sketch_plan(images, accounting="published")):  # fmt: skip
        with pytest.raises(ConfigError, match="one round"):
            execute_sketch(SketchGoal(), images, plan, tmp_path / "a")
    with pytest.raises(ConfigError, match="synthesize"):
        SketchGoal().settings(networks=2, steps=3)


def test_both_rounds_are_charged_to_the_budget_of_the_data(made: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    terms = {"delta": 1e-5, "adjacency": Adjacency.ADD_REMOVE, "unit": Unit.RECORD}
    budget = DatasetBudget.create(tmp_path / "data", epsilon=1.2, **terms)
    images = make_images(source=Source(path=str(tmp_path / "data")))
    measured(tmp_path / "a", images)
    assert budget.status().epsilon_charged == pytest.approx(1.0)
    second = continued(tmp_path / "b", tmp_path / "a", made / "networks", images=images, epsilon=0.5)
    assert budget.status().epsilon_charged == pytest.approx(second.claim.epsilon)
    with pytest.raises(BudgetExceeded):
        continued(tmp_path / "c", tmp_path / "b", made / "networks", images=images, epsilon=1.0)


def test_a_merged_second_round_is_that_of_each_part_composed(made: Path, tmp_path: Path) -> None:
    """Both parts go on with the same networks, then are merged: each person bears both rounds of one part."""
    for name in ("first", "other"):
        images = make_images(seed=1) if name == "other" else make_images()
        size = open_sketch(made / name).facts.declared_size
        continued(tmp_path / name, made / name, made / "networks", images=images, declared_size=size)
    merged = merge([tmp_path / "first", tmp_path / "other"], tmp_path / "both")
    assert merged.claim.mu == pytest.approx(open_sketch(tmp_path / "other").claim.mu)
    verify(tmp_path / "both")
