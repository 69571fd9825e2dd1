"""The registry and the conversion of settings."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from typing import Any, ClassVar

import pytest
import torch

import veilset
from veilset.errors import ConfigError
from veilset.methods.base import FitContext, PublicFacts, all_methods, get_method, make_config, nearest

METHODS = tuple(all_methods())


@dataclass(frozen=True, kw_only=True)
class Options:
    count: int = 3
    rate: float = 0.5
    fast: bool = False
    name: str = "x"


class Example:
    name: ClassVar[str] = "example"
    Config: ClassVar[type] = Options


def made(**settings: Any) -> Options:
    return make_config(Example(), settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_it_is(name: str) -> None:
    method = get_method(name)
    assert method.name == name
    assert method.summary
    assert method.paper
    assert is_dataclass(method.Config)
    assert all(isinstance(text, str) for text in method.assumptions)
    assert type(method).__doc__


@pytest.mark.parametrize("name", METHODS)
def test_a_config_is_frozen_and_has_a_default_for_everything(name: str) -> None:
    config = get_method(name).Config()
    with pytest.raises(FrozenInstanceError):
        setattr(config, fields(config)[0].name, 1)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_no_state(name: str) -> None:
    assert vars(get_method(name)) == {}


def test_methods_come_sorted_and_are_found_by_name() -> None:
    assert list(veilset.all_methods()) == sorted(veilset.all_methods())
    assert get_method("dp-merf") is veilset.all_methods()["dp-merf"]


@pytest.mark.parametrize("name", ["", "dp_merf", "nothing like it", "../x"])
def test_an_unknown_method_is_refused_with_the_list_of_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="dp-merf"):
        get_method(name)


def test_nearest_gives_a_hint_or_points_to_the_list() -> None:
    assert "dp-merf" in nearest("dpmerf", ["dp-merf", "gs-wgan"])
    assert "lists methods" in nearest("zzz", ["dp-merf"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, Options()),
        ({"count": "7"}, Options(count=7)),
        ({"rate": "1e-3"}, Options(rate=0.001)),
        ({"rate": 2}, Options(rate=2.0)),
        ({"fast": "true"}, Options(fast=True)),
        ({"fast": "No"}, Options(fast=False)),
        ({"fast": True}, Options(fast=True)),
        ({"name": "y"}, Options(name="y")),
    ],
)
def test_settings_from_the_command_line_are_converted(settings: dict[str, Any], expected: Options) -> None:
    assert made(**settings) == expected
    assert [type(value) for value in vars(made(**settings)).values()] == [int, float, bool, str]


@pytest.mark.parametrize(
    "settings",
    [
        {"count": "3.5"},
        {"count": 3.5},
        {"count": True},
        {"count": None},
        {"count": [1]},
        {"rate": "fast"},
        {"fast": "maybe"},
    ],
    ids=str,
)
def test_values_of_the_wrong_type_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a value of type"):
        made(**settings)


def test_an_unknown_option_is_refused_and_never_ignored() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'count'"):
        made(counts=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [("gs-wgan", {"teachers": "together"}), ("dpac", {"teachers": "together"}), ("dpaf", {"construction": "repaired"}),
     ("dp-merf", {"total_weight": 0.5})],
)  # fmt: skip
def test_what_a_published_epsilon_is_about_can_be_typed_but_not_changed(name: str, options: dict[str, Any]) -> None:
    (option,) = options
    method = get_method(name)
    with pytest.raises(ConfigError, match=rf"as in the paper\n.*\n.*Drop --{option.replace('_', '-')} or"):
        make_config(method, options, published=True)
    papers = getattr(make_config(method, {}, published=True), option)
    assert papers != options[option]
    assert getattr(make_config(method, {option: papers}, published=True), option) == papers


def test_generators_of_a_fit_depend_on_seed_and_name() -> None:
    def context(seed: int) -> FitContext:
        none: Any = None
        facts: PublicFacts = none
        return FitContext(
            door=none, facts=facts, noise_multiplier=1.0, shard_key=b"", seed=seed, device=torch.device("cpu"),
            checkpoints=none, progress=lambda *_: None,
        )  # fmt: skip

    def draw(seed: int, name: str) -> float:
        return float(torch.rand((), generator=context(seed).generator(name)))

    assert draw(0, "a") == draw(0, "a")
    assert len({draw(0, "a"), draw(1, "a"), draw(0, "b")}) == 3
