"""What a method's parts are told: public facts before anything is spent, and all a fit may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from veilset.data.spec import ImageSpec
from veilset.engines.checkpointing import Checkpoints
from veilset.privacy.bounds import Adjacency, Unit, sum_sensitivity
from veilset.privacy.noise import NoNoise
from veilset.privacy.release import Door
from veilset.randomness import named_generator

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""
History = Callable[[str, int, float], None]
"""Called with (name, step, value), such as ("matching loss", 50, 0.31); names alike up to a "/" share a figure.

The values may depend on private images in any way: they are kept in the vault and drawn on the owner's page alone.
"""


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """All a plan may depend on. The exact number of records is not among it: under add/remove it is private."""

    spec: ImageSpec
    declared_size: int
    adjacency: Adjacency
    unit: Unit
    rows_per_user: int | None = None

    def sensitivity(self, row_bound: float) -> float:
        """How far one unit of privacy moves a sum of rows of this norm."""
        return sum_sensitivity(row_bound, self.adjacency) * (self.rows_per_user or 1)

    @property
    def change(self) -> str:
        """What neighbours differ by, in words."""
        return f"{'replacing' if self.adjacency is Adjacency.REPLACE else 'adding or removing'} one {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What to expect before anything is spent."""

    signal_to_noise: float
    """Length of the typical released signal over the length of its noise; below about 1 nothing is learned."""
    seconds: float
    """On two CPU cores; rough."""
    megabytes: float
    released: str
    """One sentence: what leaves the vault, how often, and why its bound holds."""
    later_signal_to_noise: float | None = None
    """Of what follows a first stage, where there is one that may teach enough by itself."""


@dataclass(frozen=True, kw_only=True)
class OpenContext:
    """All that open-side work is given beside released values: nothing in it leads to private images."""

    facts: PublicFacts
    seed: int
    device: torch.device
    checkpoints: Checkpoints
    progress: Progress
    history: History = lambda *_: None

    def generator(self, name: str) -> torch.Generator:
        return named_generator(self.seed, name, self.device)


@dataclass(frozen=True, kw_only=True)
class FitContext(OpenContext):
    """All a fit is given beside its config and the images."""

    door: Door
    noise_multiplier: float
    shard_key: bytes
    """Secret key that assigns records to shards: drawn once per data set, the same after a resume."""

    @property
    def noise_drawn(self) -> float:
        """The noise multiplier of what the door adds: none with accounting none."""
        return 0.0 if isinstance(self.door.noise, NoNoise) else self.noise_multiplier
