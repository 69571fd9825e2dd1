"""Sketch: measure once, synthesise for ever.

Released in each round, once: for every class the sum over its images of the unit features of a bank of small networks
and of the shares of tones by place, and, as one more coordinate, a weighted record count, with Gaussian noise.
Everything else is post-processing: a conditional generator is trained until the mean features of its images are the
released ones. The networks of the first round are random; those of later rounds were trained on the synthetic images
of the round before.
Unit of privacy: one record (or one user with a cap).
Why the bound holds: an image's row is all its measurements side by side, scaled by the kernel to length 1 whatever the
networks are; it enters the sum of its own class only; with the count of weight w its length is sqrt(1 + w^2). They are
computed image by image in exact integer arithmetic (`nets.feature_bank`), by networks that are functions of public
seeds and earlier releases alone. Rounds compose: mu^2 adds, also where a round depends on the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veilset.data.spec import Images, ImageSpec
from veilset.engines.checkpointing import Checkpoints
from veilset.engines.sketch_costs import forecast_of_sketch
from veilset.engines.sketch_rounds import generator_of, sketched
from veilset.engines.sketch_settings import NETWORKS_ASSUMED, PRESETS, SketchConfig, clear_kinds
from veilset.methods.base import FitContext, Forecast, PublicFacts, WithSketch, register
from veilset.nets.generators import UpsamplingGenerator
from veilset.privacy.bounds import Adjacency
from veilset.privacy.claim import Published
from veilset.privacy.events import NOTHING, Composed, Event
from veilset.privacy.gaussian import gaussian_epsilon, gaussian_mu
from veilset.sketch_file import Layout


@register
class Sketch(WithSketch):
    """One Gaussian release per round of class-wise feature sums, matched by a generator."""

    name: ClassVar[str] = "sketch"
    summary: ClassVar[str] = "noisy mean features of small public networks, matched by a generator; our own"
    paper: ClassVar[str] = "this project"
    Config: ClassVar[type] = SketchConfig
    assumptions: ClassVar[tuple[str, ...]] = (NETWORKS_ASSUMED,)
    streams: ClassVar[bool] = True
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    def events(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Composed(config.events(noise_multiplier))

    def reserve(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # a redraw is a second release; it is on disk moments after it is charged, so none is set aside

    def settled(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> SketchConfig:
        """With a number of kinds: one that is not given follows from the noise of the later rounds."""
        if config.kinds:
            return config
        return replace(config, kinds=clear_kinds(config, facts, config.multipliers(noise_multiplier)[-1]))

    def published_noise(self, config: SketchConfig, facts: PublicFacts, epsilon: float, delta: float) -> float:
        return 1 / gaussian_mu(epsilon, delta)

    def published_claim(
        self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        return Published(gaussian_epsilon(1 / noise_multiplier, delta), "sound", "this project")

    def forecast(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        return forecast_of_sketch(config, facts, noise_multiplier)

    def build(self, config: SketchConfig, spec: ImageSpec) -> UpsamplingGenerator:
        return generator_of(config, spec, config.last_kinds)

    def layout(self, config: SketchConfig) -> Layout:
        return config.layout

    def released(self, config: SketchConfig, checkpoints: Checkpoints) -> dict[str, Tensor]:
        """The sums of all rounds and the trained networks: what anyone needs to synthesise again."""
        tensors = {}
        for number in range(config.rounds):
            parts = [f"round {number}", *([f"networks {number}"] if number > 0 else [])]
            for part in parts:
                kept = checkpoints.load(part) or {}
                tensors.update({f"round.{number}.{name}": tensor for name, tensor in kept.items()})
        return tensors

    def fit(self, config: SketchConfig, images: Images, context: FitContext) -> UpsamplingGenerator:
        return sketched(config, images, context, context.noise_multiplier)

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, UpsamplingGenerator)
        return model.sample(labels, generator)
