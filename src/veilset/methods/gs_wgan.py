"""GS-WGAN: a generator taught by many critics, each trained on its own shard of the private images.

Paper: Chen, Orekondy and Fritz, "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially Private Generators"
(2020). Its accounting is refuted: all rows of a step come from one critic, and critics keep their state.
Released, once a step: what all critics together want changed in one batch of generated images. Each critic's wish for
the whole batch, in a fixed basis of low frequencies, is one row of length 1; the rows are summed, with Gaussian noise.
Unit of privacy: one record, or one user, all of whose images are in one shard.
Why the bound holds: a keyed hash of its own id decides on a unit's shard, so adding or removing it changes one shard,
and so one critic: its row turns from any unit vector into any other, which moves the sum by at most 2. A critic is a
function of its own shard, of its own random stream and of the generator, which is made of released sums. Steps compose:
mu^2 adds, also where a step depends on those before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from veilset.data.shards import assign_shards
from veilset.data.spec import Images, ImageSet, ImageSpec
from veilset.engines.critic_training import CriticStack
from veilset.engines.shard_batches import ImageShards
from veilset.engines.teaching import Effort, teach
from veilset.errors import BudgetExceeded, ConfigError
from veilset.methods.base import FitContext, Forecast, PublicFacts, register
from veilset.nets.critics import Critics, conv_critics, dense_critics
from veilset.nets.frequencies import LowFrequencies
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.jitter import jitter_of
from veilset.privacy.bounds import Adjacency, normalise_rows, sum_shards
from veilset.privacy.claim import Published
from veilset.privacy.events import NOTHING, Event, Gaussian, Repeated
from veilset.randomness import initialise

CHECKPOINT_EVERY = 100
CRITICS = {"dense": dense_critics, "conv": conv_critics}


@dataclass(frozen=True, kw_only=True)
class GsWganConfig:
    """Settings of GS-WGAN; a comment says where a default comes from."""

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
        if self.critic not in CRITICS:
            raise ConfigError(f"critics {' or '.join(CRITICS)}", f"{self.critic!r}", "Correct the option.")
        jitter_of(self.jitter)

    def net(self, spec: ImageSpec) -> Critics:
        return CRITICS[self.critic](spec, self.critic_width)


@register
class GsWgan:
    """A noisy sum over critics in every step."""

    name: ClassVar[str] = "gs-wgan"
    summary: ClassVar[str] = "a generator taught by many critics, each on its own shard, through noisy sums"
    paper: ClassVar[str] = "Chen et al. 2020"
    Config: ClassVar[type] = GsWganConfig
    assumptions: ClassVar[tuple[str, ...]] = (
        "a record keeps its id and so its shard; each critic sees its own shard, released sums and public draws only",
    )
    published_adjacency: ClassVar[Adjacency] = Adjacency.REPLACE

    def events(self, config: GsWganConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Repeated(config.steps, Gaussian(noise_multiplier))

    def reserve(self, config: GsWganConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # after a crash training ends a little earlier

    def published_config(self, config: GsWganConfig) -> GsWganConfig:
        return config

    def published_noise(self, config: GsWganConfig, facts: PublicFacts, epsilon: float, delta: float) -> float:
        raise NotImplementedError

    def published_claim(
        self, config: GsWganConfig, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        raise NotImplementedError

    def forecast(self, config: GsWganConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        spec, net = facts.spec, config.net(facts.spec)
        numbers = config.images_per_step * spec.channels * min(config.frequencies, spec.height, spec.width) ** 2
        replaced = facts.adjacency is Adjacency.REPLACE
        sensitivity = 4 if replaced else 2
        steps = config.steps * config.critic_steps + config.warm_up
        # A critic's step is three passes forward and back over its batch; one look at the images of a release, one.
        images = 9 * steps * config.critic_batch + 2 * config.steps * config.images_per_step
        return Forecast(
            signal_to_noise=config.shards * math.sqrt(config.steps)
            / (2 * noise_multiplier * sensitivity * math.sqrt(numbers)),
            seconds=10 + 2 * config.shards * images * net.products / 2.5e10,
            megabytes=500
            + 1e-6 * (facts.declared_size * spec.num_values + config.shards * (16 * net.num_weights + 24 * numbers)),
            released=f"{config.steps} times a noisy sum over {config.shards} critics of {numbers} bounded numbers; "
            f"{'replacing' if replaced else 'adding or removing'} one {facts.unit} moves it by at most {sensitivity}",
        )  # fmt: skip

    def build(self, config: GsWganConfig, spec: ImageSpec) -> UpsamplingGenerator:
        return UpsamplingGenerator(
            spec, latent_size=config.latent_size, channels=config.channels, jitter=jitter_of(config.jitter)
        )

    def fit(self, config: GsWganConfig, images: Images, context: FitContext) -> UpsamplingGenerator:
        assert isinstance(images, ImageSet)
        spec = images.spec
        shard_of = assign_shards(images, config.shards, context.shard_key, context.facts.unit.value)
        shards = ImageShards(images, shard_of, config.shards, seed=context.seed, device=context.device)
        critics = CriticStack(
            config.net(spec), shards, batch=config.critic_batch, draws=context.generator("gs-wgan critics")
        )  # fmt: skip
        generator = initialise(self.build(config, spec).to(context.device), context.generator("gs-wgan weights"))
        assert isinstance(generator, UpsamplingGenerator)
        return teach(
            generator,
            critics,
            LowFrequencies(spec, config.frequencies, context.device),
            Effort(
                steps=config.steps, images=config.images_per_step, pool=config.pool, teacher_steps=config.critic_steps,
                warm_up=config.warm_up, learning_rate=config.learning_rate, checkpoint_every=CHECKPOINT_EVERY,
            ),
            release=lambda rows: _released(rows, context),
            draws=context.generator("gs-wgan latents"),
            checkpoints=context.checkpoints,
            progress=lambda done, total: context.progress("teaching the generator", done, total),
        )  # fmt: skip

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, UpsamplingGenerator)
        return model.sample(labels, generator)


def _released(rows: Tensor, context: FitContext) -> Tensor | None:
    """The noisy sum of the critics' rows; nothing where a resumed run has no more to spend."""
    try:
        return context.door.release_sum(sum_shards(normalise_rows(rows)), context.noise_multiplier)[0]
    except BudgetExceeded:
        if not context.door.ledger.resumed:
            raise
        return None
