"""Training a generator so that the mean features of its images are those of a release. Open side: costs no privacy.

The loss of a class is the inner product of two independent estimates of (mean feature - released mean), from the two
halves of its images. Its expectation is the squared distance of the means and nothing else; the square of one estimate
would add the variance of the features, and a generator lowers that by making all its images alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.compilation import fused_on_cuda
from veilset.engines.checkpointing import Checkpoints, keep, restore
from veilset.engines.cuda_graphs import GraphedStep
from veilset.engines.weight_average import WeightAverage
from veilset.nets.feature_bank import Bank
from veilset.nets.generators import UpsamplingGenerator

CLASSES_PER_STEP = 40
WARM_UP = 100
AVERAGE = 0.999
BETAS = (0.5, 0.99)


@dataclass(frozen=True)
class Target:
    """Released mean features of every class, (classes, networks, length), and how much they count."""

    bank: Bank
    means: Tensor
    weight: float
    """Share of the budget: with Gaussian noise the likelihood weighs squared distances by 1 / noise variance."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    steps: int
    images_per_class: int
    """Of a step; even, because they are split into two halves."""
    networks_per_step: int
    learning_rate: float
    checkpoint_every: int


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Random streams of one training: `draws` on its device for latents and jitter, `order` on the CPU for choices."""

    draws: torch.Generator
    order: torch.Generator


def match(
    generator: UpsamplingGenerator,
    targets: Sequence[Target],
    effort: Effort,
    *,
    streams: Streams,
    checkpoints: Checkpoints,
    name: str,
    progress: Callable[[int, int], None],
) -> UpsamplingGenerator:
    """Trains `generator` on its device and returns it with the average of its weights in place."""
    return _Matching(generator, targets, effort, streams).run(checkpoints, name, progress)


class _Matching:
    def __init__(
        self,
        generator: UpsamplingGenerator,
        targets: Sequence[Target],
        effort: Effort,
        streams: Streams,
    ) -> None:
        self.generator, self.targets, self.effort, self.streams = generator, targets, effort, streams
        device = next(generator.parameters()).device
        self.device, self.num_classes = device, generator.spec.num_classes
        generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        fast = device.type == "cuda"
        self.rate = torch.tensor(effort.learning_rate, device=device)
        self.optimiser = torch.optim.Adam(
            generator.parameters(), lr=self.rate, betas=BETAS, fused=True, capturable=fast
        )  # fmt: skip
        self.images_of = fused_on_cuda(generator)
        self.average = WeightAverage(list(generator.parameters()), AVERAGE)
        self.take_step = GraphedStep(self.step, self.choices(), [streams.draws])

    def run(self, checkpoints: Checkpoints, name: str, progress: Callable[[int, int], None]) -> UpsamplingGenerator:
        steps = self.effort.steps
        first = self._restore(checkpoints, name)
        self.generator.train()
        progress(first, steps)
        for step in range(first, steps):
            share = min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
            self.rate.fill_(self.effort.learning_rate * share)
            self.take_step(*self.choices())
            if (step + 1) % self.effort.checkpoint_every == 0 or step + 1 == steps:
                self._keep(checkpoints, name, step + 1)
            progress(step + 1, steps)
        with torch.no_grad():
            for weight, value in zip(self.generator.parameters(), self.average.values, strict=True):
                weight.copy_(value)
        return self.generator.eval()

    def choices(self) -> list[Tensor]:
        """Classes of a step, and of each target the numbers of its networks."""
        order = self.streams.order
        classes = torch.randperm(self.num_classes, generator=order)[:CLASSES_PER_STEP]
        networks = [
            torch.randperm(target.bank.count, generator=order)[: self.effort.networks_per_step]
            for target in self.targets
        ]
        return [choice.to(self.device, non_blocking=True) for choice in (classes, *networks)]

    def step(self, classes: Tensor, *networks: Tensor) -> None:
        loss = self.loss(classes, networks)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.average.update()

    def loss(self, classes: Tensor, networks: Sequence[Tensor]) -> Tensor:
        generator, draws = self.generator, self.streams.draws
        labels = classes.repeat_interleave(self.effort.images_per_class)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            images = self.images_of(generator.latents(len(labels), draws), labels)
        images = generator.jitter(images.float(), draws)
        return torch.stack(
            [
                target.weight * distance(target.bank.soft(images, which), target.means[classes][:, which])
                for target, which in zip(self.targets, networks, strict=True)
            ]
        ).sum()

    def _keep(self, checkpoints: Checkpoints, name: str, step: int) -> None:
        keep(checkpoints, name, step, self.generator, self.optimiser, self.streams.draws)
        values = {str(place): value for place, value in enumerate(self.average.values)}
        checkpoints.save(f"{name} average", {**values, "updates": self.average.updates})
        checkpoints.save(f"{name} order", {"order": self.streams.order.get_state()})

    def _restore(self, checkpoints: Checkpoints, name: str) -> int:
        average, order = checkpoints.load(f"{name} average"), checkpoints.load(f"{name} order")
        if average is None or order is None:
            return 0
        self.average.updates.copy_(average["updates"])
        for place, value in enumerate(self.average.values):
            value.copy_(average[str(place)])
        self.streams.order.set_state(order["order"])
        first = restore(checkpoints, name, self.generator, self.optimiser, self.streams.draws)
        self.optimiser.param_groups[0]["lr"] = self.rate  # loading replaced it by a copy nobody would change
        return first


def distance(features: Tensor, means: Tensor) -> Tensor:
    """Unbiased squared distance of mean features, averaged over networks and summed over classes.

    Args:
        features: (classes x images, networks, length), the images of a class side by side.
        means: (classes, networks, length).
    """
    classes, networks, length = means.shape
    halves = features.reshape(classes, 2, -1, networks, length).mean(2) - means[:, None]
    return (halves[:, 0] * halves[:, 1]).sum() / networks
