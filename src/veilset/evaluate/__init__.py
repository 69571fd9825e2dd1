"""How good is synthetic data? Every score says whether it touched private data."""

from veilset.evaluate.fidelity import fidelity
from veilset.evaluate.presets import PRESETS, run_preset
from veilset.evaluate.scores import Score, average, calibrated
from veilset.evaluate.utility import gen2real, real2gen, real2real, released2real

__all__ = [
    "PRESETS",
    "Score",
    "average",
    "calibrated",
    "fidelity",
    "gen2real",
    "real2gen",
    "real2real",
    "released2real",
    "run_preset",
]
