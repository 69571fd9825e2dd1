"""What methods have in common that move a small set of images along sums over secret samples of the private ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.engines.clipped_gradients import ASSUMPTIONS, GradientTerms, check_width
from veilset.engines.contexts import PublicFacts
from veilset.engines.gradient_matching import Standard
from veilset.engines.option_checks import at_least_one, positive
from veilset.engines.published_accounting import calibrate_sampled_gaussian, sampled_gaussian_epsilon
from veilset.errors import ConfigError
from veilset.nets.image_sets import FixedImages
from veilset.privacy.bounds import Adjacency
from veilset.privacy.claim import Published
from veilset.privacy.events import NOTHING, Event, Repeated


@dataclass(frozen=True, kw_only=True)
class SetSettings:
    """Defaults are those of PSG (Chen et al. 2022)."""

    images_per_class: int = 10  # paper: 1, 10, 20 or 50
    width: int = 128  # paper
    clip_norm: float = 0.1  # paper
    mean: float = 0.1307  # paper, for MNIST: declared, never measured
    deviation: float = 0.3081  # paper, for MNIST
    pixel_rate: float = 0.1  # paper
    pixel_momentum: float = 0.5  # paper

    def __post_init__(self) -> None:
        at_least_one(self, "images_per_class")
        check_width(self.width)
        positive(self, "clip_norm", "deviation", "pixel_rate")
        if not (0 <= self.pixel_momentum < 1 and abs(self.mean) <= 1e3):
            raise ConfigError("pixel_momentum below 1 and a mean of pixels", "others", "Correct the options.")

    @property
    def standard(self) -> Standard:
        return Standard(self.mean, self.deviation)

    @property
    def releases(self) -> int:
        raise NotImplementedError


class SampledSet:
    """A method but for its name, its settings, the terms of a release, its forecast and its fit."""

    assumptions: ClassVar[tuple[str, ...]] = (
        *ASSUMPTIONS,
        "the constants by which images are standardised are declared, not measured on the data",
    )
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE
    published_source: ClassVar[str]

    def terms(self, config: Any, facts: PublicFacts) -> GradientTerms:
        raise NotImplementedError

    def events(self, config: SetSettings, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Repeated(config.releases, self.terms(config, facts).event(noise_multiplier, facts.adjacency))

    def reserve(self, config: SetSettings, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # a resumed run leaves out its last steps instead

    def published_config(self, config: SetSettings) -> SetSettings:
        return config

    def published_noise(self, config: SetSettings, facts: PublicFacts, epsilon: float, delta: float) -> float:
        return calibrate_sampled_gaussian(epsilon, self.terms(config, facts).rate, config.releases, delta)

    def published_claim(
        self, config: SetSettings, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        epsilon = sampled_gaussian_epsilon(noise_multiplier, self.terms(config, facts).rate, config.releases, delta)
        return Published(epsilon, "conservative", self.published_source)

    def build(self, config: SetSettings, spec: ImageSpec) -> FixedImages:
        return FixedImages(spec, config.images_per_class)

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, FixedImages)
        return model.sample(labels, generator)
