"""What a method is: a Config, the events it will release, a fit, a sampler. One file each, found by the registry."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

import veilset.methods as folder
from veilset.data.spec import Images, ImageSpec
from veilset.engines.checkpointing import Checkpoints
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
from veilset.wording import meant


class Mechanism(ABC):
    """What a plan is made for and a claim is about, whatever comes of it: images, or a classifier (`dp_sgd`).

    Instances hold no state: everything is in the arguments, so any step can be repeated alone. Whatever has no value
    here, and every abstract member, a class must have before it is registered; all else is a default.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    assumptions: ClassVar[tuple[str, ...]]
    """Of every claim."""
    published_adjacency: ClassVar[Adjacency]

    streams: ClassVar[bool] = False
    """Whether a fit only passes over the images, which may then stay on disk."""
    caps_users: ClassVar[bool] = True
    """Whether a user counts with images up to a declared cap, or else with any number of them."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """What each value of the option `preset`, where Config has one, stands for."""
    published_defaults: ClassVar[Mapping[str, Any]] = {}
    """The paper's, where they are others than those of Config: for published accounting."""
    published_construction: ClassVar[Mapping[str, Any]] = {}
    """What the published epsilon is about: with published accounting nobody sets it otherwise."""

    @abstractmethod
    def events(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        """Everything a fit will release. Pure, from public facts only."""

    @abstractmethod
    def reserve(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        """What may be released again after a crash."""

    @abstractmethod
    def published_noise(self, config: Any, facts: PublicFacts, epsilon: float, delta: float) -> float:
        """The noise multiplier the paper's formula gives for this epsilon."""

    @abstractmethod
    def published_claim(self, config: Any, facts: PublicFacts, noise_multiplier: float, delta: float) -> Published:
        """The paper's epsilon for this noise, and the status of its proof."""

    @abstractmethod
    def forecast(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        """What to expect of a fit, for people."""

    @abstractmethod
    def build(self, config: Any, spec: ImageSpec) -> nn.Module:
        """The open-side model with arbitrary weights: its tensors are the only ones a release may hold."""

    @abstractmethod
    def fit(self, config: Any, images: Images, context: FitContext) -> nn.Module:
        """Vault work, releases through context.door, then open work; returns the model to share.

        Images come as an `ImageSet`, in memory, unless the class says ``streams = True``.
        """

    def assumed(self, config: Any) -> tuple[str, ...]:
        """What a claim assumes because of these settings, beside `assumptions`."""
        return ()

    def cautions(self, config: Any, facts: PublicFacts) -> tuple[str, ...]:
        """What speaks against these settings for a collection like this, in sentences."""
        return ()

    def unproven(self, config: Any) -> str | None:
        """Why no epsilon can be proven for these settings, in words; None where one can."""
        return None

    def check(self, config: Any, images: Images, device: torch.device) -> object:
        """Raises, before anything is charged or reserved, where a fit could not work on these images, there."""
        return None

    def settled(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Any:
        """The settings with what follows from the noise: public numbers alone decide."""
        return config


class Synthesizer(Mechanism):
    """One method that makes images."""

    summary: ClassVar[str]
    paper: ClassVar[str]

    @abstractmethod
    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        """One image in [0, 1] per label."""


class WithSketch(Synthesizer):
    """A method whose released values are worth sharing themselves: they go with its model, as a sketch."""

    @abstractmethod
    def layout(self, config: Any) -> Layout:
        """The public shape of the sketch."""

    @abstractmethod
    def released(self, config: Any, checkpoints: Checkpoints) -> dict[str, Tensor]:
        """Its tensors, after a fit."""


_METHODS: dict[str, Synthesizer] = {}
_OTHERS: dict[str, Mechanism] = {}

SomeMethod = TypeVar("SomeMethod", bound=Synthesizer)
SomeMechanism = TypeVar("SomeMechanism", bound=Mechanism)


def register(method: type[SomeMethod]) -> type[SomeMethod]:
    """Class decorator: makes a method known by its name.

    Raises: TypeError for a class that lacks a member, or has one that nothing would ask for.
    """
    _check_members(method, Synthesizer)
    _METHODS[method.name] = method()
    return method


def register_other(mechanism: type[SomeMechanism]) -> type[SomeMechanism]:
    """Class decorator: the same for what makes no images, and is offered nowhere as a method."""
    _check_members(mechanism, Mechanism)
    _OTHERS[mechanism.name] = mechanism()
    return mechanism


def _check_members(method: type[Mechanism], base: type[Any]) -> None:
    if not issubclass(method, base):
        raise TypeError(f"{method.__name__} must inherit from {base.__name__}, after what it shares with other methods")
    declared = {name for kind in method.__mro__ for name in inspect.get_annotations(kind)}
    missing = {name for name in declared if not hasattr(method, name)} | method.__abstractmethods__
    if missing:
        raise TypeError(f"{method.__name__} lacks {', '.join(sorted(missing))}")
    inherited = declared.union(*(vars(kind) for kind in method.__mro__[1:]))
    unknown = {name for name in vars(method) if not name.startswith("_")} - inherited
    if unknown:  # a misspelt hook would never be called
        raise TypeError(
            f"{method.__name__} has {', '.join(sorted(unknown))}, which nothing asks for: {base.__name__} lists what a "
            "method may have, and what is its own begins with _"
        )


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


def assumptions_of(mechanism: Mechanism, config: Any, unit: Unit) -> tuple[str, ...]:
    """All that a claim assumes because of the mechanism and its settings."""
    capped = CAPPED[unit] if mechanism.caps_users else ()
    return (*capped, *mechanism.assumptions, *mechanism.assumed(config))


def layout_in(config: Mapping[str, Any]) -> Layout | None:
    """The layout a config.json declares: of the sketch its model was made from, or of the method's own settings."""
    method = get_method(str(config["method"]))
    if isinstance(method, WithSketch):
        own = "sketch" not in config
        return method.layout(make_config(method, config["config"])) if own else Layout.from_json(config["sketch"])
    if "sketch" in config:
        raise ConfigError("a method with a sketch", method.name, "Do not trust this release.")
    return None


def nearest(name: str, known: Any) -> str:
    return meant(name, known, "`veilset methods` lists methods, and `veilset methods NAME` the options of one.")


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
    papers = method.published_defaults if published else {}
    fixed = method.published_construction if published else {}
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
    presets, name = method.presets, values.get("preset")
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
