"""DPAF: a generator against a critic that is shown noisy mean features of batches, with a part that was pre-trained.

Paper: Lin, Hsu, Yu, Cao and Huang, "DPAF: Image Synthesis via Differentially Private Aggregation in Forward Phase"
(2023), after its appendix. Its theorem 1 is false, so that for the construction it describes no epsilon can be claimed
at all; the default is a repaired one.
Unit of privacy: one record (or one user with a cap, where users are sampled).
Released, repaired: (1) classifier_steps times the mean gradient of all weights of a classifier over a secret Poisson
sample, of which the first convolutions are kept; (2) steps times, over one secret sample, for each class the sum of
normalised features of the critic and a weighted record count, and then the mean gradient of the convolutions that made
the features.
Why the bound holds: an image's features are its own and have norm b = sqrt(maps) x side by their normalisation, which
the kernel enforces; with the count of weight w its row has norm sqrt(b^2 + w^2), and it enters the sum of its own class
only. Sums are divided by counts that were released. Its gradient is its own as well, because the loss is differentiated
at the means that were just released, and is clipped by the kernel; sums of gradients are divided by the expected batch.
Both releases of (2) are on one sample, so they compose before the sample amplifies them: one Gaussian with 1/z^2 =
1/z_mean^2 + 1/z_gradient^2. Classifier, critic and generator are functions of released values, of generated images and
of public draws, labels of generated images included: no network keeps a trace of a record that was not released. Stages
compose in one account. Images that are declared public cost nothing.
Why the published one has no bound: gradients of its first convolutions pass through layers trained on the same
records without noise, and those of its second ones are taken at a clean mean. Either way a record moves all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veilset.data.spec import Images, ImageSet, ImageSpec
from veilset.engines.aggregated_adversary import Adversary
from veilset.engines.aggregated_batches import (
    PublicBatches,
    PublishedBatches,
    RepairedBatches,
    private_shares,
    published_pretraining,
    repaired_pretraining,
)
from veilset.engines.aggregation_settings import AggregationSettings
from veilset.engines.checkpointing import keep, last_affordable, left_out, restore, steps_between
from veilset.engines.clipped_gradients import ASSUMPTIONS, ClippedGradients
from veilset.engines.noisy_counts import NoisyCounts
from veilset.engines.public_images import public_images
from veilset.engines.published_accounting import calibrate_wbk_composed, wbk_composed_epsilon
from veilset.engines.sampled_sets import CPU_SPEED
from veilset.engines.training_steps import step_along
from veilset.methods.base import FitContext, Forecast, PublicFacts, Synthesizer, register
from veilset.nets.aggregating_critics import AggregatingCritic, SplitConvNet
from veilset.nets.classifiers import restart
from veilset.nets.generators import UpsamplingGenerator
from veilset.privacy.bounds import Adjacency
from veilset.privacy.claim import Published, shown
from veilset.privacy.events import NOTHING, Event
from veilset.privacy.sides import seal
from veilset.randomness import initialise

PUBLIC = "the images that were declared public are, and nobody's who is in the private ones"
APART = (
    "that none of the private images is among those declared public, pixel by pixel, was found out without noise: that "
    "there is a release reveals it to whoever supplied them, and no epsilon covers it"
)
CHECKPOINT_EVERY = 500
HISTORY_EVERY = 50
DOING = "teaching the generator"


@dataclass(frozen=True, kw_only=True)
class DpafConfig(AggregationSettings):
    """Settings of DPAF."""


@register
class Dpaf(Synthesizer):
    """Noisy mean features and gradients of a critic over Poisson samples, which teach a generator."""

    name: ClassVar[str] = "dpaf"
    summary: ClassVar[str] = "a generator against a critic that sees noisy mean features of secret batches"
    paper: ClassVar[str] = "Lin et al. 2023"
    Config: ClassVar[type] = DpafConfig
    assumptions: ClassVar[tuple[str, ...]] = ASSUMPTIONS
    published_adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE
    published_construction: ClassVar[Mapping[str, Any]] = {"construction": "published"}

    def assumed(self, config: DpafConfig) -> tuple[str, ...]:
        return () if config.transfer == "none" else (PUBLIC, APART)

    def cautions(self, config: DpafConfig, facts: PublicFacts) -> tuple[str, ...]:
        return config.cautions(facts.spec)

    def unproven(self, config: DpafConfig) -> str | None:
        if not config.published:
            return None
        return "no epsilon is proven for DPAF as published: a record moves the gradients of all others"

    def check(self, config: DpafConfig, images: Images, device: torch.device) -> ImageSet | None:
        """The images declared public, where there are: that they are none of the private ones must be known first."""
        return None if config.transfer == "none" else public_images(config.public_images, images)

    def events(self, config: DpafConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return config.events(facts, noise_multiplier)

    def reserve(self, config: DpafConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return NOTHING  # a resumed run leaves out its last steps instead

    def published_noise(self, config: DpafConfig, facts: PublicFacts, epsilon: float, delta: float) -> float:
        return calibrate_wbk_composed(epsilon, lambda noise: config.stages(facts, noise), delta)

    def published_claim(
        self, config: DpafConfig, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        epsilon = wbk_composed_epsilon(config.stages(facts, noise_multiplier), delta)
        return Published(epsilon, "refuted", f"{self.paper}, theorem 6; its theorem 1 is false (hidden layers)")

    def forecast(self, config: DpafConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        spec = facts.spec
        bound, sensitivity = config.feature_bound(spec), config.sensitivity(facts)
        # Features of a group agree by about a third, in as many numbers as their squared length.
        signal = config.expected_batch / config.num_groups(spec) * bound / 3
        noise = noise_multiplier * sensitivity * bound
        numbers = sum(value.numel() for value in config.critic(spec).before_average())
        change = f"{facts.change} moves"
        bounded = f"{change} sums of features and counts together by at most {shown(sensitivity)}"
        unbounded = f"{change} the gradients of all others as well, so that no bound is proven"
        return Forecast(
            signal_to_noise=signal / noise * math.sqrt(config.steps),
            seconds=10 + 2 * config.products(spec) / CPU_SPEED,
            megabytes=(facts.declared_size * spec.num_values + 100 * numbers) / 1e6 + 500,
            released=f"{config.classifier_steps:,} noisy gradients of a classifier, and {config.steps:,} times mean "
            f"features and a gradient of a critic over secret samples of about {config.expected_batch} images; "
            f"{unbounded if config.published else bounded}",
        )

    def build(self, config: DpafConfig, spec: ImageSpec) -> UpsamplingGenerator:
        return UpsamplingGenerator(spec, latent_size=config.latent_size, channels=config.channels)

    def fit(self, config: DpafConfig, images: Images, context: FitContext) -> UpsamplingGenerator:
        assert isinstance(images, ImageSet)
        private = ClippedGradients(images, config.terms(context.facts), device=context.device)
        classifier = config.classifier(images.spec).drawn(context.generator("dpaf classifier"))
        critic = config.critic(images.spec).drawn(context.generator("dpaf critic"))
        generator = self.build(config, images.spec).to(context.device)
        initialise(generator, context.generator("dpaf generator"))
        if config.published:
            for hidden in (classifier, critic):
                seal(hidden)
        public = self.check(config, images, context.device)
        classifier_rate, body_rate = config.steady_rates(context.facts, context.noise_drawn, classifier, critic)
        pretrain(replace(config, classifier_rate=classifier_rate), classifier, private, context)
        critic.conv1.load_state_dict(classifier.conv1.state_dict())
        critic.conv1.requires_grad_(False)
        if public is not None:
            compete_in_public(config, public, generator, critic, context)
        config = replace(config, body_rate=body_rate)
        shares = private_shares(private) if config.published else torch.ones(images.spec.num_classes)
        adversary = adversary_of(config, generator, critic, context, class_shares=shares, draws="dpaf draws")
        charges = config.charges(context.facts, context.noise_multiplier)[1:]
        batches = batches_of(config, critic, images, private, context, coins=adversary.draws)
        compete(config, adversary, batches, context, name="adversary", planned=config.steps, charges=charges)
        return generator.eval()

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, UpsamplingGenerator)
        return model.sample(labels, generator)


def pretrain(config: DpafConfig, classifier: SplitConvNet, private: ClippedGradients, context: FitContext) -> None:
    """The first stage: a classifier, of which the first convolutions will be kept."""
    coins = context.generator("dpaf classifier coins")
    noise, compression = config.noises(context.noise_multiplier)[0], config.compression(coins)
    step_of = published_pretraining if config.published else repaired_pretraining
    optimiser = torch.optim.SGD(config.rates(classifier))
    done = restore(context.checkpoints, "classifier", classifier, optimiser, coins)
    charges = config.charges(context.facts, context.noise_multiplier)[:1]
    last = last_affordable(context.door.ledger, charges, done=done, planned=config.classifier_steps)
    doing = left_out("pre-training a classifier", last, config.classifier_steps)
    every = steps_between(config.classifier_steps, CHECKPOINT_EVERY)
    for step in range(done, last):
        step_along(optimiser, step_of(private, classifier, context.door, noise, compression))
        if (step + 1) % every == 0 or step + 1 == last:
            keep(context.checkpoints, "classifier", step + 1, classifier, optimiser, coins)
        context.progress(doing, step + 1, last)


def batches_of(
    config: DpafConfig,
    critic: AggregatingCritic,
    images: ImageSet,
    private: ClippedGradients,
    context: FitContext,
    *,
    coins: torch.Generator,
) -> RepairedBatches | PublishedBatches:
    """Where the critic gets real features and gradients from."""
    _, mean_noise, gradient_noise = config.noises(context.noise_multiplier)
    common: dict[str, Any] = {
        "private": private, "critic": critic, "door": context.door, "mean_noise": mean_noise,
        "gradient_noise": gradient_noise, "clip_of": config.clip_of,
        "compression": config.compression(coins),
        "noise_std": context.noise_drawn * config.sensitivity(context.facts),
    }  # fmt: skip
    if config.published:
        merged = ClippedGradients(images, config.terms(context.facts, batches=config.asymmetry), device=context.device)
        return PublishedBatches(**common, merged=merged, asymmetry=config.asymmetry)
    features = ClippedGradients(images, config.feature_terms(context.facts), device=context.device)
    counts = NoisyCounts.of(features.terms, context, critic.num_groups)
    return RepairedBatches(**common, features=features, counts=counts)


def compete(
    config: DpafConfig,
    adversary: Adversary,
    batches: RepairedBatches | PublishedBatches | PublicBatches,
    context: FitContext,
    *,
    name: str,
    planned: int,
    charges: list[tuple[Event, int]],
) -> None:
    """Critic and generator in turns (algorithm 1, lines 7 to 20).

    Args:
        name: of the checkpoint.
        charges: for `planned` steps, as `AggregationSettings.charges`; none for a game that costs nothing.
    """
    both = nn.ModuleDict({"generator": adversary.generator, "critic": adversary.critic})
    sums = {f"collected {place}": value for place, value in enumerate(adversary.collected)}
    if isinstance(batches, RepairedBatches):
        sums["counts"] = batches.counts.sums
    done = restore(context.checkpoints, name, both, adversary.optimiser, adversary.draws, sums)
    last = last_affordable(context.door.ledger, charges, done=done, planned=planned)
    doing, every = left_out(DOING, last, planned), steps_between(planned, CHECKPOINT_EVERY)
    context.progress(doing, done, last)
    for step in range(done, last):
        means, gradients = batches(step, adversary.real_slope)
        adversary.judge(means)
        adversary.collect(gradients)
        if (step + 1) % config.asymmetry == 0:
            adversary.improve()
        if (step + 1) % config.critic_steps == 0:
            adversary.teach()
        if (step + 1) % every == 0 or step + 1 == last:
            keep(context.checkpoints, name, step + 1, both, adversary.optimiser, adversary.draws, sums)
        if (step + 1) % HISTORY_EVERY == 0 and charges:
            for of, score in zip(("real", "generated"), adversary.last_scores.tolist(), strict=True):
                context.history(f"critic's score of {of} means", step + 1, score)
        context.progress(doing, step + 1, last)


def compete_in_public(
    config: DpafConfig,
    images: ImageSet,
    generator: UpsamplingGenerator,
    critic: AggregatingCritic,
    context: FitContext,
) -> None:
    """The same game on public images, for a critic, and perhaps a generator, that have learned before (table 12)."""
    even = torch.ones(critic.num_classes)
    adversary = adversary_of(config, generator, critic, context, class_shares=even, draws="dpaf public draws")
    batches = PublicBatches(
        images=images, critic=critic, batch=config.expected_batch, draws=adversary.draws, clip_of=config.clip_of,
        compression=config.compression(adversary.draws),
    )  # fmt: skip
    compete(config, adversary, batches, context, name="public adversary", planned=config.public_steps, charges=[])
    if config.transfer == "critic":
        restart(generator, context.generator("dpaf generator"))


def adversary_of(
    config: DpafConfig,
    generator: UpsamplingGenerator,
    critic: AggregatingCritic,
    context: FitContext,
    *,
    class_shares: Tensor,
    draws: str,
) -> Adversary:
    stream = context.generator(draws)  # the only one of the game, so that a checkpoint holds all its draws
    return Adversary(
        generator, critic, batch=config.expected_batch, class_shares=class_shares, draws=stream,
        noisy_slopes=not config.published,  # algorithm 1, line 8: AGG in place of DPAGG
        clip_of=config.clip_of, compression=config.compression(stream),
        body_rate=config.body_rate, head_rate=config.head_rate, generator_rate=config.generator_rate,
    )  # fmt: skip
