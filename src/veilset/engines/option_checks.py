"""Options of methods: what each is in words, and checks that the settings of several methods need."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, TypeVar

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError

Value = TypeVar("Value")


def option(default: Value, words: str) -> Value:
    """A field of a settings class, for `veilset methods`; "paper" in its words says whose default it is."""
    return field(default=default, metadata={"words": words})  # type: ignore[no-any-return,call-overload]


def words_of(settings: Any) -> dict[str, str]:
    """Of each option, by name."""
    return {one.name: one.metadata["words"] for one in fields(settings)}


def at_least_one(settings: object, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} of at least 1", f"{getattr(settings, name)}", "Correct the option.")


def positive(settings: object, *names: str) -> None:
    """Above zero, and of a size that arithmetic can deal with."""
    for name in names:
        if not 1e-9 <= getattr(settings, name) <= 1e9:
            raise ConfigError(f"{name} from 1e-9 to 1e9", f"{getattr(settings, name)}", "Correct the option.")


def two_classes(method: str, spec: ImageSpec) -> None:
    """Of a method that learns from a classifier: with a single class its gradients are zero, and noise is all that
    would be bought."""
    if spec.num_classes < 2:
        raise ConfigError(
            f"two or more classes for {method}, which learns what tells them apart",
            f"{spec.num_classes} ({', '.join(spec.class_names)})",
            "Put classes together with others, or use another method: sketch needs one.",
        )
