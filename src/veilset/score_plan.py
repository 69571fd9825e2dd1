"""What a purchase of noisy scores will cost whom, as it is reserved and kept in the vault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from veilset.budget import ChargeTerms
from veilset.errors import RunError
from veilset.files import read_json
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import Gaussian

PURCHASES = "dp-scores"
RESERVED = "reserved.json"
"""In the vault's folder of purchases: the one that waits."""


@dataclass(frozen=True, kw_only=True)
class ScorePlan:
    """What a purchase will cost whom. It depends on no image, so it can be made before there is a model."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    unit: Unit
    images_per_user: int | None
    noise_multiplier: float
    test: str
    """Which test set: the id of its budget, else its place or name."""
    reservation: str | None
    before_fit: bool

    @property
    def event(self) -> Gaussian:
        return Gaussian(self.noise_multiplier)

    @property
    def terms(self) -> ChargeTerms:
        return {
            "adjacency": self.adjacency, "unit": self.unit, "delta": self.delta, "rows_per_user": self.images_per_user,
        }  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> ScorePlan:
        value = read_json(path, "reserved noisy scores")
        try:
            return cls(**{**value, "adjacency": Adjacency(value["adjacency"]), "unit": Unit(value["unit"])})
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"reserved noisy scores in {path}", f"{error!r}", "Restore it from a backup.") from error
