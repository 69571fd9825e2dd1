"""Where figures go, and on what machine and code they are made."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import results
import torch

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
