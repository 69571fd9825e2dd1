"""Training a generator so that the mean features of its images are those of a release. Open side: costs no privacy.

The gradient of a squared distance of means is, image by image, the gradient of its features along the residual: mean
feature - released mean. A step shows few images, so their mean is mostly chance; and an image must not help to estimate
the residual it is moved along, because that adds the variance of the features to the loss, which a generator lowers by
making all its images alike. So an image's residual is estimated from the other images of its class in this step and
from those of earlier steps, which are remembered: the generator changes slowly, and every step sees new images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.compilation import fused_on_cuda
from veilset.engines.checkpointing import Checkpoints, keep, restore
from veilset.engines.cuda_graphs import GraphedStep
from veilset.engines.training_steps import faded
from veilset.engines.weight_average import WeightAverage
from veilset.nets.feature_bank import Bank
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.half_precision import half_precision

WARM_UP = 100
AVERAGE = 0.999
REMEMBERED = 0.9
"""Weight of what is remembered of a residual against what a step shows."""
HORIZON = 500.0
"""Steps after which a third of that weight is left: the generator has changed since."""
BETAS = (0.5, 0.99)


@dataclass(frozen=True)
class Target:
    """Released mean features of every group, (groups, networks, length), and how much they count.

    A group is a class, or a kind of images in a class.
    """

    bank: Bank
    means: Tensor
    weight: float
    """Share of the budget: with Gaussian noise the likelihood weighs squared distances by 1 / noise variance."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    steps: int
    groups_per_step: int
    images_per_group: int
    """Of a step; at least two, because an image needs another one."""
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
        self.device = device
        generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        fast = device.type == "cuda"
        self.rate = torch.tensor(effort.learning_rate, device=device)
        self.optimiser = torch.optim.Adam(
            generator.parameters(), lr=self.rate, betas=BETAS, fused=True, capturable=fast
        )  # fmt: skip
        self.images_of = fused_on_cuda(generator)
        self.average = WeightAverage(list(generator.parameters()), AVERAGE)
        self.residuals = [torch.zeros_like(target.means) for target in targets]
        # When a residual was last estimated, in steps: -inf is never, and nothing is remembered of it.
        self.seen = [torch.full((*target.means.shape[:2], 1), -torch.inf, device=device) for target in targets]
        self.now = torch.zeros((), device=device)
        self.take_step = GraphedStep(self.step, self.choices(), [streams.draws])

    def run(self, checkpoints: Checkpoints, name: str, progress: Callable[[int, int], None]) -> UpsamplingGenerator:
        steps = self.effort.steps
        first = self._restore(checkpoints, name)
        self.generator.train()
        progress(first, steps)
        for step in range(first, steps):
            self.rate.fill_(self.effort.learning_rate * (min(1.0, (step + 1) / WARM_UP) * faded(step, steps)))
            self.take_step(*self.choices())
            if (step + 1) % self.effort.checkpoint_every == 0 or step + 1 == steps:
                self._keep(checkpoints, name, step + 1)
            progress(step + 1, steps)
        self.average.put_in_place()
        return self.generator.eval()

    def choices(self) -> list[Tensor]:
        """Groups of a step, and of each target the numbers of its networks."""
        order = self.streams.order
        groups = torch.randperm(self.generator.num_groups, generator=order)[: self.effort.groups_per_step]
        networks = [
            torch.randperm(target.bank.count, generator=order)[: self.effort.networks_per_step]
            for target in self.targets
        ]
        return [choice.to(self.device, non_blocking=True) for choice in (groups, *networks)]

    def step(self, groups: Tensor, *networks: Tensor) -> None:
        loss = self.loss(groups, networks)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.average.update()
        self.now += 1  # on the device, as a number of the host would be frozen into a CUDA graph

    def loss(self, groups: Tensor, networks: Sequence[Tensor]) -> Tensor:
        generator, draws = self.generator, self.streams.draws
        labels = groups.repeat_interleave(self.effort.images_per_group)
        with half_precision(self.device):
            images = self.images_of(generator.latents(len(labels), draws), labels)
        images = generator.jitter(images.float(), draws)
        return torch.stack(
            [self._along_residuals(place, images, groups, which) for place, which in enumerate(networks)]
        ).sum()

    def _along_residuals(self, place: int, images: Tensor, groups: Tensor, which: Tensor) -> Tensor:
        """A loss with the gradient of the squared distance to a target, averaged over networks, summed over groups."""
        target, cells = self.targets[place], (groups[:, None], which)
        features = target.bank.soft(images, which).unflatten(0, (len(groups), -1))
        residuals, seen = self.residuals[place], self.seen[place]
        with torch.no_grad():
            means, old = target.means[cells], residuals[cells]
            keep = REMEMBERED * torch.exp((seen[cells] - self.now) / HORIZON)
            residuals[cells] = keep * old + (1 - keep) * (features.mean(1) - means)
            seen[cells] = self.now
            along = keep[:, None] * old[:, None] + (1 - keep[:, None]) * (_mean_of_others(features) - means[:, None])
        return 2 * target.weight * (features * along).mean(1).sum() / len(which)

    def _keep(self, checkpoints: Checkpoints, name: str, step: int) -> None:
        keep(checkpoints, name, step, self.generator, self.optimiser, self.streams.draws, self._state())

    def _restore(self, checkpoints: Checkpoints, name: str) -> int:
        state = self._state()
        first = restore(checkpoints, name, self.generator, self.optimiser, self.streams.draws, state)
        self.streams.order.set_state(state["order"])
        self.optimiser.param_groups[0]["lr"] = self.rate  # loading replaced it by a copy nobody would change
        return first

    def _state(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside generator and optimiser."""
        lists = {"residuals": self.residuals, "seen": self.seen}
        numbered = {f"{name} {place}": value for name, values in lists.items() for place, value in enumerate(values)}
        return {**self.average.tensors(), **numbered, "now": self.now, "order": self.streams.order.get_state()}


def _mean_of_others(features: Tensor) -> Tensor:
    """(groups, images, ...) -> for every image the mean of the other images of its group."""
    count = features.shape[1]
    return (features.sum(1, keepdim=True) - features) / (count - 1)
