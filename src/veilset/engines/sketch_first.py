"""Methods that can begin with a sketch, on their own ledger: its settings, its share of the budget, the first stage."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from veilset.data.spec import Images
from veilset.engines.contexts import FitContext, Forecast, PublicFacts
from veilset.engines.option_checks import option
from veilset.engines.sketch_costs import forecast_of_sketch
from veilset.engines.sketch_rounds import sketched
from veilset.engines.sketch_settings import NETWORKS_ASSUMED, PRESETS, SketchConfig
from veilset.errors import ConfigError
from veilset.nets.generators import UpsamplingGenerator
from veilset.privacy.events import Composed, Event

LARGEST_EXPONENT = 6.0
"""With less noise than that, the share of a sketch is smaller than asked for; the price is exact whatever it is."""


@dataclass(frozen=True, kw_only=True)
class SketchFirst:
    """Settings of a sketch that comes first. Classes are of one kind, as what follows knows no others."""

    sketch: str = option("none", "none, or fast, balanced or best for a sketch of that preset, with which a fit begins")
    sketch_share: float = option(0.5, "of the budget, for that sketch")

    def __post_init__(self) -> None:
        if self.sketch not in ("none", *PRESETS):
            found, names = f"{self.sketch!r}", ", ".join(PRESETS)
            raise ConfigError(f"sketch none, or one of the presets {names}", found, "Use for example --sketch fast.")
        if not 0 < self.sketch_share < 1:
            raise ConfigError("a sketch_share between 0 and 1", f"{self.sketch_share:g}", "Correct the option.")
        if not self.begins_with_sketch and self.sketch_share != type(self).sketch_share:
            raise ConfigError("a sketch beside its share", "sketch none", "Give --sketch too, or drop --sketch-share.")

    @property
    def begins_with_sketch(self) -> bool:
        return self.sketch != "none"

    @property
    def own_settings(self) -> dict[str, Any]:
        """Of the sketch, where what follows decides on them."""
        return {}

    @property
    def sketch_config(self) -> SketchConfig:
        return SketchConfig(**{**PRESETS[self.sketch], "preset": self.sketch, "kinds": 1, **self.own_settings})


def mu_squared_of_samples(releases: int, noise_multiplier: float, rate: float) -> float:
    """What many releases on Poisson samples come to, about: their central limit (Bu et al. 2020)."""
    return releases * rate**2 * math.expm1(min(noise_multiplier**-2, LARGEST_EXPONENT))


class BeginsWithSketch:
    """What a method does about it. Without a sketch, everything is as what follows has it."""

    def later_mu_squared(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> float:
        """Of all releases after the sketch: by it the share of the sketch is one."""
        raise NotImplementedError

    def assumed(self, config: SketchFirst) -> tuple[str, ...]:
        return (f"of the sketch that came first: {NETWORKS_ASSUMED}",) if config.begins_with_sketch else ()

    def _sketch_noise(self, config: SketchFirst, facts: PublicFacts, noise_multiplier: float) -> float:
        """The noise multiplier of the sketch, beside later releases of that one."""
        return math.sqrt((1 / config.sketch_share - 1) / self.later_mu_squared(config, facts, noise_multiplier))

    def _sketch_then(self, config: SketchFirst, facts: PublicFacts, noise_multiplier: float, later: Event) -> Event:
        if not config.begins_with_sketch:
            return later
        noise = self._sketch_noise(config, facts, noise_multiplier)
        return Composed((*config.sketch_config.events(noise), later))

    def _forecast_then(
        self, config: SketchFirst, facts: PublicFacts, noise_multiplier: float, later: Forecast
    ) -> Forecast:
        """Of both stages; the clearer one says what can be learned."""
        if not config.begins_with_sketch:
            return later
        noise = self._sketch_noise(config, facts, noise_multiplier)
        first = forecast_of_sketch(config.sketch_config, facts, noise)
        return replace(
            first,
            signal_to_noise=max(first.signal_to_noise, later.signal_to_noise),
            later_signal_to_noise=later.signal_to_noise,
            seconds=first.seconds + later.seconds,
            megabytes=max(first.megabytes, later.megabytes),
            released=f"{first.released}; then {later.released}",
        )

    def _sketched(self, config: SketchFirst, images: Images, context: FitContext) -> UpsamplingGenerator:
        """The first stage."""
        noise = self._sketch_noise(config, context.facts, context.noise_multiplier)
        return sketched(config.sketch_config, images, context, noise)
