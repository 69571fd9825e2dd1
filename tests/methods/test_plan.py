"""Plans: calibrated on the private side, written and read without loss, honest about hopeless targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract.cases import METHODS, make_images, tiny_plan

from veilset.errors import ConfigError
from veilset.methods.plan import Plan
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.gaussian import gaussian_mu


def planned(**options: Any) -> Plan:
    return tiny_plan(make_images(), "dp-merf", **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accounting": "published"},
        {"accounting": "none", "epsilon": None},
        {"adjacency": "replace"},
        {"unit": "user", "images_per_user": 3},
        {"seed": 12},
    ],
    ids=str,
)
def test_a_plan_survives_its_file(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    plan = replace(tiny_plan(make_images(), method, **options), reservation="abc")
    (tmp_path / "plan.json").write_bytes(plan.dumps())
    assert Plan.load(tmp_path / "plan.json") == plan


def test_the_public_summary_leaves_the_reservation_out() -> None:
    summary = replace(planned(), reservation="secretname").public_summary()
    assert "secretname" not in json.dumps(summary)
    assert summary["method"] == "dp-merf"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", '{"method": "dp-merf"}', "[" * 100_000], ids=range(7))
def test_a_file_that_is_no_plan_is_our_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(ConfigError, match="plan"):
        Plan.load(tmp_path / "plan.json")
    with pytest.raises(ConfigError, match="plan"):
        Plan.load(tmp_path / "missing.json")


def test_a_plan_that_does_not_say_where_its_size_is_from_took_it_from_the_data() -> None:
    value = planned().to_json()
    assert Plan.from_json(value).size_from_data is False
    del value["size_from_data"]
    assert Plan.from_json(value).size_from_data is True


OPTIONAL = ("warnings", "reservation", "veilset", "size_from_data")


@pytest.mark.parametrize("field", [name for name in planned().to_json() if name not in OPTIONAL])
def test_a_plan_without_one_of_its_fields_is_our_error(field: str) -> None:
    value = planned().to_json()
    del value[field]
    with pytest.raises(ConfigError):
        Plan.from_json(value)


def test_a_plan_with_a_field_too_many_is_our_error() -> None:
    with pytest.raises(ConfigError):
        Plan.from_json({**planned().to_json(), "sneaky": 1})


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_calibrated_noise_lands_on_the_private_side_and_close(epsilon: float, adjacency: Adjacency) -> None:
    plan = planned(epsilon=epsilon, adjacency=adjacency)
    assert plan.epsilon_planned is not None
    assert epsilon * (1 - 1e-6) <= plan.epsilon_planned <= epsilon
    assert plan.noise_multiplier == pytest.approx(1 / gaussian_mu(epsilon, 1e-5), rel=1e-6)


def test_the_published_plan_uses_the_papers_neighbours_and_says_so() -> None:
    plan = planned(accounting="published", adjacency="add-remove")
    assert plan.facts.adjacency is Adjacency.REPLACE
    assert plan.published is not None
    assert plan.epsilon_planned == price(plan.planned, plan.delta, Adjacency.REPLACE).epsilon


def test_a_plan_without_accounting_claims_nothing() -> None:
    plan = planned(accounting="none", epsilon=None)
    assert plan.epsilon_planned is None
    assert plan.not_private is not None
    assert planned().not_private is None


def test_a_hopeless_plan_warns_and_a_good_one_does_not() -> None:
    assert any("times the signal" in warning for warning in planned(epsilon=0.01).warnings)
    assert planned(epsilon=5.0, declared_size=9000).warnings == ()


def test_a_delta_near_one_over_the_size_warns_and_one_above_it_is_refused() -> None:
    assert any("delta x declared size" in warning for warning in planned(delta=1e-5, declared_size=20_000).warnings)
    assert planned(delta=1e-6, declared_size=20_000).warnings == ()
    with pytest.raises(ConfigError, match="delta below"):
        planned(delta=1e-4, declared_size=20_000)


@pytest.mark.parametrize(("size", "usable"), [(150, "0.0001"), (20_000, "1e-06"), (60_000, "1e-06")])
def test_a_delta_that_is_too_large_is_told_one_that_is_not(size: int, usable: str) -> None:
    warnings = planned(delta=0.5 / size, declared_size=size, epsilon=100.0).warnings
    (warning,) = [text for text in warnings if "a weak guarantee" not in text]
    assert f"--delta {usable}" in warning
    with pytest.raises(ConfigError, match=rf"Use --delta {usable} or a smaller one\."):
        planned(delta=1 / size, declared_size=size)
    assert not any("delta" in text for text in planned(delta=float(usable), declared_size=size).warnings)


@pytest.mark.parametrize(("epsilon", "weak"), [(10.0, False), (11.0, True)])
def test_an_epsilon_that_says_little_is_warned_of_before_it_is_spent(epsilon: float, weak: bool) -> None:
    assert any("a weak guarantee" in text for text in planned(epsilon=epsilon).warnings) == weak


def test_user_level_plans_keep_the_cap_and_expect_less() -> None:
    record, user = planned(), planned(unit="user", images_per_user=4)
    assert (user.facts.unit, user.facts.rows_per_user) == (Unit.USER, 4)
    assert user.noise_multiplier == record.noise_multiplier
    assert user.forecast.signal_to_noise == pytest.approx(record.forecast.signal_to_noise / 4)


@pytest.mark.parametrize("method", METHODS)
def test_a_forecast_is_finite_and_says_what_is_released(method: str) -> None:
    forecast = tiny_plan(make_images(), method).forecast
    assert forecast.released
    for value in (forecast.signal_to_noise, forecast.seconds, forecast.megabytes):
        assert 0 < value < float("inf")
