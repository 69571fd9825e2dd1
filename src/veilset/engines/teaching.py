"""A generator that learns from private teachers through one noisy sum of what they want changed in its images.

All teachers look at the same images. What each of them wants is one row, whatever the number of images; the rows are
bounded, summed and released with noise, and the released sum is all the generator ever sees. Teachers keep their state:
it is a function of their own shard, of released values and of public draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from veilset.engines.checkpointing import Checkpoints, keep, restore
from veilset.engines.critic_training import Fakes, PooledFakes
from veilset.engines.weight_average import WeightAverage
from veilset.nets.frequencies import LowFrequencies
from veilset.nets.generators import UpsamplingGenerator

BETAS = (0.5, 0.99)
AVERAGE = 0.99
NAME = "generator"
Release = Callable[[Tensor], Tensor | None]
"""Rows (teachers, numbers), private -> their noisy sum, (numbers,), or None where no more may be released."""


class Teachers(Protocol):
    """Vault side: one private network for each shard."""

    def train(self, fakes: Fakes, steps: int) -> None: ...

    def image_gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        """(teachers, n, channels, height, width): of the generator's loss; each row depends on its own shard alone."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Effort:
    steps: int
    """Releases."""
    images: int
    """Of a release."""
    pool: int
    """Generated images of each class that teachers learn from before a release."""
    teacher_steps: int
    warm_up: int
    """Steps of the teachers before the first release, on top."""
    learning_rate: float
    checkpoint_every: int


def teach(
    generator: UpsamplingGenerator,
    teachers: Teachers,
    frequencies: LowFrequencies,
    effort: Effort,
    *,
    release: Release,
    draws: torch.Generator,
    checkpoints: Checkpoints,
    progress: Callable[[int, int], None],
) -> UpsamplingGenerator:
    """Trains `generator` and returns it with the average of its weights in place.

    Args:
        release: of `Release`; where it gives nothing, because a crash cost what was charged ahead, training ends.
    """
    optimiser = torch.optim.Adam(generator.parameters(), lr=effort.learning_rate, betas=BETAS, fused=True)
    average = WeightAverage(list(generator.parameters()), AVERAGE)
    state = {**{f"average {n}": value for n, value in enumerate(average.values)}, "updates": average.updates}
    kept = {**state, **{f"teachers {name}": value for name, value in teachers.state_dict().items()}}
    first = restore(checkpoints, NAME, generator, optimiser, draws, kept)
    teachers.load_state_dict({name[9:]: value for name, value in kept.items() if name.startswith("teachers ")})
    generator.train()
    progress(first, effort.steps)
    for step in range(first, effort.steps):
        for group in optimiser.param_groups:
            group["lr"] = effort.learning_rate * 0.5 * (1 + math.cos(math.pi * step / effort.steps))
        if not _step(generator, teachers, frequencies, effort, optimiser, step, release, draws):
            break
        average.update()
        if (step + 1) % effort.checkpoint_every == 0:
            more = {**state, **{f"teachers {name}": value for name, value in teachers.state_dict().items()}}
            keep(checkpoints, NAME, step + 1, generator, optimiser, draws, more)
        progress(step + 1, effort.steps)
    with torch.no_grad():
        for weight, value in zip(generator.parameters(), average.values, strict=True):
            weight.copy_(value)
    return generator.eval()


def _step(
    generator: UpsamplingGenerator,
    teachers: Teachers,
    frequencies: LowFrequencies,
    effort: Effort,
    optimiser: torch.optim.Optimizer,
    step: int,
    release: Release,
    draws: torch.Generator,
) -> bool:
    """Whether there was a release to learn from."""
    spec, device = generator.spec, draws.device
    classes = torch.arange(spec.num_classes, device=device)
    with torch.no_grad():
        pool = generator.sample(classes.repeat_interleave(effort.pool), draws).unflatten(0, (-1, effort.pool))
    teachers.train(PooledFakes(pool), effort.teacher_steps + (effort.warm_up if step == 0 else 0))
    labels = torch.randint(spec.num_classes, (effort.images,), generator=draws, device=device)
    images = generator.sample(labels, draws)
    wanted = frequencies.of(teachers.image_gradients(images.detach(), labels))
    noisy = release(wanted.flatten(1))
    if noisy is None:
        return False
    optimiser.zero_grad()
    images.backward(frequencies.images(noisy.reshape(effort.images, -1).to(images)))
    optimiser.step()
    return True
