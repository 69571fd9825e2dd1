"""Methods that can begin with a sketch: its settings, its share of the budget and its price, on the method's ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from veilset.engines.contexts import Forecast, PublicFacts
from veilset.engines.option_checks import option
from veilset.engines.sketch_costs import forecast_of_sketch
from veilset.engines.sketch_settings import NETWORKS_ASSUMED, PRESETS, SketchConfig
from veilset.errors import ConfigError
from veilset.privacy.events import Composed, Event


@dataclass(frozen=True, kw_only=True)
class SketchFirst:
    """Settings of a sketch that comes first. Classes are of one kind, as what follows knows no others."""

    sketch: str = option("none", "none, or fast, balanced or best for a sketch of that preset, with which a fit begins")
    sketch_share: float = option(0.5, "of the budget, for that sketch")

    def __post_init__(self) -> None:
        if self.sketch not in ("none", *PRESETS) or not 0 < self.sketch_share < 1:
            expected = f"sketch none, {', '.join(PRESETS)} and a sketch_share between 0 and 1"
            raise ConfigError(expected, f"{self.sketch!r} and {self.sketch_share:g}", "Correct the options.")
        if not self.begins_with_sketch and self.sketch_share != type(self).sketch_share:
            raise ConfigError("a sketch beside its share", "sketch none", "Give --sketch too, or drop --sketch-share.")

    @property
    def begins_with_sketch(self) -> bool:
        return self.sketch != "none"

    def first_sketch(self, **settings: Any) -> SketchConfig:
        """Of that preset, with the settings of a generator that what follows goes on with."""
        return SketchConfig(**{**PRESETS[self.sketch], "preset": self.sketch, "kinds": 1, **settings})

    def sketch_noise(self, noise_multiplier: float, releases: int, rate: float = 1.0) -> float:
        """Of the sketch, beside so many releases of this noise multiplier z on samples of that rate q.

        Those cost about mu^2 = releases x (q / z)^2, and exactly that where q is 1.
        """
        return noise_multiplier / rate * math.sqrt((1 / self.sketch_share - 1) / releases)

    @property
    def sketch_assumed(self) -> tuple[str, ...]:
        return (NETWORKS_ASSUMED,) if self.begins_with_sketch else ()


def sketch_then(sketch: SketchConfig, noise_multiplier: float, later: Event) -> Event:
    return Composed((*sketch.events(noise_multiplier), later))


def forecast_then(sketch: SketchConfig, facts: PublicFacts, noise_multiplier: float, later: Forecast) -> Forecast:
    """Of a sketch and of what follows; the clearer of the two says what can be learned."""
    first = forecast_of_sketch(sketch, facts, noise_multiplier)
    return Forecast(
        signal_to_noise=max(first.signal_to_noise, later.signal_to_noise), seconds=first.seconds + later.seconds,
        megabytes=max(first.megabytes, later.megabytes), released=f"{first.released}; then {later.released}",
    )  # fmt: skip
