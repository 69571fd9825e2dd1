"""Where figures go, and on what machine and code they are made."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results
import torch

from veilset.methods.base import get_method, make_config

PARTIAL = Path(__file__).parent / ".partial"


@dataclass(frozen=True)
class Bench:
    results: Path
    partial: Path
    """Folder for fits and figures of unfinished rows."""
    device: torch.device
    commit: str
    again: bool = False
    """Measure what the results already have, too."""
    at_once: int = 1
    """Fits and figures that are made side by side."""

    @property
    def device_name(self) -> str:
        shared = f", {self.at_once} fits at once" if self.at_once > 1 else ""
        return results.device_name(self.device) + shared


def setting(words: str) -> tuple[str, str]:
    """NAME=VALUE of an option --set."""
    name, equals, value = words.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {words!r}")
    return name, value


def typed(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method as it reads them: numbers, where they came as words.

    Raises: ConfigError for an option or a value it does not know.
    """
    config = make_config(get_method(method), settings)
    return {name: getattr(config, name) for name in settings}
