"""PSG, Private Set Generation: a few images per class, moved until a network learns from them what it learns from the
private ones.

Paper: Chen, Kerkouche and Fritz, "Private Set Generation with Discriminative Information" (2022), algorithms 1 and 2.
Released, runs x rounds x steps times: the mean gradient of a network over a secret Poisson sample of private images,
each image's gradient clipped over all weights together; behind it, in the same row, a weighted count of the sample's
images of each class; with Gaussian noise once on the sum. In the paper, and as published, there are no counts.
Unit of privacy: one record (or one user with a cap, where users are sampled).
Why the bound holds: an image's gradient is its own and clipped by the kernel, and it is counted in the place of its own
class only. With the count of weight w its row has norm sqrt(clip^2 + w^2), which the kernel enforces on the whole row,
so adding or removing it moves the sum by at most that; samples are drawn afresh by the kernel. The network is drawn
from a public seed and trained on the synthetic images alone. These, and by how much each class of them counts, are
functions of earlier releases: no private image leaves a trace anywhere else.
The labels of the synthetic images are fixed, the same number for every class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veilset.data.spec import Images, ImageSet, ImageSpec
from veilset.engines.clipped_gradients import ClippedGradients, GradientTerms
from veilset.engines.gradient_matching import FreePixels, GeneratedImages, GradientMatching
from veilset.engines.noisy_counts import NoisyCounts
from veilset.engines.option_checks import at_least_one, option, positive
from veilset.engines.per_sample_gradients import PerSampleGradients
from veilset.engines.sampled_sets import (
    CPU_SPEED,
    SampledSet,
    SetSettings,
    multiplications,
    standardised_losses,
)
from veilset.errors import ConfigError
from veilset.methods.base import FitContext, Forecast, PublicFacts, Synthesizer, register
from veilset.nets.classifiers import ConvNet, restart
from veilset.nets.image_sets import FixedImages, labels_of
from veilset.privacy.claim import shown

CHECKPOINT_EVERY = 500
HISTORY_EVERY = 50
DOING = "matching private gradients"


@dataclass(frozen=True, kw_only=True)
class PsgConfig(SetSettings):
    """Settings of PSG."""

    preset: str = option("paper", "paper, or small for two CPU cores")
    prior: bool = option(False, "images of a generator with fixed latent codes instead of free pixels: algorithm 2")
    runs: int = option(1000, "each from a fresh network; paper: 1000 for epsilon 10, 200 for epsilon 1")
    rounds: int = option(0, "of a run; 0 for the paper's: as many as images per class, or 2 with the prior")
    steps: int = option(10, "releases of a round; paper")
    epochs: int = option(0, "between two rounds; 0 for the paper's: 500 / images per class, or 10 with the prior")
    expected_batch: int = option(256, "records of a secret sample, on average; paper")
    network_rate: float = option(0.01, "learning rate of the network; paper")
    network_batch: int = option(256, "synthetic images of a step of the network; paper")
    count_weight: float = option(0.15, "of a count beside a gradient as long as the clip: 1 % more noise; 0 for none")
    latent_size: int = option(10, "random numbers behind an image, with the prior; paper")
    channels: int = option(128, "of the generator, with the prior")
    prior_rate: float = option(0.01, "learning rate of the generator, with the prior; paper")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "runs", "steps", "expected_batch", "network_batch", "latent_size", "channels")
        for name in ("rounds", "epochs"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} of at least 0", f"{getattr(self, name)}", "0 stands for the paper's.")
        positive(self, "network_rate", "prior_rate")
        if self.prior and self.begins_with_sketch:
            raise ConfigError(
                "a sketch or a prior", "both", "Drop either: the generator of a prior is another than a sketch's."
            )
        if not (self.count_weight == 0 or 1e-3 <= self.count_weight <= 10):
            raise ConfigError("a count_weight from 0.001 to 10, or 0", f"{self.count_weight}", "Correct the option.")

    @property
    def schedule(self) -> tuple[int, int]:
        """Rounds of a run, and epochs between two of them (T and J of the paper)."""
        rounds, epochs = (2, 10) if self.prior else (self.images_per_class, max(1, 500 // self.images_per_class))
        return self.rounds or rounds, self.epochs or epochs

    @property
    def steps_of_a_run(self) -> int:
        return self.schedule[0] * self.steps

    @property
    def releases(self) -> int:
        return self.runs * self.steps_of_a_run


@register
class Psg(SampledSet, Synthesizer):
    """Noisy clipped gradients over Poisson samples, matched by a small set of images."""

    name: ClassVar[str] = "psg"
    summary: ClassVar[str] = "a few images per class on which a network has the noisy gradients of the private ones"
    paper: ClassVar[str] = "Chen et al. 2022"
    Config: ClassVar[type] = PsgConfig
    published_source: ClassVar[str] = "Chen et al. 2022, code: Renyi bound for Poisson samples, by Opacus"
    published_construction: ClassVar[Mapping[str, Any]] = {**SampledSet.published_construction, "count_weight": 0.0}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        # For two CPU cores: a hundredth of the steps, so longer ones, and a narrow network.
        "small": {"runs": 40, "rounds": 4, "steps": 5, "epochs": 10, "width": 32, "pixel_rate": 1.0},
    }

    def terms(self, config: PsgConfig, facts: PublicFacts) -> GradientTerms:
        return replace(super().terms(config, facts), total_weight=config.count_weight * config.clip_norm)

    def forecast(self, config: PsgConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        spec, sensitivity = facts.spec, facts.sensitivity(self.terms(config, facts).row_norm)
        network = ConvNet(spec, torch.Generator(), width=config.width)
        numbers = sum(value.numel() for value in network.parameters())
        # Clipped gradients of natural images agree by about a third; what is matched is a sum over all releases.
        signal = config.expected_batch * config.clip_norm / 3 * math.sqrt(config.releases)
        counts = ", each with a noisy count of every class," if config.count_weight else ""
        rounds, epochs = config.schedule
        images = spec.num_classes * config.images_per_class
        passes = 3 * config.expected_batch + 9 * images + 3 * images * epochs / config.steps * (rounds - 1) / rounds
        # All images are moved in one step, whose second derivatives keep about twenty maps of each layer.
        maps = 20 * 4 * images * config.width * spec.height * spec.width * 21 // 16
        of_steps = Forecast(
            signal_to_noise=signal / (noise_multiplier * sensitivity * math.sqrt(numbers)),
            seconds=10 + config.releases * (passes * 2 * multiplications(config.width, spec) / CPU_SPEED),
            megabytes=(facts.declared_size * spec.num_values + 100 * numbers + maps) / 1e6 + 400,
            released=f"{config.releases:,} noisy mean gradients of {numbers:,} weights{counts} over secret samples of "
            f"about {config.expected_batch} images; {facts.change} moves a sum by at most {shown(sensitivity)}",
        )
        return self._forecast_then(config, facts, noise_multiplier, of_steps)

    def fit(self, config: PsgConfig, images: Images, context: FitContext) -> FixedImages:
        assert isinstance(images, ImageSet)
        spec, draws = context.facts.spec, context.generator("psg networks")
        private = ClippedGradients(images, self.terms(config, context.facts), device=context.device)
        network = ConvNet(spec, draws, width=config.width)
        gradients = PerSampleGradients(network, losses=standardised_losses(config.standard), replayed=True)
        made = start(config, spec, context.generator("psg images"))
        if isinstance(made, FreePixels):
            self._begin(config, images, context, made)
        matching = matching_of(config, network, made, labels_of(spec, config.images_per_class, context.device))
        both = nn.ModuleDict({"set": made, "network": network})
        counts = NoisyCounts.of(private.terms, context, spec.num_classes) if config.count_weight else None
        kept = (both, matching.optimiser, draws, {} if counts is None else {"counts": counts.sums})
        for step in self.steps_to_go(config, context, DOING, CHECKPOINT_EVERY, "set", *kept):
            place = step % config.steps_of_a_run + 1
            if place == 1:
                restart(network, draws)
            matching.match(*released(private, gradients, counts, context, step + 1))
            if place % config.steps == 0 and place < config.steps_of_a_run:
                matching.train(config.schedule[1], draws)
            if (step + 1) % HISTORY_EVERY == 0:
                context.history("matching distance", step + 1, float(matching.distance))
        return FixedImages.of(spec, config.standard.undone(made()))


def released(
    private: ClippedGradients,
    gradients: PerSampleGradients,
    counts: NoisyCounts | None,
    context: FitContext,
    releases: int,
) -> tuple[list[Tensor], Tensor | None]:
    """A noisy mean gradient and, by all counts so far, how many images of a class there are, of an even share."""
    if counts is None:
        return private.release(gradients, context.door, context.noise_multiplier), None
    found, more = private.release_with_counts(gradients, context.door, context.noise_multiplier)
    return found, counts.shares_after(more, releases)


def start(config: PsgConfig, spec: ImageSpec, draws: torch.Generator) -> FreePixels | GeneratedImages:
    """The set before anything was released: noise, or what an untrained generator makes of its codes."""
    if not config.prior:
        return FreePixels(spec, config.images_per_class, config.standard, draws)
    return GeneratedImages(
        spec, config.images_per_class, config.standard, draws, latent_size=config.latent_size, channels=config.channels
    )


def matching_of(
    config: PsgConfig, network: nn.Module, made: FreePixels | GeneratedImages, labels: Tensor
) -> GradientMatching:
    optimiser: torch.optim.Optimizer
    if config.prior:
        optimiser = torch.optim.Adam(made.parameters(), lr=config.prior_rate, capturable=labels.is_cuda)
    else:
        optimiser = torch.optim.SGD(made.parameters(), lr=config.pixel_rate, momentum=config.pixel_momentum)
    return GradientMatching(
        network, made, labels, optimiser, network_rate=config.network_rate, batch=config.network_batch
    )
