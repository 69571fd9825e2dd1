"""The registry and the conversion of settings."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import veilset
from veilset.data.spec import Images, ImageSpec
from veilset.errors import ConfigError
from veilset.methods import base
from veilset.methods.base import (
    FitContext,
    Forecast,
    Mechanism,
    PublicFacts,
    Synthesizer,
    all_methods,
    assumptions_of,
    get_method,
    layout_in,
    make_config,
    nearest,
    register,
    register_other,
)
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import CAPPED, Published
from veilset.privacy.events import NOTHING, Event

METHODS = tuple(all_methods())


@dataclass(frozen=True, kw_only=True)
class Options:
    count: int = 3
    rate: float = 0.5
    fast: bool = False
    name: str = "x"


class Example(Synthesizer):
    """What a method must have, and nothing more."""

    name: ClassVar[str] = "example"
    summary: ClassVar[str] = "an example"
    paper: ClassVar[str] = "none"
    Config: ClassVar[type] = Options
    assumptions: ClassVar[tuple[str, ...]] = ("it is an example",)
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    def events(self, config: Options, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING

    def reserve(self, config: Options, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING

    def published_noise(self, config: Options, facts: PublicFacts, epsilon: float, delta: float) -> float:
        return 1.0

    def published_claim(self, config: Options, facts: PublicFacts, noise_multiplier: float, delta: float) -> Published:
        return Published(1.0, "sound", "an example")

    def forecast(self, config: Options, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        return Forecast(signal_to_noise=1.0, seconds=1.0, megabytes=1.0, released="nothing")

    def build(self, config: Options, spec: ImageSpec) -> nn.Module:
        return nn.Identity()

    def fit(self, config: Options, images: Images, context: FitContext) -> nn.Module:
        return nn.Identity()

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        return torch.zeros(len(labels), 1, 8, 8)


REQUIRED = {name for name in vars(Example) if not name.startswith("_")}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Synthesizer]:
    """What a test registers, apart from what there is."""
    known: dict[str, Synthesizer] = {}
    monkeypatch.setattr(base, "_METHODS", known)
    monkeypatch.setattr(base, "_OTHERS", {})
    return known


def test_a_method_with_all_that_is_required_is_registered(registry: dict[str, Synthesizer]) -> None:
    assert register(Example) is Example
    assert isinstance(registry["example"], Example)


@pytest.mark.parametrize("lacking", sorted(REQUIRED))
def test_a_method_without_a_required_member_is_refused_when_it_is_registered(
    lacking: str, registry: dict[str, Synthesizer]
) -> None:
    members = {name: value for name, value in vars(Example).items() if name in REQUIRED - {lacking}}
    with pytest.raises(TypeError, match=f"Incomplete lacks {lacking}$"):
        register(type("Incomplete", (Synthesizer,), members))
    assert registry == {}


def test_what_a_mixin_leaves_open_is_required_too(registry: dict[str, Synthesizer]) -> None:
    class Shared:
        source: ClassVar[str]

    class Open(Shared, Example):
        pass

    class Closed(Shared, Example):
        source: ClassVar[str] = "a page"

    with pytest.raises(TypeError, match="Open lacks source"):
        register(Open)
    register(Closed)


@pytest.mark.parametrize("hook", ["caution", "stream", "publised_defaults"])
def test_a_misspelt_hook_is_refused_when_it_is_registered(hook: str, registry: dict[str, Synthesizer]) -> None:
    with pytest.raises(TypeError, match=f"Misspelt has {hook}, which nothing asks for"):
        register(type("Misspelt", (Example,), {hook: True}))
    assert registry == {}


def test_what_does_not_inherit_is_refused_and_a_mechanism_is_no_method(registry: dict[str, Synthesizer]) -> None:
    with pytest.raises(TypeError, match="Duck must inherit from Synthesizer"):
        register(type("Duck", (), dict(vars(Example))))
    members = {name: vars(Example)[name] for name in REQUIRED - {"summary", "paper", "sample"}}
    other: Any = type("Other", (Mechanism,), members)
    with pytest.raises(TypeError, match="Other must inherit from Synthesizer"):
        register(other)
    assert register_other(other) is other
    assert registry == {}


def test_all_else_a_method_may_have_has_a_default_that_changes_nothing() -> None:
    method, config = Example(), Options()
    anything: Any = None
    assert (method.streams, method.caps_users) == (False, True)
    assert (method.presets, method.published_defaults, method.published_construction) == ({}, {}, {})
    assert (method.assumed(config), method.cautions(config, anything)) == ((), ())
    assert (method.unproven(config), method.check(config, anything, torch.device("cpu"))) == (None, None)
    assert method.settled(config, anything, 1.0) is config
    assert assumptions_of(method, config, Unit.USER) == (*CAPPED[Unit.USER], "it is an example")


def test_a_config_that_declares_a_sketch_of_a_method_without_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="a method with a sketch"):
        layout_in({"method": "dp-merf", "config": {}, "sketch": {}})
    assert layout_in({"method": "dp-merf", "config": {}}) is None
    assert layout_in({"method": "sketch", "config": {"rounds": 1}}) is not None


def made(**settings: Any) -> Options:
    return make_config(Example(), settings)


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
