"""What a method is: a Config, the events it will release, a fit, a sampler. One file each, found by the registry."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

import veilset.methods as folder
from veilset.data.spec import Images, ImageSpec
from veilset.engines.contexts import FitContext as FitContext
from veilset.engines.contexts import Forecast as Forecast
from veilset.engines.contexts import OpenContext as OpenContext
from veilset.engines.contexts import Progress as Progress
from veilset.engines.contexts import PublicFacts as PublicFacts
from veilset.errors import ConfigError
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import CAPPED, Published
from veilset.privacy.events import Event
from veilset.sketch_file import Layout


class Mechanism(Protocol):
    """What a plan is made for and a claim is about, whatever comes of it: images, or a classifier (`dp_sgd`).

    Instances hold no state: everything is in the arguments, so any step can be repeated alone. One with settings for
    which no epsilon can be proven has `unproven(config)`, which says why; see `unproven_by`.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    assumptions: ClassVar[tuple[str, ...]]
    published_adjacency: ClassVar[Adjacency]

    def events(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        """Everything a fit will release. Pure, from public facts only."""

    def reserve(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        """What may be released again after a crash."""

    def published_noise(self, config: Any, facts: PublicFacts, epsilon: float, delta: float) -> float:
        """The noise multiplier the paper's formula gives for this epsilon."""

    def published_claim(self, config: Any, facts: PublicFacts, noise_multiplier: float, delta: float) -> Published:
        """The paper's epsilon for this noise, and the status of its proof."""

    def forecast(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Forecast: ...


class Synthesizer(Mechanism, Protocol):
    """One method that makes images.

    A method whose released values are worth sharing themselves also has `layout(config)`, their public shape, and
    `released(config, checkpoints)`, their tensors; see `layout_of`.
    """

    summary: ClassVar[str]
    paper: ClassVar[str]

    def build(self, config: Any, spec: ImageSpec) -> nn.Module:
        """The open-side model with arbitrary weights: its tensors are the only ones a release may hold."""

    def fit(self, config: Any, images: Images, context: FitContext) -> nn.Module:
        """Vault work, releases through context.door, then open work; returns the model to share.

        Images come as an `ImageSet`, in memory, unless the class says ``streams = True``: it then only passes over
        them, and they may stay on disk.
        """

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        """One image in [0, 1] per label."""


_METHODS: dict[str, Synthesizer] = {}
_OTHERS: dict[str, Mechanism] = {}


def register(method: type[Any]) -> type[Any]:
    """Class decorator: makes a method known by its name."""
    _METHODS[method.name] = method()
    return method


def register_other(mechanism: type[Any]) -> type[Any]:
    """Class decorator: the same for what makes no images, and is offered nowhere as a method."""
    _OTHERS[mechanism.name] = mechanism()
    return mechanism


def all_methods() -> dict[str, Synthesizer]:
    """All methods by name, found by importing every file of this folder."""
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"veilset.methods.{module.name}")
    return dict(sorted(_METHODS.items()))


DEFAULT_METHOD = "sketch"


def get_method(name: str) -> Synthesizer:
    known = all_methods()
    if name not in known:
        raise ConfigError(f"one of the methods {', '.join(known)}", f"'{name}'", nearest(name, known))
    return known[name]


def get_mechanism(name: str) -> Mechanism:
    """A method, or what else is planned and priced like one."""
    known = {**all_methods(), **_OTHERS}
    if name not in known:
        raise ConfigError(f"one of {', '.join(known)}", f"{name!r}", nearest(name, known))
    return known[name]


def layout_of(method: Synthesizer, config: Any) -> Layout | None:
    """The shape of the sketch that goes with a release of this method; None for a method without one."""
    layout: Callable[[Any], Layout] | None = getattr(method, "layout", None)
    return None if layout is None else layout(config)


def assumptions_of(mechanism: Mechanism, config: Any, unit: Unit) -> tuple[str, ...]:
    """What a claim assumes because of the mechanism, and because of these settings of it (`assumed(config)`)."""
    further: Callable[[Any], tuple[str, ...]] | None = getattr(mechanism, "assumed", None)
    capped = CAPPED[unit] if caps_users(mechanism) else ()
    return (*capped, *mechanism.assumptions, *(() if further is None else further(config)))


def caps_users(mechanism: Mechanism) -> bool:
    """Whether a user counts with images up to a declared cap; one with ``caps_users = False`` bounds any number."""
    return bool(getattr(mechanism, "caps_users", True))


def cautions_of(mechanism: Mechanism, config: Any, facts: PublicFacts) -> tuple[str, ...]:
    """What speaks against these settings for a collection like this, in sentences (`cautions(config, facts)`)."""
    further: Callable[[Any, PublicFacts], tuple[str, ...]] | None = getattr(mechanism, "cautions", None)
    return () if further is None else further(config, facts)


def unproven_by(method: Mechanism, config: Any) -> str | None:
    """Why no epsilon can be proven for these settings, in words; None where one can."""
    reason: Callable[[Any], str | None] | None = getattr(method, "unproven", None)
    return None if reason is None else reason(config)


def check_images(method: Mechanism, config: Any, images: Images) -> None:
    """Stops, before anything is charged, where a method cannot work on these images (`check(config, images)`)."""
    check: Callable[[Any, Images], object] | None = getattr(method, "check", None)
    if check is not None:
        check(config, images)


def settled_by(method: Mechanism, config: Any, facts: PublicFacts, noise_multiplier: float) -> Any:
    """The settings with what follows from the noise (`settled(config, facts, noise_multiplier)`), where a method has
    such: public numbers alone decide."""
    settled: Callable[[Any, PublicFacts, float], Any] | None = getattr(method, "settled", None)
    return config if settled is None else settled(config, facts, noise_multiplier)


def layout_in(config: Mapping[str, Any]) -> Layout | None:
    """The layout a config.json declares: of the sketch its model was made from, or of the method's own settings."""
    method = get_method(str(config["method"]))
    if "sketch" not in config:
        return layout_of(method, make_config(method, config["config"]))
    if not hasattr(method, "layout"):
        raise ConfigError("a method with a sketch", method.name, "Do not trust this release.")
    return Layout.from_json(config["sketch"])


def nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"Did you mean '{close[0]}'?" if close else "`veilset methods` lists methods and options."


def make_config(method: Mechanism, settings: Mapping[str, Any], *, published: bool = False) -> Any:
    """The method's frozen Config from names and values (text from the command line is converted).

    Args:
        published: of the paper's construction; what is not given is the paper's (`published_defaults`), where a method
            has other defaults, and what its epsilon is about (`published_construction`) is not for anybody to set.
    """
    known = {field.name: field for field in fields(method.Config)}
    for name in settings:
        if name not in known:
            raise ConfigError(f"an option of {method.name}: {', '.join(known)}", f"'{name}'", nearest(name, known))
    default = method.Config()
    values = {name: _convert(name, value, getattr(default, name)) for name, value in settings.items()}
    papers: Mapping[str, Any] = getattr(method, "published_defaults", {}) if published else {}
    fixed: Mapping[str, Any] = getattr(method, "published_construction", {}) if published else {}
    for name in fixed.keys() & values.keys():
        if values[name] != fixed[name]:
            todo = f"Drop --{name.replace('_', '-')} or --accounting published."
            raise ConfigError(f"{name} {fixed[name]}, as in the paper", f"{values[name]!r}", todo)
    return method.Config(**{**papers, **_preset(method, values), **values, **fixed})


def check_complete(method: Mechanism, settings: Mapping[str, Any]) -> None:
    """Refuses stored settings without an option of today: they were made where that option did not exist."""
    missing = [field.name for field in fields(method.Config) if field.name not in settings]
    if missing:
        raise ConfigError(f"all options of {method.name}", f"no {', '.join(missing)}", "Make it again.")


def _preset(method: Mechanism, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings a preset stands for; single options given beside it win."""
    presets: Mapping[str, Mapping[str, Any]] = getattr(method, "presets", {})
    name = values.get("preset")
    if name is None:
        return {}
    if name not in presets:
        raise ConfigError(f"one of the presets {', '.join(presets)}", f"'{name}'", nearest(name, presets))
    return presets[name]


def _convert(name: str, value: Any, default: Any) -> Any:
    """`value` as the type of the option's default; a wrong type is an error, never silently accepted."""
    kind = type(default)
    try:
        if kind is bool and isinstance(value, str):
            return {"true": True, "yes": True, "false": False, "no": False}[value.lower()]
        if kind is int and isinstance(value, float | bool):
            raise ValueError("not a whole number")
        return kind(value)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"a value of type {kind.__name__} for '{name}'", f"{value!r}", "Correct the value."
        ) from error
