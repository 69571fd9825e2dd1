"""GS-WGAN: a generator taught by many critics, each trained on its own shard of the private images.

Paper: Chen, Orekondy and Fritz, "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially Private Generators"
(2020). Its accounting is refuted: all rows of a step come from one critic, and critics keep their state.
Unit of privacy: one record, or one user, all of whose images are in one shard.
Released, critics together (the default), once a step: what all critics want changed in one batch of generated images.
Each critic's wish for the whole batch, in a fixed basis of low frequencies, is one row of length 1; the sum of the rows
is released with Gaussian noise.
Why the bound holds: a keyed hash of its own id decides on a unit's shard, so adding or removing it changes one shard,
and so one critic: its row turns from any unit vector into any other, which moves the sum by at most 2. A critic is a
function of its own shard, of its own random stream and of the generator, which is made of released values. Steps
compose: mu^2 adds, also where a step depends on those before.
Released, critics in turn (the paper), once a step: what one critic wants changed in each of B generated images, clipped
to C / B, with noise of deviation 2 s C / B. All B rows may turn at once, which moves them by 2 C / sqrt(B): a step is
one release of multiplier s / sqrt(B), borne by the units of its shard. The critic's number counts as known to all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from veilset.data.shards import assign_shards
from veilset.data.spec import Images, ImageSet, ImageSpec
from veilset.engines.critic_training import CriticStack, bytes_kept
from veilset.engines.published_accounting import calibrate_wbk, wbk_epsilon
from veilset.engines.shard_batches import ImageShards
from veilset.engines.teaching import Effort, InTurn, Lesson, Together, teach
from veilset.engines.warm_start import warm_start
from veilset.errors import ConfigError
from veilset.methods.base import FitContext, Forecast, PublicFacts, register
from veilset.nets.critics import Critics, conv_critics, dense_critics
from veilset.nets.frequencies import LowFrequencies
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.jitter import jitter_of
from veilset.nets.spectral_generators import SpectralGenerator
from veilset.nets.stacked_generators import Generators
from veilset.privacy.bounds import Adjacency, clip_rows, normalise_rows, sum_shards
from veilset.privacy.claim import Published
from veilset.privacy.events import NOTHING, Event, Gaussian, Repeated, Schedule, ShardTouched
from veilset.privacy.sampling import Draw, shard_draw
from veilset.randomness import initialise

CHECKPOINT_EVERY = 100
CHECKPOINT_EVERY_TURNS = 2000
"""Less often: the paper's critics, with what Adam knows of them, are 13 GB."""
CHECKPOINT_EVERY_WARM_STEPS = 500
CLIP = 1.0
"""Of the gradient in one image, in the paper."""
CRITICS = {"dense": dense_critics, "conv": conv_critics}
TEACHERS = ("together", "in-turn")


@dataclass(frozen=True, kw_only=True)
class GsWganConfig:
    """Settings of GS-WGAN; a comment says where a default comes from."""

    teachers: str = "together"
    schedule: str = "uniform"  # paper; of critics in turn
    shards: int = 1000  # paper
    steps: int = 1000
    images_per_step: int = 32  # paper
    critic: str = "dense"
    critic_width: int = 32
    critic_batch: int = 16
    critic_steps: int = 4
    warm_up: int = 50
    pool: int = 8
    frequencies: int = 12
    jitter: str = "objects"
    latent_size: int = 16
    channels: int = 64
    learning_rate: float = 0.002

    def __post_init__(self) -> None:
        whole = ("shards", "steps", "images_per_step", "critic_width", "critic_batch", "critic_steps", "pool")
        for name in (*whole, "frequencies", "latent_size", "channels"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of at least 1", f"{getattr(self, name)}", "Correct the option.")
        if self.warm_up < 0 or not 1e-9 <= self.learning_rate <= 1:
            raise ConfigError("warm_up of at least 0 and learning_rate up to 1", "others", "Correct the options.")
        for name, known in (("critic", CRITICS), ("teachers", TEACHERS), ("schedule", get_args(Schedule))):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} {' or '.join(known)}", f"{getattr(self, name)!r}", "Correct the option.")
        jitter_of(self.jitter)

    @property
    def in_turn(self) -> bool:
        return self.teachers == "in-turn"

    def net(self, spec: ImageSpec) -> Critics:
        return CRITICS[self.critic](spec, self.critic_width)


PAPER: dict[str, Any] = {
    "teachers": "in-turn", "steps": 20_000, "critic": "conv", "critic_width": 64, "critic_batch": 32,
    "critic_steps": 5, "warm_up": 2000, "jitter": "none", "latent_size": 10, "channels": 256, "learning_rate": 1e-4,
}  # fmt: skip
"""Where it differs from the defaults."""


@register
class GsWgan:
    """A noisy sum over critics in every step; or, as published, the noisy wishes of one critic."""

    name: ClassVar[str] = "gs-wgan"
    summary: ClassVar[str] = "a generator taught by many critics, each on its own shard, through noisy sums"
    paper: ClassVar[str] = "Chen et al. 2020"
    Config: ClassVar[type] = GsWganConfig
    assumptions: ClassVar[tuple[str, ...]] = (
        "a record keeps its id and so its shard; each critic sees its own shard, released values and public draws only",
    )
    # The paper replaces a record in its place. By a hash of their ids, records that are added or removed change one
    # shard as well, at the same price; one that is replaced by another may change two.
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    def events(self, config: GsWganConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        step = Gaussian(noise_multiplier)
        if config.in_turn:
            return Repeated(config.steps, ShardTouched(config.shards, _schedule(config), step))
        return Repeated(config.steps, step)

    def reserve(self, config: GsWganConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # after a crash training ends a little earlier

    def published_config(self, config: GsWganConfig) -> GsWganConfig:
        default = GsWganConfig()
        return replace(config, **{k: v for k, v in PAPER.items() if getattr(config, k) == getattr(default, k)})

    def published_noise(self, config: GsWganConfig, facts: PublicFacts, epsilon: float, delta: float) -> float:
        rows = config.images_per_step
        return calibrate_wbk(epsilon, 1 / config.shards, config.steps * rows, delta) / math.sqrt(rows)

    def published_claim(
        self, config: GsWganConfig, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        rows = config.images_per_step
        epsilon = wbk_epsilon(noise_multiplier * math.sqrt(rows), 1 / config.shards, config.steps * rows, delta)
        source = "Chen et al. 2020: every row amplified by a draw of its own, although all rows of a step share one"
        return Published(epsilon, "refuted", source)

    def forecast(self, config: GsWganConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        spec = facts.spec
        answers = 1 if config.in_turn else config.shards
        numbers = config.images_per_step * (spec.num_values if config.in_turn else _coarse(config, spec))
        sensitivity = 2 if config.in_turn else _sensitivity(facts)
        signal, noise = answers * math.sqrt(config.steps) / 2, noise_multiplier * sensitivity * math.sqrt(numbers)
        # Critics are there three times while a checkpoint is written; rows are there in three forms of 8 bytes.
        critics, rows = 3 * config.shards * bytes_kept(config.net(spec)), 24 * answers * numbers
        return Forecast(
            signal_to_noise=signal / noise,
            seconds=10 + 2 * _products(config, spec) / 2.5e10,
            megabytes=500 + 1e-6 * (facts.declared_size * spec.num_values + critics + rows),
            released=_sentence(config, facts, numbers),
        )

    def build(self, config: GsWganConfig, spec: ImageSpec) -> UpsamplingGenerator | SpectralGenerator:
        if config.in_turn:
            return SpectralGenerator(spec, latent_size=config.latent_size, channels=config.channels)
        return UpsamplingGenerator(
            spec, latent_size=config.latent_size, channels=config.channels, jitter=jitter_of(config.jitter)
        )

    def fit(self, config: GsWganConfig, images: Images, context: FitContext) -> nn.Module:
        assert isinstance(images, ImageSet)
        spec = images.spec
        shard_of = assign_shards(images, config.shards, context.shard_key, context.facts.unit.value)
        shards = ImageShards(images, shard_of, config.shards, seed=context.seed, device=context.device)
        critics = CriticStack(
            config.net(spec), shards, batch=config.critic_batch, draws=context.generator("gs-wgan critics")
        )  # fmt: skip
        generator = self.build(config, spec).to(context.device)
        initialise(generator, context.generator("gs-wgan weights"))
        draws = context.generator("gs-wgan latents")
        if isinstance(generator, SpectralGenerator):
            _warm_start(config, critics, context)
            lesson: Lesson = _in_turn(config, generator, critics, draws, context)
        else:
            lesson = _together(config, generator, critics, draws, context)
        teach(
            generator, critics, lesson, _effort(config), draws=draws, checkpoints=context.checkpoints,
            may_end_early=context.door.ledger.resumed > 0,
            progress=lambda done, total: context.progress("teaching the generator", done, total),
        )  # fmt: skip
        return generator

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, UpsamplingGenerator | SpectralGenerator)
        return model.sample(labels, generator)


def _together(
    config: GsWganConfig,
    generator: UpsamplingGenerator,
    critics: CriticStack,
    draws: torch.Generator,
    context: FitContext,
) -> Together:
    def release(rows: Tensor) -> Tensor:
        return context.door.release_sum(sum_shards(normalise_rows(rows)), context.noise_multiplier)[0]

    return Together(
        generator=generator, teachers=critics, images=config.images_per_step, pool=config.pool,
        frequencies=LowFrequencies(generator.spec, config.frequencies, context.device),
        teacher_steps=config.critic_steps, warm_up=config.warm_up, release=release, draws=draws,
    )  # fmt: skip


def _in_turn(
    config: GsWganConfig,
    generator: SpectralGenerator,
    critics: CriticStack,
    draws: torch.Generator,
    context: FitContext,
) -> InTurn:
    def release(rows: Tensor, turn: Draw) -> Tensor:
        # The gradient of a mean over images: each of them holds 1 / images of the paper's clip norm.
        return context.door.release_rows(clip_rows(rows, CLIP / len(rows)), context.noise_multiplier, draw=turn)

    return InTurn(
        generator=generator, teachers=critics, images=config.images_per_step, teacher_steps=config.critic_steps,
        turn=lambda step: shard_draw(step, config.shards, _schedule(config), context.door.noise),
        release=release, draws=draws,
    )  # fmt: skip


def _warm_start(config: GsWganConfig, critics: CriticStack, context: FitContext) -> None:
    warm_start(
        critics,
        Generators(context.facts.spec, config.critic_width, config.latent_size),
        steps=config.warm_up, critic_steps=config.critic_steps, draws=context.generator("gs-wgan local generators"),
        checkpoints=context.checkpoints, checkpoint_every=CHECKPOINT_EVERY_WARM_STEPS,
        progress=lambda done, total: context.progress("warming up the critics", done, total),
    )  # fmt: skip


def _effort(config: GsWganConfig) -> Effort:
    if config.in_turn:  # as in the paper; its average has another warm-up, which is forgotten after 9,000 steps
        return Effort(
            steps=config.steps, learning_rate=config.learning_rate, fading=False, betas=(0.5, 0.9), average=0.999,
            checkpoint_every=CHECKPOINT_EVERY_TURNS,
        )  # fmt: skip
    return Effort(
        steps=config.steps, learning_rate=config.learning_rate, fading=True, betas=(0.5, 0.99), average=0.99,
        checkpoint_every=CHECKPOINT_EVERY,
    )  # fmt: skip


def _schedule(config: GsWganConfig) -> Schedule:
    return "round-robin" if config.schedule == "round-robin" else "uniform"


def _coarse(config: GsWganConfig, spec: ImageSpec) -> int:
    """Numbers of an image in the basis of low frequencies."""
    return spec.channels * min(config.frequencies, spec.height) * min(config.frequencies, spec.width)


def _sensitivity(facts: PublicFacts) -> int:
    """Of a sum over shards, in rows."""
    return 4 if facts.adjacency is Adjacency.REPLACE else 2


def _sentence(config: GsWganConfig, facts: PublicFacts, numbers: int) -> str:
    replaced = facts.adjacency is Adjacency.REPLACE
    change = f"{'replacing' if replaced else 'adding or removing'} one {facts.unit} moves"
    if config.in_turn:
        whose = "the answers of at most two critics" if replaced else "the answers of its own critic alone"
        return (
            f"{config.steps} times what one of {config.shards} critics wants of {config.images_per_step} images, with "
            f"noise; {change} {whose}, by at most 2 clip norms an image"
        )
    return (
        f"{config.steps} times a noisy sum over {config.shards} critics of {numbers} bounded numbers; {change} it by "
        f"at most {_sensitivity(facts)}"
    )


def _products(config: GsWganConfig, spec: ImageSpec) -> float:
    """Multiplications of a fit, roughly."""
    net, batch, images = config.net(spec), config.critic_batch, config.images_per_step
    # A step of a critic: three passes forward and back, and its weights and moments through memory a few times.
    step = 9 * batch * net.products + 300 * net.num_weights
    teaching = config.steps * (config.critic_steps * step + 2 * images * net.products)
    if not config.in_turn:
        return config.shards * (teaching + config.warm_up * step)
    # Local generators mirror their critics; the generator makes fakes forward, and learns forward and back.
    game = config.critic_steps * (step + batch * net.products) + 5 * batch * net.products
    with torch.device("meta"):
        image = SpectralGenerator(spec, latent_size=config.latent_size, channels=config.channels).products
    fakes = config.steps * (config.critic_steps * batch + 3 * images)
    return config.shards * config.warm_up * game + teaching + fakes * image
