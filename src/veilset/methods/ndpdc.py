"""NDPDC, nonlinear private dataset condensation: a few images per class with the mean features of the private ones.

Paper: Zheng and Li, "Differentially Private Dataset Condensation" (2023); after its abstract, and distribution matching
(Zhao and Bilen 2023) where it does not say more.
Released, once per step: for every class the sum of the features of a secret Poisson sample of private images by a
random, untrained network, each image's features clipped, and a weighted record count, with Gaussian noise once.
Unit of privacy: one record (or one user with a cap, where users are sampled).
Why the bound holds: an image's features are its own and clipped by the kernel; with the count of weight w its row has
norm sqrt(clip^2 + w^2), and it enters the sum of its own class only. All records are drawn at one public rate, whatever
their class: the number of records of a class shows in noisy counts alone. Networks come from a public seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from veilset.data.spec import Images, ImageSet
from veilset.engines.clipped_gradients import ClippedGradients, GradientTerms
from veilset.engines.gradient_matching import FreePixels
from veilset.engines.noisy_counts import NoisyCounts
from veilset.engines.option_checks import at_least_one, option, positive
from veilset.engines.sampled_sets import CPU_SPEED, SampledSet, SetSettings
from veilset.engines.training_steps import faded
from veilset.methods.base import FitContext, Forecast, PublicFacts, Synthesizer, register
from veilset.nets.classifiers import ConvNet, restart
from veilset.nets.half_precision import half_precision
from veilset.nets.image_sets import FixedImages
from veilset.privacy.claim import shown

CHECKPOINT_EVERY = 500
HISTORY_EVERY = 50
DOING = "matching private features"


@dataclass(frozen=True, kw_only=True)
class NdpdcConfig(SetSettings):
    """Settings of NDPDC, and those of PSG, beside which it is compared."""

    preset: str = option("full", "full for a GPU, or small for two CPU cores")
    steps: int = option(10_000, "releases, one about each secret sample")
    group: int = option(50, "records of a class in a secret sample, if classes are even")
    clip_norm: float = option(1.0, "to which the features of a record are clipped")
    total_weight: float = option(0.15, "the count's weight beside features of length 1: costs 1 % more noise")
    pixel_rate: float = option(1.0, "learning rate of the pixels; falls to 0, so that late noise is averaged out")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "steps", "group")
        positive(self, "total_weight")

    @property
    def releases(self) -> int:
        return self.steps


@register
class Ndpdc(SampledSet, Synthesizer):
    """Noisy class-wise sums of random features over Poisson samples, matched by a small set of images."""

    name: ClassVar[str] = "ndpdc"
    summary: ClassVar[str] = "a few images per class with the noisy mean features of many random networks"
    paper: ClassVar[str] = "Zheng and Li 2023"
    Config: ClassVar[type] = NdpdcConfig
    published_source: ClassVar[str] = "Zheng and Li 2023: Renyi bound for Poisson samples"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "full": {},
        # For two CPU cores: a tenth of the steps, so longer ones, and a narrower network.
        "small": {"steps": 1000, "width": 64, "pixel_rate": 30.0},
    }

    def terms(self, config: NdpdcConfig, facts: PublicFacts) -> GradientTerms:
        return GradientTerms(
            declared_size=facts.declared_size, expected_batch=config.group * facts.spec.num_classes,
            clip_norm=config.clip_norm, rows_per_user=facts.rows_per_user, total_weight=config.total_weight,
            option="group", option_times=facts.spec.num_classes,
        )  # fmt: skip

    def forecast(self, config: NdpdcConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        spec, sensitivity = facts.spec, facts.sensitivity(self.terms(config, facts).row_norm)
        numbers = ConvNet(spec, torch.Generator(), width=config.width).dense.in_features
        images = spec.num_classes * (config.group + 6 * config.images_per_class)
        pixels = spec.height * spec.width
        layers = 9 * config.width * (spec.channels + config.width * 5 / 16)
        # Features of a class agree by about one half; what is matched is a sum over all releases.
        signal = config.group * config.clip_norm / 2 * math.sqrt(config.steps)
        of_steps = Forecast(
            signal_to_noise=signal / (noise_multiplier * sensitivity * math.sqrt(numbers)),
            # Whole batches, of which no image needs a gradient of its own, go through at four times that speed.
            seconds=10 + config.steps * images * 2 * layers * pixels / (4 * CPU_SPEED),
            megabytes=(facts.declared_size * spec.num_values) / 1e6 + 500,
            released=f"{config.steps:,} times, for each class, a noisy sum of {numbers:,} bounded features and a count "
            f"over secret samples; {facts.change} moves it by at most {shown(sensitivity)}",
        )
        return self._forecast_then(config, facts, noise_multiplier, of_steps)

    def fit(self, config: NdpdcConfig, images: Images, context: FitContext) -> FixedImages:
        assert isinstance(images, ImageSet)
        spec, draws = context.facts.spec, context.generator("ndpdc networks")
        private = ClippedGradients(images, self.terms(config, context.facts), device=context.device)
        network = ConvNet(spec, draws, width=config.width).requires_grad_(False)
        made = FreePixels(spec, config.images_per_class, config.standard, context.generator("ndpdc images"))
        self._begin(config, images, context, made)
        optimiser = torch.optim.SGD(made.parameters(), lr=config.pixel_rate, momentum=config.pixel_momentum)
        counts = NoisyCounts.of(private.terms, context, spec.num_classes)
        kept = (made, optimiser, draws, {"counts": counts.sums})
        for step in self.steps_to_go(config, context, DOING, CHECKPOINT_EVERY, "set", *kept):
            restart(network, draws)
            sums = private.release_by_class(
                lambda inputs, _: features_of(network, config.standard.of(inputs)), private.draw(context.door),
                context.door, context.noise_multiplier,
            )  # fmt: skip
            members = counts.after(sums[:, -1] / config.total_weight, step + 1)
            targets = (sums[:, :-1] / members[:, None]).float()
            optimiser.param_groups[0]["lr"] = config.pixel_rate * faded(step, config.steps)
            distance = match_means(network, made, optimiser, targets, config.clip_norm)
            if (step + 1) % HISTORY_EVERY == 0:
                context.history("matching distance", step + 1, float(distance))
        return FixedImages.of(spec, config.standard.undone(made()))


def features_of(network: ConvNet, images: Tensor) -> Tensor:
    """In float32, whatever the layers compute in: the kernel clips what leaves them."""
    with half_precision(images.device):
        return network.features(images).float()


def match_means(
    network: ConvNet, made: FreePixels, optimiser: torch.optim.Optimizer, targets: Tensor, clip_norm: float
) -> Tensor:
    """One step of the set towards class means of features like `targets`; returns the squared distance before it."""
    features = features_of(network, made())
    # Clipped, as those of the private images are.
    features = features * (clip_norm / features.norm(dim=1, keepdim=True).clamp(min=clip_norm))
    by_class = features.reshape(len(targets), -1, features.shape[1])
    distance = (by_class.mean(dim=1) - targets).square().sum()
    optimiser.zero_grad()
    # Times the images of a class, so that the step of an image does not depend on how many there are.
    (by_class.shape[1] * distance).backward()
    optimiser.step()
    made.keep_to_range()
    return distance.detach()
