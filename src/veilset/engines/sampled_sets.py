"""What methods have in common that learn from sums over secret samples: a network, or a small set of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veilset.data.spec import Images, ImageSpec
from veilset.engines.checkpointing import keep, last_step, left_out, restore, steps_between
from veilset.engines.clipped_gradients import ASSUMPTIONS, GradientTerms, check_width
from veilset.engines.contexts import FitContext, PublicFacts
from veilset.engines.gradient_matching import FreePixels, Standard
from veilset.engines.option_checks import at_least_one, option, positive, two_classes
from veilset.engines.per_sample_gradients import Forward, Losses, cross_entropies
from veilset.engines.published_accounting import calibrate_sampled_gaussian, sampled_gaussian_epsilon
from veilset.engines.sketch_first import BeginsWithSketch, SketchFirst, mu_squared_of_samples
from veilset.errors import ConfigError
from veilset.nets.image_sets import FixedImages, labels_of
from veilset.privacy.bounds import Adjacency
from veilset.privacy.claim import Published
from veilset.privacy.events import NOTHING, Event, Repeated

CPU_SPEED = 3e10
"""Operations a second in convolutions on two cores, rough."""


@dataclass(frozen=True, kw_only=True)
class SetSettings(SketchFirst):
    """Defaults are those of PSG (Chen et al. 2022)."""

    images_per_class: int = option(10, "of the set that is made; paper: 1, 10, 20 or 50")
    width: int = option(128, "channels of the network; paper")
    clip_norm: float = option(0.1, "to which the row of a record is clipped; paper")
    mean: float = option(0.1307, "of pixels: declared, never measured; paper, for MNIST")
    deviation: float = option(0.3081, "of pixels: declared, never measured; paper, for MNIST")
    pixel_rate: float = option(0.1, "learning rate of the pixels; paper")
    pixel_momentum: float = option(0.5, "of the same; paper")

    def __post_init__(self) -> None:
        super().__post_init__()
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


class SampledReleases:
    """What is planned and published by a method that releases the same again and again, each from a fresh sample."""

    assumptions: ClassVar[tuple[str, ...]] = (
        *ASSUMPTIONS,
        "the constants by which images are standardised are declared, not measured on the data",
    )
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE
    name: ClassVar[str]
    published_source: ClassVar[str]

    def terms(self, config: Any, facts: PublicFacts) -> GradientTerms:
        """Of gradients of a classifier, which has something to tell apart; what sums other rows has its own."""
        two_classes(self.name, facts.spec)
        return GradientTerms(
            declared_size=facts.declared_size, expected_batch=config.expected_batch, clip_norm=config.clip_norm,
            rows_per_user=facts.rows_per_user,
        )  # fmt: skip

    def releases(self, config: Any, facts: PublicFacts) -> int:
        raise NotImplementedError

    def events(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        release = self.terms(config, facts).event(noise_multiplier, facts.adjacency)
        return Repeated(self.releases(config, facts), release)

    def reserve(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # a resumed run leaves out its last steps instead; a sketch is on disk moments after its charge

    def steps_to_go(
        self, config: Any, context: FitContext, doing: str, most: int, name: str, *kept: Any
    ) -> Iterator[int]:
        """The steps of a fit, one release in each, counted from 0; after a crash, from where it was kept.

        Args:
            most: steps from one checkpoint to the next.
            name: of the checkpoint; `kept` is in it, as `checkpointing.keep` takes it.
        """
        event = self.terms(config, context.facts).event(context.noise_multiplier, context.facts.adjacency)
        planned = self.releases(config, context.facts)
        done = restore(context.checkpoints, name, *kept)
        last = last_step(context.door.ledger, event, done=done, planned=planned)
        doing, every = left_out(doing, last, planned), steps_between(planned, most)
        context.progress(doing, done, last)
        for step in range(done, last):
            yield step
            if (step + 1) % every == 0 or step + 1 == last:
                keep(context.checkpoints, name, step + 1, *kept)
            context.progress(doing, step + 1, last)

    def published_noise(self, config: Any, facts: PublicFacts, epsilon: float, delta: float) -> float:
        return calibrate_sampled_gaussian(epsilon, self.terms(config, facts).rate, self.releases(config, facts), delta)

    def published_claim(self, config: Any, facts: PublicFacts, noise_multiplier: float, delta: float) -> Published:
        rate, releases = self.terms(config, facts).rate, self.releases(config, facts)
        epsilon = sampled_gaussian_epsilon(noise_multiplier, rate, releases, delta)
        return Published(epsilon, "conservative", self.published_source)


class SampledSet(BeginsWithSketch, SampledReleases):
    """A method but for its name, its settings, its forecast and its fit."""

    published_construction: ClassVar[Mapping[str, Any]] = {"sketch": "none"}

    def events(self, config: SetSettings, facts: PublicFacts, noise_multiplier: float) -> Event:
        return self._sketch_then(config, facts, noise_multiplier, super().events(config, facts, noise_multiplier))

    def later_mu_squared(self, config: SetSettings, facts: PublicFacts, noise_multiplier: float) -> float:
        return mu_squared_of_samples(config.releases, noise_multiplier, self.terms(config, facts).rate)

    def _begin(self, config: SetSettings, images: Images, context: FitContext, made: FreePixels) -> None:
        """With samples of a sketch in the place of noise, where there is to be one."""
        if not config.begins_with_sketch:
            return
        generator = self._sketched(config, images, context)
        labels = labels_of(context.facts.spec, config.images_per_class, context.device)
        with torch.no_grad():
            made.begin_with(generator.sample(labels, context.generator(f"{self.name} first images")))

    def releases(self, config: SetSettings, facts: PublicFacts) -> int:
        return config.releases

    def build(self, config: SetSettings, spec: ImageSpec) -> FixedImages:
        return FixedImages(spec, config.images_per_class)

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, FixedImages)
        return model.sample(labels, generator)


def standardised_losses(standard: Standard) -> Losses:
    def losses(network: Forward, inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropies(network, standard.of(inputs), labels)

    return losses


def multiplications(width: int, spec: ImageSpec) -> int:
    """Of one forward pass of one image through a `ConvNet`."""
    pixels = spec.height * spec.width
    return 9 * width * pixels * spec.channels + 9 * width**2 * (pixels // 4 + pixels // 16)
