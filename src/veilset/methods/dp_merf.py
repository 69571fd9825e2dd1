"""DP-MERF: one private mean embedding with random Fourier features, then a generator that matches it.

Paper: Harder, Adamczewski and Park, "DP-MERF: Differentially Private Mean Embeddings with Random Features" (2021).
Released, once: for every class the sum of phi(x) = [cos(Wx), sin(Wx)] / sqrt(frequencies) and, as one more coordinate,
a weighted record count, with Gaussian noise. Everything after that is post-processing.
Why the bound holds: |phi(x)| = 1 and the kernel normalises it again; a record enters one class only; with the count of
weight w its row has norm sqrt(1 + w^2). W comes from a public seed and the kernel width from the image shape, so
nothing about the features depends on the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veilset.data.load import IN_MEMORY
from veilset.data.spec import Images, ImageSpec
from veilset.engines.checkpointing import keep, read_checkpoint, restore
from veilset.engines.feature_sums import sum_by_label
from veilset.engines.option_checks import at_least_one, option, positive
from veilset.engines.published_accounting import calibrate_classic_gaussian, classic_gaussian_epsilon
from veilset.engines.targets import usable_counts
from veilset.engines.threads import one_thread
from veilset.errors import ConfigError
from veilset.methods.base import FitContext, Forecast, PublicFacts, Synthesizer, register
from veilset.nets.generators import ConvGenerator
from veilset.privacy.bounds import Adjacency, Bounded, normalise_rows, with_total
from veilset.privacy.claim import Published, shown
from veilset.privacy.events import NOTHING, Event, Gaussian
from veilset.randomness import initialise, named_generator

CHECKPOINT_EVERY = 500
HISTORY_EVERY = 50
CLASSES_PER_STEP = 50


@dataclass(frozen=True, kw_only=True)
class DpMerfConfig:
    """Settings of DP-MERF."""

    frequencies: int = option(500, "of the random features, two for each; paper: 500")
    width_per_value: float = option(
        0.134, "squared kernel width for each pixel value; paper: 105 for 784 of them in [0, 1]"
    )
    total_weight: float = option(0.25, "the count's share of the row: costs 3 % more noise")
    feature_seed: int = option(0, "of the random frequencies; public")
    latent_size: int = option(5, "random numbers behind an image; paper")
    hidden_size: int = option(200, "of the generator; paper")
    map_channels: int = option(16, "of the generator, at its smallest map; paper")
    steps: int = option(
        2000, "of the generator; paper: 3000, of which two thirds keep a fit on two CPU cores within a minute or so"
    )
    images_per_step: int = option(100, "that the generator is shown by; paper")
    learning_rate: float = option(0.01, "of the generator; paper")
    decay: float = option(0.59, "of the learning rate over all steps; paper: 0.9 an epoch, five epochs")

    def __post_init__(self) -> None:
        at_least_one(self, "frequencies", "latent_size", "hidden_size", "map_channels", "steps", "images_per_step")
        positive(self, "width_per_value", "learning_rate", "decay")
        if not 0 <= self.total_weight <= 10:
            raise ConfigError("total_weight from 0 to 10", f"{self.total_weight}", "0 leaves the count out.")


class FourierFeatures(nn.Module):
    """phi(x): fixed random frequencies from a public seed; the Gaussian kernel's width comes from the image shape."""

    def __init__(self, config: DpMerfConfig, spec: ImageSpec) -> None:
        super().__init__()
        draw = torch.randn(
            spec.num_values, config.frequencies, generator=named_generator(config.feature_seed, "fourier-frequencies")
        )
        frequencies = draw.double() / math.sqrt(config.width_per_value * spec.num_values)
        self.register_buffer("frequencies", _summable(frequencies))
        self.frequencies: Tensor

    def forward(self, images: Tensor) -> Tensor:
        return self._of_phase(images.flatten(1) @ self.frequencies.to(images.dtype))

    def exact(self, images: Tensor) -> Tensor:
        """The features of 8-bit images, to the last bit independent of their place in the batch and of the library."""
        levels = (images.flatten(1).double() * 255).round()
        return self._of_phase(levels @ self.frequencies / 255)

    @staticmethod
    def _of_phase(phase: Tensor) -> Tensor:
        return torch.cat([phase.cos(), phase.sin()], dim=1) / math.sqrt(phase.shape[1])


def _summable(frequencies: Tensor) -> Tensor:
    """Frequencies rounded so that every partial sum of level (0 to 255) x frequency is exact in float64.

    Products and sums are then integers below 2^53 on one grid: any order of summation gives the same bits. Without it
    the row of a record could change in its last bit with its place in the batch, and removing one record, which moves
    all others by one place, could move the sum further than its bound.
    """
    largest = 255 * float(frequencies.abs().sum(dim=0).max())
    grid = 2.0 ** (math.frexp(largest)[1] - 52)
    return (frequencies / grid).round() * grid


@register
class DpMerf(Synthesizer):
    """Single release of class-wise mean embeddings; unit of privacy: one record (or one user with a cap)."""

    name: ClassVar[str] = "dp-merf"
    summary: ClassVar[str] = "one noisy mean embedding of random Fourier features, matched by a generator"
    paper: ClassVar[str] = "Harder et al. 2021"
    Config: ClassVar[type] = DpMerfConfig
    assumptions: ClassVar[tuple[str, ...]] = ("the Fourier frequencies come from a public seed, not from the data",)
    streams: ClassVar[bool] = True
    published_adjacency: ClassVar[Adjacency] = Adjacency.REPLACE
    published_defaults: ClassVar[Mapping[str, Any]] = {"steps": 3000}
    published_construction: ClassVar[Mapping[str, Any]] = {"total_weight": 0.0}  # the paper takes N as public

    def events(self, config: DpMerfConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Gaussian(noise_multiplier)

    def reserve(self, config: DpMerfConfig, facts: PublicFacts, noise_multiplier: float) -> Event:
        # A second draw would double mu^2. The release is on disk moments after it is charged, so none is set aside.
        return NOTHING

    def published_noise(self, config: DpMerfConfig, facts: PublicFacts, epsilon: float, delta: float) -> float:
        return calibrate_classic_gaussian(epsilon, delta)

    def published_claim(
        self, config: DpMerfConfig, facts: PublicFacts, noise_multiplier: float, delta: float
    ) -> Published:
        epsilon = classic_gaussian_epsilon(noise_multiplier, 1, delta)
        return Published(epsilon, "conservative", "Harder et al. 2021: Renyi bound with the classic conversion")

    def forecast(self, config: DpMerfConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
        sensitivity = facts.sensitivity(math.hypot(1.0, config.total_weight))
        count = " and a count" if config.total_weight else ""
        per_class = facts.declared_size / facts.spec.num_classes
        # Mean embeddings of natural image classes have a length of about one half at this kernel width.
        signal, noise = per_class / 2, noise_multiplier * sensitivity * math.sqrt(2 * config.frequencies)
        work = (
            facts.spec.num_values
            * config.frequencies
            * (facts.declared_size + 6 * config.steps * config.images_per_step)
        )
        held = min(facts.declared_size * facts.spec.num_values, IN_MEMORY)
        return Forecast(
            signal_to_noise=signal / noise,
            seconds=5 + 2 * work / 2e10,
            megabytes=(held + 64 * 500 * config.frequencies) / 1e6 + 300,
            released=f"one noisy sum of {2 * config.frequencies} bounded features{count} for each class; "
            f"{facts.change} moves it by at most {shown(sensitivity)}",
        )

    def build(self, config: DpMerfConfig, spec: ImageSpec) -> ConvGenerator:
        return ConvGenerator(
            spec, latent_size=config.latent_size, hidden_size=config.hidden_size, map_channels=config.map_channels
        )

    def fit(self, config: DpMerfConfig, images: Images, context: FitContext) -> ConvGenerator:
        released = context.checkpoints.load("embedding")
        if released is None:
            released = {"sums": self._release(config, images, context)}
            context.checkpoints.save("embedding", released)
        with read_checkpoint("embedding"):
            sums = released["sums"].view(images.spec.num_classes, 2 * config.frequencies + bool(config.total_weight))
        targets = class_means(sums, config, context.facts).to(context.device)
        with one_thread():
            return self._train(config, images.spec, targets, context)

    def _release(self, config: DpMerfConfig, images: Images, context: FitContext) -> Tensor:
        features = FourierFeatures(config, images.spec).to(context.device)

        def rows_of(batch: Tensor) -> Bounded:
            rows = normalise_rows(features.exact(batch))
            return with_total(rows, config.total_weight) if config.total_weight else rows

        total = sum_by_label(
            images,
            rows_of,
            unit=context.facts.unit,
            rows_per_user=context.facts.rows_per_user,
            device=context.device,
            progress=lambda done, of: context.progress("measuring the images", done, of),
        )
        return context.door.release_sum(total, context.noise_multiplier)

    def _train(self, config: DpMerfConfig, spec: ImageSpec, targets: Tensor, context: FitContext) -> ConvGenerator:
        draws = context.generator("dp-merf latents")
        generator = self.build(config, spec).to(context.device)
        generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third faster on CPUs
        initialise(generator, context.generator("dp-merf weights"))
        optimiser = torch.optim.Adam(generator.parameters(), lr=config.learning_rate, fused=True)
        features = FourierFeatures(config, spec).to(context.device)
        first = restore(context.checkpoints, "generator", generator, optimiser, draws)
        generator.train()
        for step in range(first, config.steps):
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate * config.decay ** (step / config.steps)
            loss = matching_loss(generator, features, targets, config.images_per_step, draws)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if (step + 1) % HISTORY_EVERY == 0:
                context.history("matching loss", step + 1, float(loss.detach()))
            if (step + 1) % CHECKPOINT_EVERY == 0:
                keep(context.checkpoints, "generator", step + 1, generator, optimiser, draws)
            context.progress("training the generator", step + 1, config.steps)
        return generator.eval()

    def sample(self, model: nn.Module, labels: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(model, ConvGenerator)
        return model(model.latents(len(labels), generator), labels)


def class_means(sums: Tensor, config: DpMerfConfig, facts: PublicFacts) -> Tensor:
    """Mean embedding of each class from the noisy sums: divided by the noisy count, or by the declared size."""
    if not config.total_weight:
        return (sums / (facts.declared_size / facts.spec.num_classes)).float()
    counts = sums[:, -1:] / config.total_weight
    return (sums[:, :-1] / usable_counts(counts, facts.declared_size / facts.spec.num_classes)).float()


def matching_loss(
    generator: ConvGenerator, features: FourierFeatures, targets: Tensor, images: int, draws: torch.Generator
) -> Tensor:
    """Squared distance of generated and released mean embeddings, over classes (all of them if there are few)."""
    num_classes = len(targets)
    per_step = min(num_classes, CLASSES_PER_STEP)
    each = max(2, images // per_step)
    classes = torch.randperm(num_classes, generator=draws, device=draws.device)[:per_step]
    labels = classes.repeat_interleave(each)
    embedded = features(generator(generator.latents(len(labels), draws), labels))
    return (embedded.reshape(per_step, each, -1).mean(dim=1) - targets[classes]).square().sum() / per_step
