"""DP-SGD: a classifier trained on private images by noisy gradients. It makes no images, so the registry does not list
it: `veilset continual` trains it task after task, as the baseline of continual learning.

Paper: Abadi et al. 2016, algorithm 1, with the network and settings of Chen, Kerkouche and Fritz 2022 (PSG, appendix
C.5). Released, epochs x declared size / batch times: the mean gradient of the network over a secret Poisson sample.
Unit of privacy: one record (or one user with a cap, where users are sampled).
Why the bound holds: an image's gradient is its own and clipped by the kernel, so adding or removing it moves the sum by
at most the clip; samples are drawn afresh by the kernel. The network is a function of its start, which is public or was
released, and of earlier releases: there is no momentum or statistic that saw an image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from veilset.data.spec import Images, ImageSet, ImageSpec
from veilset.engines.clipped_gradients import ClippedGradients, check_width
from veilset.engines.gradient_matching import Standard
from veilset.engines.option_checks import at_least_one, option, positive
from veilset.engines.per_sample_gradients import PerSampleGradients
from veilset.engines.sampled_sets import CPU_SPEED, SampledReleases, multiplications, standardised_losses
from veilset.engines.training_steps import step_along
from veilset.errors import ConfigError
from veilset.methods.base import FitContext, Forecast, Mechanism, PublicFacts, register_other
from veilset.nets.classifiers import ConvNet
from veilset.privacy.claim import shown

CHECKPOINT_EVERY = 20
"""There are a few hundred steps."""
DOING = "training on private gradients"


@dataclass(frozen=True, kw_only=True)
class DpSgdConfig:
    """Settings of the classifier."""

    epochs: int = option(10, "of expected passes over the images; PSG, appendix C.5")
    expected_batch: int = option(256, "records of a secret sample, on average; PSG")
    clip_norm: float = option(0.1, "to which the gradient of a record is clipped; PSG")
    learning_rate: float = option(0.01, "of the classifier; PSG")
    width: int = option(128, "channels of the classifier; PSG")
    mean: float = option(0.1307, "of pixels: declared, never measured; PSG, for MNIST")
    deviation: float = option(0.3081, "of pixels: declared, never measured; PSG, for MNIST")

    def __post_init__(self) -> None:
        at_least_one(self, "epochs", "expected_batch")
        positive(self, "clip_norm", "learning_rate", "deviation")
        check_width(self.width)
        if not abs(self.mean) <= 1e3:
            raise ConfigError("a mean of pixels", f"{self.mean}", "Correct the option.")

    @property
    def standard(self) -> Standard:
        return Standard(self.mean, self.deviation)


@register_other
class DpSgd(SampledReleases, Mechanism):
    """Noisy clipped gradients over Poisson samples, followed by plain gradient descent."""

    name: ClassVar[str] = "dp-sgd"
    Config: ClassVar[type] = DpSgdConfig
    published_source: ClassVar[str] = "Chen et al. 2022, code: Renyi bound for Poisson samples, by Opacus"

    def releases(self, config: DpSgdConfig, facts: PublicFacts) -> int:
        return config.epochs * math.ceil(facts.declared_size / config.expected_batch)

    def forecast(self, config: DpSgdConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        sensitivity = facts.sensitivity(config.clip_norm)
        numbers = sum(value.numel() for value in self.build(config, facts.spec).parameters())
        releases = self.releases(config, facts)
        # Clipped gradients of natural images agree by about a third; what is learned is a sum over all releases.
        signal = config.expected_batch * config.clip_norm / 3 * math.sqrt(releases)
        work = 6 * config.expected_batch * multiplications(config.width, facts.spec)
        return Forecast(
            signal_to_noise=signal / (noise_multiplier * sensitivity * math.sqrt(numbers)),
            seconds=10 + releases * work / CPU_SPEED,
            megabytes=(facts.declared_size * facts.spec.num_values + 100 * numbers) / 1e6 + 400,
            released=f"{releases:,} noisy mean gradients of {numbers:,} weights over secret samples of about "
            f"{config.expected_batch} images; one {facts.unit} moves a sum by at most {shown(sensitivity)}",
        )

    def build(self, config: DpSgdConfig, spec: ImageSpec) -> ConvNet:
        return ConvNet(spec, torch.Generator(), width=config.width)

    def fit(self, config: DpSgdConfig, images: Images, context: FitContext, before: ConvNet | None = None) -> ConvNet:
        """Trains a network, from weights of a public seed or on from those of a released network."""
        assert isinstance(images, ImageSet)
        draws = context.generator("dp-sgd network")
        network = ConvNet(context.facts.spec, draws, width=config.width)
        if before is not None:
            network.load_state_dict(before.state_dict())
        private = ClippedGradients(images, self.terms(config, context.facts), device=context.device)
        gradients = PerSampleGradients(network, losses=standardised_losses(config.standard), replayed=True)
        optimiser = torch.optim.SGD(network.parameters(), lr=config.learning_rate)
        kept = (network, optimiser, draws)
        for _ in self.steps_to_go(config, context, DOING, CHECKPOINT_EVERY, "classifier", *kept):
            step_along(optimiser, private.release(gradients, context.door, context.noise_multiplier))
        return network
