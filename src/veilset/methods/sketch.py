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

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import Images, ImageSpec
from veilset.engines.checkpointing import Checkpoints, read_checkpoint
from veilset.engines.feature_sums import BATCH, sum_by_label
from veilset.engines.matching import Effort, Streams, match
from veilset.engines.prototypes import kinds_among
from veilset.engines.sketch_costs import (
    MOST_ROWS,
    forecast_of_measuring,
    rows_at_once,
    training_images,
    training_megabytes,
    training_seconds,
)
from veilset.engines.sketch_settings import PRESETS, SketchConfig, clear_kinds
from veilset.engines.targets import Released
from veilset.engines.trained_features import centred, train_bank
from veilset.methods.base import FitContext, Forecast, OpenContext, PublicFacts, WithSketch, register
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.jitter import jitter_of
from veilset.nets.measurement import Measurement
from veilset.nets.mixed_features import MixedBank
from veilset.nets.tone_bank import ToneBank
from veilset.privacy.bounds import Adjacency, Bounded, normalise_rows, with_total
from veilset.privacy.claim import Published
from veilset.privacy.events import NOTHING, Composed, Event, Gaussian
from veilset.privacy.gaussian import gaussian_epsilon, gaussian_mu
from veilset.privacy.noise import NoNoise
from veilset.randomness import initialise, named_generator
from veilset.sketch_file import Layout, Round, network_shapes, row_bound

CHECKPOINT_EVERY = 1000
OVERSHOOT = 0.25
"""Of the generator beyond black and white: backgrounds are black after thousands of steps, not after millions."""


@register
class Sketch(WithSketch):
    """One Gaussian release per round of class-wise feature sums, matched by a generator."""

    name: ClassVar[str] = "sketch"
    summary: ClassVar[str] = "noisy mean features of small public networks, matched by a generator; our own"
    paper: ClassVar[str] = "this project"
    Config: ClassVar[type] = SketchConfig
    assumptions: ClassVar[tuple[str, ...]] = (
        "the networks come from a public seed or were trained on released synthetic images, never on the data",
    )
    streams: ClassVar[bool] = True
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    def events(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Composed(tuple(Gaussian(noise_multiplier / math.sqrt(share)) for share in config.shares))

    def reserve(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # a redraw is a second release; it is on disk moments after it is charged, so none is set aside

    def settled(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> SketchConfig:
        """With a number of kinds: one that is not given follows from the noise of the later rounds."""
        if config.kinds:
            return config
        return replace(config, kinds=clear_kinds(config, facts, noise_multiplier / math.sqrt(config.shares[-1])))

    def published_noise(self, config: SketchConfig, facts: PublicFacts, epsilon: float, delta: float) -> float:
        return 1 / gaussian_mu(epsilon, delta)

    def published_claim(
        self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        return Published(gaussian_epsilon(1 / noise_multiplier, delta), "sound", "this project")

    def forecast(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        measuring = forecast_of_measuring(self.layout(config), facts, noise_multiplier)
        return replace(
            measuring,
            seconds=measuring.seconds + training_seconds(config, facts.spec),
            megabytes=measuring.megabytes + training_megabytes(config, facts.spec),
        )

    def build(self, config: SketchConfig, spec: ImageSpec) -> UpsamplingGenerator:
        return generator_of(config, spec, config.last_kinds)

    def layout(self, config: SketchConfig) -> Layout:
        return Layout(
            networks=config.networks, width=config.width, network_seed=config.network_seed,
            total_weight=config.total_weight, tone_share=config.tone_share,
            later=((config.trained_networks, config.width, config.kinds),) * (config.rounds - 1),
        )  # fmt: skip

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
        rounds: list[Round] = []
        generator = None
        multipliers = [context.noise_multiplier / math.sqrt(share) for share in config.shares]
        noises = [multiplier * context.facts.sensitivity(row_bound(config.total_weight)) for multiplier in multipliers]
        evening = None if isinstance(context.door.noise, NoNoise) else context.generator
        for number, multiplier in enumerate(multipliers):
            if generator is None:
                bank = self.layout(config).random_bank(context.facts.spec)
            else:
                bank = train_networks(config, generator, number, config.kinds, context)
            rounds.append(Round(bank, measure(config, images, bank, number, multiplier, context)))
            steps = config.steps if number == config.rounds - 1 else config.first_steps
            released = Released(rounds, noises, config.total_weight, context.facts.declared_size, evening)
            generator = synthesise(config, released, context, steps=steps)
        assert generator is not None
        return generator

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, UpsamplingGenerator)
        return model.sample(labels, generator)


def measure(
    config: SketchConfig, images: Images, bank: Measurement, number: int, multiplier: float, context: FitContext
) -> Tensor:
    """The private step: the sums of round `number` with noise, through the door. Drawn once, then kept."""
    kept = context.checkpoints.load(f"round {number}")
    if kept is not None:
        with read_checkpoint(f"round {number}"):
            return kept["sums"].view(images.spec.num_classes * bank.kinds_per_class, bank.numbers + 1)
    bank = bank.to(context.device)

    def rows_of(batch: Tensor) -> Bounded:
        return with_total(normalise_rows(bank.rows(batch)), config.total_weight)

    def group_of(rows: Bounded, labels: Tensor) -> Tensor:
        if bank.kinds is None:
            return labels
        return bank.kinds.of(rows.grid_rows[:, : bank.numbers] * rows.grid_step, labels)

    total = sum_by_label(
        images, rows_of, unit=context.facts.unit, rows_per_user=context.facts.rows_per_user,
        device=context.device, batch=rows_at_once(bank.numbers), kinds=bank.kinds_per_class, group_of=group_of,
        progress=lambda done, count: context.progress(f"measuring, round {number + 1}", done, count),
    )  # fmt: skip
    sums = context.door.release_sum(total, multiplier).float().cpu()
    context.checkpoints.save(f"round {number}", {"sums": sums})
    return sums


def generator_of(config: SketchConfig, spec: ImageSpec, kinds: int) -> UpsamplingGenerator:
    return UpsamplingGenerator(
        spec, latent_size=config.latent_size, channels=config.channels, jitter=jitter_of(config.jitter), kinds=kinds,
        overshoot=OVERSHOOT,
    )  # fmt: skip


def synthesise(config: SketchConfig, released: Released, context: OpenContext, *, steps: int) -> UpsamplingGenerator:
    """The open step: a generator whose images have the released mean features. Costs no privacy."""
    number, spec = len(released.rounds) - 1, context.facts.spec
    generator = generator_of(config, spec, released.kinds).to(context.device)
    initialise(generator, context.generator(f"sketch weights {number}"))
    if released.kinds > 1:
        generator.kind_shares.copy_(released.kind_shares())
    groups, each = config.groups_of_a_step(spec.num_classes, released.kinds)
    return match(
        generator,
        released.of_kinds(context.device),
        Effort(
            steps=steps, groups_per_step=groups, images_per_group=each, networks_per_step=config.networks_per_step,
            learning_rate=config.learning_rate, checkpoint_every=CHECKPOINT_EVERY,
        ),
        streams=Streams(
            draws=context.generator(f"sketch latents {number}"),
            order=named_generator(context.seed, f"sketch order {number}"),
        ),
        checkpoints=context.checkpoints,
        name=f"generator {number}",
        progress=lambda done, total: context.progress(f"training the generator, round {number + 1}", done, total),
    )  # fmt: skip


def train_networks(
    config: SketchConfig, generator: UpsamplingGenerator, number: int, kinds: int, context: OpenContext
) -> Measurement:
    """Networks, and prototypes of `kinds` of a class, for round `number`, from images of the generator so far.

    An open step as well.
    """
    kept = context.checkpoints.load(f"networks {number}")
    spec = context.facts.spec
    if kept is not None:
        with read_checkpoint(f"networks {number}"):
            found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in kept.items()}
            if found != network_shapes(spec, config.trained_networks, config.width, kinds):
                raise ValueError("networks of another shape")  # noticed now, and not when a round was paid for
            return Measurement.from_tensors(kept, spec.channels, config.tone_share).to(context.device)
    draws = context.generator(f"sketch networks {number}")
    labels = torch.arange(training_images(config, spec), device=context.device) % spec.num_classes
    with torch.no_grad():
        images = torch.cat([generator.sample(some, draws) for some in labels.split(BATCH)])
    networks = train_bank(
        images, labels, spec, count=config.trained_networks, width=config.width, steps=config.network_steps,
        jitter=generator.jitter, draws=draws,
        progress=lambda done, total: context.progress(f"training networks for round {number + 1}", done, total),
    )  # fmt: skip
    # Tones have no centre: seen from images that are too bright, darker ones look alike however dark they are.
    mixtures = centred(MixedBank(centred(networks, images)), images)
    bank = Measurement(mixtures, ToneBank(spec.channels).to(context.device), config.tone_share)
    if kinds > 1:
        some = slice(max(MOST_ROWS // bank.numbers, 2 * kinds * spec.num_classes))
        bank.kinds = kinds_among(unit_rows(bank, images[some]), labels[some], spec.num_classes, kinds, draws)
    context.checkpoints.save(f"networks {number}", bank.state_dict())
    return bank


def unit_rows(bank: Measurement, images: Tensor) -> Tensor:
    """(n, channels, height, width) in [0, 1] -> (n, numbers) rows of length 1."""
    return torch.cat([F.normalize(bank.rows(some), dim=1).float() for some in images.split(rows_at_once(bank.numbers))])
