"""Benchmark scripts import each other by plain names, as they do when they are run."""

import sys
from pathlib import Path

from contract.conftest import _prices_known  # noqa: F401  (fixture; in a test module it would last for the session)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
