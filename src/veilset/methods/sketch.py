"""Sketch: measure once, synthesise for ever.

Released in each round, once: for every class the sum over its images of the unit features of a bank of small networks
and of the shares of tones by place, and in the first round, as one more coordinate, a weighted record count, with
Gaussian noise. Everything else is post-processing: a conditional generator is trained until the mean features of its
images are the released ones. The networks of the first round are random; those of later rounds were trained on the
synthetic images of the round before.
Unit of privacy: one record (or one user with a cap).
Why the bound holds: an image's row is all its measurements side by side, scaled by the kernel to length 1 whatever the
networks are; it enters the sum of its own class only; with the count of weight w its length is sqrt(1 + w^2). They are
computed image by image in exact integer arithmetic (`nets.feature_bank`), by networks that are functions of public
seeds and earlier releases alone. Rounds compose: mu^2 adds, also where a round depends on the one before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veilset.data.load import IN_MEMORY
from veilset.data.spec import Images, ImageSpec
from veilset.engines.checkpointing import Checkpoints
from veilset.engines.feature_sums import BATCH, sum_by_label
from veilset.engines.matching import CLASSES_PER_STEP, Effort, Streams, match
from veilset.engines.option_checks import at_least_one
from veilset.engines.targets import targets_of
from veilset.engines.trained_features import centred, train_bank
from veilset.errors import ConfigError
from veilset.methods.base import FitContext, Forecast, OpenContext, PublicFacts, register
from veilset.nets.feature_bank import MAP
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.jitter import jitter_of
from veilset.nets.measurement import Measurement
from veilset.nets.mixed_features import MixedBank
from veilset.nets.tone_bank import ToneBank
from veilset.privacy.bounds import Adjacency, Bounded, normalise_rows, with_total
from veilset.privacy.claim import Published
from veilset.privacy.events import NOTHING, Composed, Event, Gaussian
from veilset.privacy.gaussian import gaussian_epsilon, gaussian_mu
from veilset.randomness import initialise, named_generator
from veilset.sketch_file import MAX_ROUNDS, Layout, Round

CHECKPOINT_EVERY = 1000
ROW_VALUES = 1 << 24
"""Numbers in the rows of one batch: bounds the memory of a pass, whatever the bank."""
EFFECTIVE_NUMBERS = 200
"""Directions in which mean features of image classes differ noticeably; a forecast needs no more than its order."""


@dataclass(frozen=True, kw_only=True)
class SketchConfig:
    """Settings of the sketch. What they were chosen on, and by what: docs/methods.md."""

    preset: str = "fast"
    networks: int = 4
    width: int = 32
    rounds: int = 2
    first_share: float = 0.2  # of mu^2; the first round only has to give images to train networks on
    trained_networks: int = 4
    network_steps: int = 150
    tone_share: float = 0.1  # of the row's squared length: brightness by place, which the networks cannot see
    total_weight: float = 0.15  # the count's weight beside a row of length 1: costs 1 % more noise
    network_seed: int = 0  # public
    jitter: str = "objects"
    latent_size: int = 32
    channels: int = 64
    first_steps: int = 400
    steps: int = 3000
    images_per_class: int = 4
    networks_per_step: int = 1
    learning_rate: float = 0.004
    training_images: int = 5000

    def __post_init__(self) -> None:
        whole = ("networks", "width", "trained_networks", "network_steps", "latent_size", "channels", "first_steps")
        at_least_one(self, *whole, "steps", "networks_per_step", "training_images")
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise ConfigError(f"1 to {MAX_ROUNDS} rounds", f"{self.rounds}", "Each round looks at all images once.")
        for name in ("first_share", "tone_share"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} between 0 and 1", f"{getattr(self, name)}", "It is a share.")
        if self.images_per_class < 2:  # the mean of a class is estimated for each image from the other ones
            raise ConfigError("images_per_class of at least 2", f"{self.images_per_class}", "Correct the option.")
        if not (1e-9 <= self.learning_rate <= 1 and 0 < self.total_weight <= 10):
            raise ConfigError("learning_rate up to 1, total_weight up to 10", "others", "Correct the options.")
        jitter_of(self.jitter)

    @property
    def shares(self) -> list[float]:
        """Shares of mu^2, round by round: the first one as set, the others alike."""
        if self.rounds == 1:
            return [1.0]
        return [self.first_share, *[(1 - self.first_share) / (self.rounds - 1)] * (self.rounds - 1)]


@register
class Sketch:
    """One Gaussian release per round of class-wise feature sums, matched by a generator."""

    name: ClassVar[str] = "sketch"
    summary: ClassVar[str] = "noisy mean features of small public networks, matched by a generator; our own"
    paper: ClassVar[str] = "this project"
    Config: ClassVar[type] = SketchConfig
    assumptions: ClassVar[tuple[str, ...]] = (
        "the networks come from a public seed or were trained on this run's own synthetic images, never on the data",
    )
    streams: ClassVar[bool] = True
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fast": {},
        "balanced": {
            "networks": 100, "width": 128, "trained_networks": 24, "network_steps": 600, "channels": 256,
            "first_steps": 3000, "steps": 20_000, "images_per_class": 16, "networks_per_step": 2,
            "training_images": 20_000,
        },
        "best": {
            "networks": 100, "width": 128, "trained_networks": 96, "network_steps": 1500, "channels": 256,
            "first_steps": 6000, "steps": 100_000, "images_per_class": 16, "networks_per_step": 2,
            "training_images": 40_000,
        },
    }  # fmt: skip

    def events(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Composed(tuple(Gaussian(noise_multiplier / math.sqrt(share)) for share in config.shares))

    def reserve(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # a redraw is a second release; it is on disk moments after it is charged, so none is set aside

    def published_config(self, config: SketchConfig) -> SketchConfig:
        return config

    def published_noise(self, config: SketchConfig, facts: PublicFacts, epsilon: float, delta: float) -> float:
        return 1 / gaussian_mu(epsilon, delta)

    def published_claim(
        self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        return Published(gaussian_epsilon(1 / noise_multiplier, delta), "sound", "this project")

    def forecast(self, config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        spec = facts.spec
        numbers = config.networks * MAP * MAP * config.width + ToneBank(spec.channels).length
        self.layout(config).check_size(spec)
        sensitivity = facts.sensitivity(math.hypot(1.0, config.total_weight))
        signal = facts.declared_size / spec.num_classes / 2
        networks = config.networks + config.trained_networks * (config.rounds - 1)
        # Two convolutions of the second block dominate; training goes there and back.
        work = spec.height * spec.width * config.width**2 * 3
        images = facts.declared_size * networks + 3 * config.images_per_class * min(
            CLASSES_PER_STEP, spec.num_classes
        ) * (config.networks_per_step * (config.steps + config.first_steps))
        return Forecast(
            signal_to_noise=signal / (noise_multiplier * sensitivity * math.sqrt(EFFECTIVE_NUMBERS)),
            seconds=10 + 2 * work * images / 2.5e10,
            # Images, rows of a batch, and for every class a row of sums, of means and of residuals.
            megabytes=(min(facts.declared_size * spec.num_values, IN_MEMORY) + 64 * ROW_VALUES) / 1e6
            + 16e-6 * spec.num_classes * numbers
            + (4e-6 * _training_images(config, spec) * spec.num_values if config.rounds > 1 else 0)
            + 300,
            released=f"per class a noisy sum of {numbers} bounded numbers and a count"
            + (f", then {config.rounds - 1} more with trained networks" if config.rounds > 1 else "")
            + f"; {facts.change} moves it by at most {sensitivity:.4g}",
        )

    def build(self, config: SketchConfig, spec: ImageSpec) -> UpsamplingGenerator:
        return UpsamplingGenerator(
            spec, latent_size=config.latent_size, channels=config.channels, jitter=jitter_of(config.jitter)
        )

    def layout(self, config: SketchConfig) -> Layout:
        return Layout(
            networks=config.networks, width=config.width, network_seed=config.network_seed,
            total_weight=config.total_weight, tone_share=config.tone_share,
            later=((config.trained_networks, config.width),) * (config.rounds - 1),
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
        for number, share in enumerate(config.shares):
            if generator is None:
                bank = self.layout(config).random_bank(context.facts.spec)
            else:
                bank = train_networks(config, generator, number, context)
            multiplier = context.noise_multiplier / math.sqrt(share)
            rounds.append(Round(bank, measure(config, images, bank, number, multiplier, context)))
            steps = config.steps if number == config.rounds - 1 else config.first_steps
            generator = synthesise(config, rounds, config.shares, context, steps=steps)
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
        return kept["sums"]
    bank = bank.to(context.device)

    def rows_of(batch: Tensor) -> Bounded:
        rows = normalise_rows(bank.rows(batch))
        return with_total(rows, config.total_weight) if number == 0 else rows

    total = sum_by_label(
        images, rows_of, unit=context.facts.unit, rows_per_user=context.facts.rows_per_user,
        device=context.device, batch=rows_at_once(bank),
        progress=lambda done, count: context.progress(f"measuring, round {number + 1}", done, count),
    )  # fmt: skip
    sums = context.door.release_sum(total, multiplier).float().cpu()
    context.checkpoints.save(f"round {number}", {"sums": sums})
    return sums


def rows_at_once(bank: Measurement) -> int:
    """Images of a batch whose rows fit into the memory of a pass."""
    return max(1, min(BATCH, ROW_VALUES // bank.numbers))


def synthesise(
    config: SketchConfig, rounds: Sequence[Round], weights: Sequence[float], context: OpenContext, *, steps: int
) -> UpsamplingGenerator:
    """The open step: a generator whose images have the released mean features. Costs no privacy.

    Args:
        weights: of the rounds, in proportion to 1 / noise variance.
    """
    number = len(rounds) - 1
    generator = Sketch().build(config, context.facts.spec).to(context.device)
    initialise(generator, context.generator(f"sketch weights {number}"))
    return match(
        generator,
        targets_of(rounds, weights, config.total_weight, context.facts.declared_size, context.device),
        Effort(
            steps=steps, images_per_class=config.images_per_class, networks_per_step=config.networks_per_step,
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
    config: SketchConfig, generator: UpsamplingGenerator, number: int, context: OpenContext
) -> Measurement:
    """Networks for round `number`, trained on images of the generator so far; an open step as well."""
    kept = context.checkpoints.load(f"networks {number}")
    if kept is not None:
        return Measurement.from_tensors(kept, context.facts.spec.channels, config.tone_share).to(context.device)
    spec = context.facts.spec
    draws = context.generator(f"sketch networks {number}")
    labels = torch.arange(_training_images(config, spec), device=context.device) % spec.num_classes
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
    context.checkpoints.save(f"networks {number}", bank.state_dict())
    return bank


def _training_images(config: SketchConfig, spec: ImageSpec) -> int:
    """Ten of every class and, where these leave room, as many as fit into half a gigabyte."""
    return max(10 * spec.num_classes, min(config.training_images, (1 << 27) // spec.num_values))
