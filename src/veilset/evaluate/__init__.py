"""How good is synthetic data? Every score says whether it touched private data."""

from veilset.evaluate.scores import Score
from veilset.evaluate.utility import gen2real

__all__ = ["Score", "gen2real"]
