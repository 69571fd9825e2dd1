"""What methods have in common whose generator is taught by private networks, each on its own shard of the images.

Together: a teacher's wish for one batch of generated images is one row of length 1, and the sum over teachers is
released, once a step. In turn, as published: one teacher a step, and what it wants of each of B images, clipped to
C / B, is a row. However a teacher comes to its wishes, a step is one release of them: that is what `events` prices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veilset.data.shards import assign_shards
from veilset.data.spec import Images, ImageSet, ImageSpec
from veilset.engines.checkpointing import last_step, left_out
from veilset.engines.contexts import FitContext, Forecast, PublicFacts
from veilset.engines.critic_training import CriticStack
from veilset.engines.published_accounting import calibrate_wbk, wbk_epsilon
from veilset.engines.shard_batches import ImageShards
from veilset.engines.sketch_first import BeginsWithSketch
from veilset.engines.sketch_rounds import generator_of
from veilset.engines.teaching import InTurn, Lesson, Teachers, Together, Watch, teach
from veilset.engines.teaching_settings import PAPER, TeachingSettings
from veilset.engines.warm_start import warm_start
from veilset.errors import ConfigError
from veilset.nets.frequencies import LowFrequencies
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.jitter import jitter_of
from veilset.nets.spectral_generators import SpectralGenerator
from veilset.nets.stacked_generators import Generators
from veilset.privacy.bounds import Adjacency, Unit, clip_rows, normalise_rows, sum_sensitivity, sum_shards
from veilset.privacy.claim import Published, shown
from veilset.privacy.events import NOTHING, Event, Gaussian, Repeated, ShardTouched
from veilset.privacy.sampling import Draw, shard_draw
from veilset.randomness import initialise

CHECKPOINT_EVERY_WARM_STEPS = 500
DOING = "teaching the generator"
CLIP = 1.0
"""Of the gradient in one image, in the paper."""
FEWEST_IMAGES = 10
"""Of a shard, below which a plan warns that its critic learns little."""
NORMS_EVERY = 20
"""Steps between two looks at the lengths of gradients."""
EACH_NORM = "gradient norm of an image"
"""In the owner's history: every length of such a step, before clipping."""


class ShardTaught(BeginsWithSketch):
    """A method but for its name, its settings and its teachers."""

    name: ClassVar[str]
    paper: ClassVar[str]
    assumptions: ClassVar[tuple[str, ...]] = (
        "a record keeps its id and so its shard; each critic sees its own shard, released values and public draws only",
    )
    caps_users: ClassVar[bool] = False  # all images of a user are in one shard, and a shard is bounded as a whole
    # The paper replaces a record in its place. By a hash of their ids, records that are added or removed change one
    # shard as well, at the same price; one that is replaced by another may change two.
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE
    published_defaults: ClassVar[Mapping[str, Any]] = PAPER
    published_construction: ClassVar[Mapping[str, Any]] = {"teachers": "in-turn", "sketch": "none"}

    def events(self, config: TeachingSettings, facts: PublicFacts, noise_multiplier: float) -> Event:
        if config.begins_with_sketch and facts.unit is Unit.USER:
            raise ConfigError(
                "records as the unit where a sketch comes first", "users",
                "Drop --sketch: it would count a user by a declared number of images, where critics have all of them.",
            )  # fmt: skip
        steps = Repeated(config.steps, _step(config, noise_multiplier))
        return self._sketch_then(config, facts, noise_multiplier, steps)

    def later_mu_squared(self, config: TeachingSettings, facts: PublicFacts, noise_multiplier: float) -> float:
        return config.steps / noise_multiplier**2

    def reserve(self, config: TeachingSettings, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # after a crash training ends a little earlier; a sketch is on disk moments after its charge

    def published_noise(self, config: TeachingSettings, facts: PublicFacts, epsilon: float, delta: float) -> float:
        rows = config.images_per_step
        return calibrate_wbk(epsilon, 1 / config.shards, config.steps * rows, delta) / math.sqrt(rows)

    def published_claim(
        self, config: TeachingSettings, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        rows = config.images_per_step
        epsilon = wbk_epsilon(noise_multiplier * math.sqrt(rows), 1 / config.shards, config.steps * rows, delta)
        source = f"{self.paper}: every row amplified by a draw of its own, although all rows of a step share one"
        return Published(epsilon, "refuted", source)

    def forecast(self, config: TeachingSettings, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        spec = facts.spec
        answers = 1 if config.in_turn else config.shards
        with_images = min(1.0, facts.declared_size / config.shards)  # a critic without any answers nothing
        numbers = config.images_per_step * (spec.num_values if config.in_turn else config.coarse_numbers(spec))
        sensitivity = 2 if config.in_turn else _sensitivity(facts)
        signal = answers * with_images * math.sqrt(config.steps) / 2
        noise = noise_multiplier * sensitivity * math.sqrt(numbers)
        rows = 24 * answers * numbers  # in three forms of 8 bytes
        teaching = Forecast(
            signal_to_noise=signal / noise,
            seconds=10 + 2 * config.products(spec) / 2.5e10,
            megabytes=500
            + 1e-6 * (facts.declared_size * spec.num_values + config.bytes_of_teachers(spec) + rows)
            + 1e-6 * config.bytes_of_pool(spec),
            released=_sentence(config, facts, numbers),
        )
        return self._forecast_then(config, facts, noise_multiplier, teaching)

    def cautions(self, config: TeachingSettings, facts: PublicFacts) -> tuple[str, ...]:
        each = facts.declared_size / config.shards
        if each >= FEWEST_IMAGES:
            return ()
        better = max(1, facts.declared_size // FEWEST_IMAGES)
        return (
            f"each of {config.shards:,} critics has about {each:.2g} images to learn from: expect little. Fewer shards "
            f"help, at most {better:,} for this declared size.",
        )

    def check(self, config: TeachingSettings, images: Images, device: torch.device) -> None:
        config.check_room(images.spec, device)

    def build(self, config: TeachingSettings, spec: ImageSpec) -> UpsamplingGenerator | SpectralGenerator:
        if config.in_turn:
            return SpectralGenerator(spec, latent_size=config.latent_size, channels=config.channels)
        if config.begins_with_sketch:
            return generator_of(config.sketch_config, spec, kinds=1)
        return UpsamplingGenerator(
            spec, latent_size=config.latent_size, channels=config.channels, jitter=jitter_of(config.jitter)
        )

    def teachers(self, config: Any, critics: CriticStack) -> Teachers:
        """Critics, or whatever else has one answer for each shard from that shard alone."""
        return critics

    def fit(self, config: TeachingSettings, images: Images, context: FitContext) -> nn.Module:
        assert isinstance(images, ImageSet)
        spec = images.spec
        generator = self._first_generator(config, images, context)
        shard_of = assign_shards(images, config.shards, context.shard_key, context.facts.unit)
        shards = ImageShards(images, shard_of, config.shards, seed=context.seed, device=context.device)
        critics = CriticStack(
            config.net(spec), shards, batch=config.critic_batch, draws=context.generator(f"{self.name} critics"),
            rate=config.critic_rate,
        )  # fmt: skip
        teachers = self.teachers(config, critics)
        draws = context.generator(f"{self.name} latents")
        if isinstance(generator, SpectralGenerator):
            _warm_start(config, critics, context.generator(f"{self.name} local generators"), context)
            lesson: Lesson = _in_turn(config, generator, teachers, draws, context)
        else:
            lesson = _together(config, generator, teachers, draws, context)
        event = _step(config, context.noise_multiplier)
        teach(
            generator, teachers, lesson, config.effort, draws=draws, checkpoints=context.checkpoints,
            last_after=lambda done: last_step(context.door.ledger, event, done=done, planned=config.steps),
            progress=lambda done, last: context.progress(left_out(DOING, last, config.steps), done, last),
        )  # fmt: skip
        return generator

    def _first_generator(
        self, config: TeachingSettings, images: Images, context: FitContext
    ) -> UpsamplingGenerator | SpectralGenerator:
        """What critics begin to teach."""
        if config.begins_with_sketch:
            return self._sketched(config, images, context)
        generator = self.build(config, images.spec).to(context.device)
        initialise(generator, context.generator(f"{self.name} weights"))
        return generator

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, UpsamplingGenerator | SpectralGenerator)
        return model.sample(labels, generator)


def _step(config: TeachingSettings, noise_multiplier: float) -> Event:
    """What one step is charged as."""
    release = Gaussian(noise_multiplier)
    return ShardTouched(config.shards, config.turns, release) if config.in_turn else release


def _together(
    config: TeachingSettings,
    generator: UpsamplingGenerator,
    teachers: Teachers,
    draws: torch.Generator,
    context: FitContext,
) -> Together:
    def release(rows: Tensor) -> Tensor:
        return context.door.release_sum(sum_shards(normalise_rows(rows)), context.noise_multiplier)[0]

    return Together(
        generator=generator, teachers=teachers, images=config.images_per_step, pool=config.pool,
        frequencies=LowFrequencies(generator.spec, config.frequencies, context.device),
        teacher_steps=config.critic_steps, warm_up=config.warm_up, release=release, watch=_norms(context),
        draws=draws,
    )  # fmt: skip


def _in_turn(
    config: TeachingSettings,
    generator: SpectralGenerator,
    teachers: Teachers,
    draws: torch.Generator,
    context: FitContext,
) -> InTurn:
    def release(rows: Tensor, turn: Draw) -> Tensor:
        # The gradient of a mean over images: each of them holds 1 / images of the paper's clip norm.
        return context.door.release_rows(clip_rows(rows, CLIP / len(rows)), context.noise_multiplier, draw=turn)

    return InTurn(
        generator=generator, teachers=teachers, images=config.images_per_step, teacher_steps=config.critic_steps,
        turn=lambda step: shard_draw(step, config.shards, config.turns, context.door.noise),
        release=release, watch=_norms(context, clipped=True), draws=draws,
    )  # fmt: skip


def _norms(context: FitContext, *, clipped: bool = False) -> Watch:
    """Records how long the teachers' gradients are: of one image each where they are clipped, else of all images."""

    def watch(step: int, rows: Tensor) -> None:
        if (step + 1) % NORMS_EVERY:
            return
        # The rows are those of a mean over images; the paper's norms are those of an image on its own.
        lengths = rows.norm(dim=1) * (len(rows) if clipped else 1)
        kinds = {"before clipping": lengths, "after clipping": lengths.clamp(max=CLIP)} if clipped else {"": lengths}
        for length in lengths.tolist() if clipped else []:
            context.history(EACH_NORM, step + 1, length)
        for kind, values in kinds.items():
            context.history(f"gradient norm/mean {kind}".strip(), step + 1, float(values.mean()))
            context.history(f"gradient norm/spread {kind}".strip(), step + 1, float(values.std(correction=0)))

    return watch


def _warm_start(config: TeachingSettings, critics: CriticStack, draws: torch.Generator, context: FitContext) -> None:
    warm_start(
        critics,
        Generators(context.facts.spec, config.critic_width, config.latent_size),
        steps=config.warm_up, critic_steps=config.critic_steps, draws=draws,
        checkpoints=context.checkpoints, checkpoint_every=CHECKPOINT_EVERY_WARM_STEPS,
        progress=lambda done, total: context.progress("warming up the critics", done, total),
    )  # fmt: skip


def _sensitivity(facts: PublicFacts) -> float:
    """Of a sum over shards, in rows: the answer of a whole shard may turn round, whoever is in it."""
    return 2 * sum_sensitivity(1.0, facts.adjacency)


def _sentence(config: TeachingSettings, facts: PublicFacts, numbers: int) -> str:
    replaced = facts.adjacency is Adjacency.REPLACE
    change = f"{facts.change} moves"
    if config.in_turn:
        whose = "the answers of at most two critics" if replaced else "the answers of its own critic alone"
        return (
            f"{config.steps:,} times what one of {config.shards:,} critics wants of {config.images_per_step} images, "
            f"with noise; {change} {whose}, by at most 2 clip norms an image"
        )
    return (
        f"{config.steps:,} times a noisy sum over {config.shards:,} critics of {numbers:,} bounded numbers; {change} "
        f"it by at most {shown(_sensitivity(facts))}"
    )
