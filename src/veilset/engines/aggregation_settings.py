"""Settings of DPAF, and what follows from them before any image is read: noise of each stage, price, cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.engines.aggregated_gradients import Compression
from veilset.engines.clipped_gradients import Gradients, GradientTerms, check_width
from veilset.engines.compressed_gradients import LargestShare, LargestSigns
from veilset.engines.contexts import PublicFacts
from veilset.engines.option_checks import at_least_one, option, positive
from veilset.engines.per_sample_gradients import PerSampleGradients
from veilset.engines.published_accounting import Stage
from veilset.errors import ConfigError, RunError
from veilset.nets.aggregating_critics import (
    AggregatingCritic,
    ConvLayout,
    SplitConvNet,
    feature_norm,
    feature_shape,
    map_shapes,
)
from veilset.privacy.events import Composed, Event, Repeated

DRIFT = 0.3
"""How far noise alone may carry weights within a stage, as a share of their own size."""
FEWEST_PIXELS = 9
"""Of a map of features that has something to say."""
COUNT_WEIGHT = 0.15
"""Of the count of a class beside features of length 1: costs 1 % more noise."""
SHORTEST_SLOPE = 1e-30
"""A critic without any slope still has a positive clip norm."""
Transfer = Literal["none", "critic", "both"]
Construction = Literal["repaired", "published"]


@dataclass(frozen=True, kw_only=True)
class AggregationSettings:
    """Defaults that are not the paper's are ours, because its appendix does not say."""

    construction: str = option("repaired", "repaired, or published with --accounting published or none")
    layout: str = option(
        "C2-C1-x", "convolutions before, at and after the mean; paper: C2-C1-x for MNIST, C2-C2-C1 for 64 x 64"
    )
    width: int = option(32, "channels of the first convolution")
    dense_width: int = option(64, "of the dense layer after the mean")
    activation: str = option("leaky-relu", "leaky-relu, or tanh for the tempered sigmoid of table 14")
    expected_batch: int = option(256, "records of a secret sample, on average")
    classifier_steps: int = option(500, "releases of the classifier, before the generator is taught")
    steps: int = option(4000, "releases while the generator is taught")
    asymmetry: int = option(8, "batches whose gradients make one step of the critic; paper: 1 or 8 (tables 16 and 17)")
    critic_steps: int = option(1, "for each step of the generator; paper: 1 to 200")
    kept_share: float = option(0.9, 'of the entries of a gradient; 1 is "w/o GC" (table 13); paper')
    topagg: int = option(0, "entries of a gradient whose signs are kept: TOPAGG (table 13); 0 for none")
    clip_norm: float = option(1.0, "to which the gradient of a record is clipped")
    classifier_share: float = option(0.1, "of the budget, for the classifier")
    gradient_share: float = option(0.3, "of the budget, for gradients of the critic; mean features get what is left")
    classifier_rate: float = option(0.5, "learning rate of the classifier, or less where noise would carry it away")
    hidden_rate: float = option(0.05, "learning rate of what the published classifier learns without clip and noise")
    body_rate: float = option(0.2, "learning rate of what lies before the mean, or less, as with the classifier")
    head_rate: float = option(0.05, "learning rate of what lies after the mean")
    generator_rate: float = option(2e-4, "learning rate of the generator")
    transfer: str = option(
        "none", "what begins with public images: none, critic, or both with the generator (table 12)"
    )
    public_images: str = option("", "a path or a name that `veilset.load` knows; declared public, the name included")
    public_steps: int = option(2000, "of the game on public images")
    latent_size: int = option(100, "random numbers behind an image")
    channels: int = option(128, "of the generator, at its smallest map")

    def __post_init__(self) -> None:
        if self.construction not in get_args(Construction):
            raise ConfigError("repaired or published", f"{self.construction!r}", "Correct the option.")
        if self.transfer not in get_args(Transfer):
            raise ConfigError(f"transfer of {', '.join(get_args(Transfer))}", f"{self.transfer!r}", "Correct it.")
        if (self.transfer == "none") != (self.public_images == ""):
            raise ConfigError(
                "transfer critic or both with public_images, or none without",
                f"transfer {self.transfer} with {self.public_images or 'no public images'}",
                "Give both options or neither.",
            )
        ConvLayout.of(self.layout)
        check_width(self.width)
        check_width(self.dense_width)
        at_least_one(
            self, "expected_batch", "classifier_steps", "steps", "asymmetry", "critic_steps",
            "public_steps", "latent_size", "channels",
        )  # fmt: skip
        positive(self, "clip_norm", "classifier_share", "gradient_share", "classifier_rate", "hidden_rate")
        positive(self, "body_rate", "head_rate", "generator_rate")
        if self.classifier_share + self.gradient_share >= 1:
            raise ConfigError(
                "classifier_share + gradient_share below 1, which leaves something for mean features",
                f"{self.classifier_share:g} + {self.gradient_share:g}", "Lower one of them.",
            )  # fmt: skip
        if self.steps % self.asymmetry:
            raise ConfigError(
                f"steps that are a multiple of {self.asymmetry}, the asymmetry", f"{self.steps}",
                "Change either: the last gradients would be paid for and not used.",
            )  # fmt: skip
        if not 0 < self.kept_share <= 1 or self.topagg < 0:
            found = f"kept_share {self.kept_share:g}, topagg {self.topagg}"
            raise ConfigError("kept_share above 0 and up to 1, topagg of at least 0", found, "Correct the option.")

    @property
    def published(self) -> bool:
        return self.construction == "published"

    # --- networks ----------------------------------------------------------------------------------------------------

    def classifier(self, spec: ImageSpec) -> SplitConvNet:
        return SplitConvNet(spec, ConvLayout.of(self.layout), outputs=spec.num_classes, **self._shape())

    def critic(self, spec: ImageSpec) -> AggregatingCritic:
        return AggregatingCritic(spec, ConvLayout.of(self.layout), num_groups=self.num_groups(spec), **self._shape())

    def num_groups(self, spec: ImageSpec) -> int:
        """Of images, whose means the critic judges: each class, or, as published, all together."""
        return 1 if self.published else spec.num_classes

    def _shape(self) -> dict[str, Any]:
        return {"width": self.width, "dense_width": self.dense_width, "activation": self.activation}

    def compression(self, coins: torch.Generator) -> Compression:
        def compressed(gradients: PerSampleGradients, clip_norm: float) -> Gradients:
            if self.topagg:
                numbers = sum(value.numel() for value in gradients.parameters.values())
                chances = torch.rand(numbers, generator=coins, device=coins.device)
                return LargestSigns(gradients, self.topagg, clip_norm, chances)
            return LargestShare(gradients, self.kept_share) if self.kept_share < 1 else gradients

        return compressed

    def rates(self, classifier: SplitConvNet) -> list[dict[str, Any]]:
        """Of the parameters in their order; gradients that are never clipped are many times as long."""
        return [
            {"params": list(classifier.conv1.parameters()), "lr": self.classifier_rate},
            {"params": classifier.behind_conv1(), "lr": self.hidden_rate if self.published else self.classifier_rate},
        ]

    def clip_of(self, slope: Tensor) -> float:
        """The clip norm of gradients at slopes of the critic's loss, (groups, ...).

        In proportion to the length of the slopes, which is public, so that a critic that is sure of itself, whose
        gradients are all short, is not drowned in noise. In the published construction the slope is private.

        Raises: RunError where training has diverged. That it has follows from released values, and may be known.
        """
        if self.published:
            return self.clip_norm
        length = float(slope.flatten(1).norm(dim=1).square().mean().sqrt())
        if not math.isfinite(length):
            raise RunError(
                "a critic whose loss has a finite slope", f"a slope of length {length}: training diverged",
                "What the run costs stays charged, and going on would end here again. Fit anew with a smaller "
                "--head-rate, --body-rate or --generator-rate.",
            )  # fmt: skip
        return self.clip_norm * max(length, SHORTEST_SLOPE)

    # --- releases ----------------------------------------------------------------------------------------------------

    def terms(self, facts: PublicFacts, *, batches: int = 1) -> GradientTerms:
        """Of a sample of so many batches."""
        return GradientTerms(
            declared_size=facts.declared_size, expected_batch=batches * self.expected_batch, clip_norm=self.clip_norm,
            rows_per_user=facts.rows_per_user, option_times=batches,
        )  # fmt: skip

    def feature_terms(self, facts: PublicFacts) -> GradientTerms:
        """Of sums of features; in the repaired construction a count goes with them."""
        bound = self.feature_bound(facts.spec)
        weight = 0.0 if self.published else COUNT_WEIGHT * bound
        return replace(self.terms(facts), clip_norm=bound, total_weight=weight)

    def feature_bound(self, spec: ImageSpec) -> float:
        return feature_norm(feature_shape(spec, ConvLayout.of(self.layout), self.width))

    def cautions(self, spec: ImageSpec) -> tuple[str, ...]:
        """What is likely to fail with these images."""
        _, height, width = feature_shape(spec, ConvLayout.of(self.layout), self.width)
        if height * width >= FEWEST_PIXELS:
            return ()
        return (
            f"features are maps of {height} x {width} pixels, of which normalising leaves little: expect nothing. Use "
            "a --layout with fewer convolutions before the mean: three leave 4 x 4 of 32 x 32 pixels, two of 16 x 16.",
        )

    @property
    def gradient_batches(self) -> int:
        """Batches that share one noisy gradient: one in the repaired construction, where means are taken afterwards."""
        return self.asymmetry if self.published else 1

    def noises(self, noise_multiplier: float) -> tuple[float, float, float]:
        """Noise multipliers of the classifier's gradients, of mean features and of the critic's gradients.

        A stage of n releases at rate q with multiplier z costs about n (q / z)^2 in Renyi terms, so shares of the
        budget fix the ratios of multipliers: z is proportional to q sqrt(n / share). Mean features have the given one.
        """
        left = 1 - self.classifier_share - self.gradient_share
        classifier = math.sqrt(self.classifier_steps / self.steps * left / self.classifier_share)
        gradient = math.sqrt(self.gradient_batches * left / self.gradient_share)
        return noise_multiplier * classifier, noise_multiplier, noise_multiplier * gradient

    def steady_rates(
        self, facts: PublicFacts, noise_multiplier: float, classifier: SplitConvNet, critic: AggregatingCritic
    ) -> tuple[float, float]:
        """Learning rates of the classifier and of what lies before the mean, at which noise leaves them what they are.

        Gradients of the critic are as if the slopes of its loss had length 1. Those of frequent classes are shorter.
        """
        noises, updates = self.noises(noise_multiplier), self.steps // self.asymmetry
        first, _, last = (noise * facts.sensitivity(self.clip_norm) / self.expected_batch for noise in noises)
        averaged = last / (self.asymmetry if self.published else math.sqrt(self.asymmetry))
        return (
            steady_rate(self.classifier_rate, classifier.parameters(), first, self.classifier_steps),
            steady_rate(self.body_rate, critic.before_average(), averaged, updates),
        )

    def stages(self, facts: PublicFacts, noise_multiplier: float) -> list[Stage]:
        """As theorem 6 of the paper counts them."""
        (classifier, means, gradients), rate = self.noises(noise_multiplier), self.terms(facts).rate
        batches = self.gradient_batches
        return [
            (classifier, rate, self.classifier_steps), (means, rate, self.steps),
            (gradients, batches * rate, self.steps // batches),
        ]  # fmt: skip

    def charges(self, facts: PublicFacts, noise_multiplier: float) -> list[tuple[Event, int]]:
        """What is charged, and how often: for a step of the classifier, for a batch of the critic and, as published,
        for the gradient of several batches."""
        classifier, means, gradients = self.noises(noise_multiplier)
        first = (self.terms(facts).event(classifier, facts.adjacency), self.classifier_steps)
        if not self.published:
            return [first, (self.terms(facts).event(means, facts.adjacency, gradients), self.steps)]
        merged = self.terms(facts, batches=self.asymmetry).event(gradients, facts.adjacency)
        batch = self.terms(facts).event(means, facts.adjacency)
        return [first, (batch, self.steps), (merged, self.steps // self.asymmetry)]

    def events(self, facts: PublicFacts, noise_multiplier: float) -> Event:
        self.feature_bound(facts.spec)  # refuses a layout that is too deep for these images
        return Composed(tuple(Repeated(count, event) for event, count in self.charges(facts, noise_multiplier)))

    # --- forecast ----------------------------------------------------------------------------------------------------

    def products(self, spec: ImageSpec) -> float:
        """Multiplications of a fit, roughly: generator and critic of an image cost about the same."""
        layout = ConvLayout.of(self.layout)
        shapes = map_shapes(spec, layout.before_average + layout.scoring, self.width)
        image = sum(16 * before[0] * math.prod(after) for before, after in itertools.pairwise(shapes))
        passes = 3 * self.classifier_steps + self.steps * (8 + 6 / self.critic_steps)
        return passes * self.expected_batch * image

    def sensitivity(self, facts: PublicFacts) -> float:
        """Of sums of features, and of the counts that go with them."""
        return facts.sensitivity(self.feature_terms(facts).row_norm)


def steady_rate(rate: float, weights: Iterable[Tensor], noise_std: float, updates: int) -> float:
    """`rate`, or less, so that this many noises of that deviation stay within `DRIFT` of the smallest weights."""
    own = min(float(value.detach().square().mean().sqrt()) for value in weights if value.ndim > 1)
    walk = noise_std * math.sqrt(updates)
    return min(rate, DRIFT * own / walk) if walk > 0 else rate
