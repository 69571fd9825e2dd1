"""A generator that learns from private teachers what to change in its images, through released values alone.

Together: all teachers look at the same images. What each of them wants is one row, whatever the number of images; the
rows are bounded, summed and released with noise. In turn, as in the paper: one teacher a step, and what it wants of
each image is a row; the rows are bounded and released with noise. Teachers keep their state either way: it is a
function of their own shard, of released values and of public draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from veilset.engines.checkpointing import Checkpoints, keep, restore
from veilset.engines.critic_training import Fakes, PooledFakes, Reading
from veilset.engines.training_steps import faded
from veilset.engines.weight_average import WeightAverage
from veilset.nets.frequencies import LowFrequencies
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.spectral_generators import SpectralGenerator, coin_flips
from veilset.privacy.sampling import Draw

NAME = "generator"
POOL_AT_ONCE = 512
"""Images of the pool that the generator makes in one pass: classes may be many."""
Lesson = Callable[[int], tuple[Tensor, Tensor]]
"""Step -> generated images, with their graph, and the released gradient of the loss in them."""
Watch = Callable[[int, Tensor], None]
"""Is shown a step and its rows before they are bounded: private, for the owner's history."""


class Teachers(Protocol):
    """Vault side: one private network for each shard."""

    def train(self, fakes: Fakes, steps: int, which: Tensor | None = None) -> None: ...

    def image_gradients(
        self, images: Tensor, labels: Tensor, which: Tensor | None = None, of: Reading | None = None
    ) -> Tensor:
        """Of the generator's loss, (teachers, n, channels, height, width), or what `of` makes of that.

        Each row depends on its own shard alone.
        """

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Together:
    """One noisy sum of what all teachers want, in few coarse numbers."""

    generator: UpsamplingGenerator
    teachers: Teachers
    frequencies: LowFrequencies
    images: int
    """Of a release."""
    pool: int
    """Generated images of each class that teachers learn from before a release."""
    teacher_steps: int
    warm_up: int
    """Steps of the teachers before the first release, on top."""
    release: Callable[[Tensor], Tensor]
    """Rows (teachers, numbers), private -> their noisy sum, (numbers,)."""
    watch: Watch
    draws: torch.Generator

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        classes = torch.arange(self.generator.spec.num_classes, device=self.draws.device)
        with torch.no_grad():
            pieces = classes.repeat_interleave(self.pool).split(POOL_AT_ONCE)
            pool = torch.cat([self.generator.sample(labels, self.draws) for labels in pieces])
        fakes = PooledFakes(pool.unflatten(0, (-1, self.pool)))
        self.teachers.train(fakes, self.teacher_steps + (self.warm_up if step == 0 else 0))
        images, labels = _batch(self.generator, self.images, self.draws)
        wanted = self.teachers.image_gradients(images.detach(), labels, of=self.frequencies.of).flatten(1)
        self.watch(step, wanted)
        released = self.release(wanted).reshape(self.images, -1)
        return images, self.frequencies.images(released.to(images))


@dataclass(frozen=True, kw_only=True)
class InTurn:
    """One teacher a step; what it wants of each image, each with noise of its own (Chen et al. 2020, algorithm 1)."""

    generator: SpectralGenerator
    teachers: Teachers
    images: int
    teacher_steps: int
    turn: Callable[[int], Draw]
    """Whose turn it is in a step."""
    release: Callable[[Tensor, Draw], Tensor]
    """Rows (images, numbers), private -> with noise, in the same shape."""
    watch: Watch
    draws: torch.Generator

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        self.generator.iterate(self.teacher_steps + 1)  # the paper's code does so in every forward pass
        turn = self.turn(step)
        self.teachers.train(GeneratedFakes(self.generator), self.teacher_steps, turn.indices)
        images, labels = _batch(self.generator, self.images, self.draws)
        wanted = self.teachers.image_gradients(images.detach(), labels, turn.indices)[0].flatten(1)
        self.watch(step, wanted)
        return images, self.release(wanted, turn).reshape(images.shape).to(images)


@dataclass(frozen=True)
class GeneratedFakes:
    """Fakes made for every image of a batch anew."""

    generator: SpectralGenerator

    @property
    def numbers(self) -> int:
        return self.generator.latent_size

    def __call__(self, labels: Tensor, chances: Tensor) -> Tensor:
        images: Tensor = self.generator(coin_flips(chances).flatten(0, 1), labels.flatten())
        return images.unflatten(0, labels.shape)


@dataclass(frozen=True, kw_only=True)
class Effort:
    steps: int
    """Releases."""
    learning_rate: float
    fading: bool
    """Whether the learning rate falls to zero, along half a cosine."""
    betas: tuple[float, float]
    average: float
    """Decay of the average over weights."""
    checkpoint_every: int


def teach(
    generator: nn.Module,
    teachers: Teachers,
    lesson: Lesson,
    effort: Effort,
    *,
    last_after: Callable[[int], int],
    draws: torch.Generator,
    checkpoints: Checkpoints,
    progress: Callable[[int, int], None],
) -> None:
    """Trains `generator` and puts the average of its weights in place.

    Args:
        last_after: the number of steps after which training ends, where so many are already done.
    """
    optimiser = torch.optim.Adam(generator.parameters(), lr=effort.learning_rate, betas=effort.betas, fused=True)
    average = WeightAverage(list(generator.parameters()), effort.average)
    averages = average.tensors()
    state = teachers.state_dict()
    first = restore(checkpoints, NAME, generator, optimiser, draws, {**averages, **_named(state)})
    teachers.load_state_dict(state)
    del state  # all teachers may be gigabytes
    generator.train()
    last = last_after(first)
    progress(first, last)

    def keep_after(step: int) -> None:
        keep(checkpoints, NAME, step, generator, optimiser, draws, {**averages, **_named(teachers.state_dict())})

    for step in range(first, last):
        for group in optimiser.param_groups:
            group["lr"] = effort.learning_rate * faded(step / effort.steps if effort.fading else 0.0)
        images, gradient = lesson(step)
        optimiser.zero_grad()
        images.backward(gradient)  # type: ignore[no-untyped-call]
        optimiser.step()
        average.update()
        if (step + 1) % effort.checkpoint_every == 0 or step + 1 == last:
            keep_after(step + 1)
        progress(step + 1, last)
    average.put_in_place()
    generator.eval()


def _batch(
    generator: UpsamplingGenerator | SpectralGenerator, number: int, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Generated images of classes drawn evenly, and these."""
    labels = torch.randint(generator.spec.num_classes, (number,), generator=draws, device=draws.device)
    return generator.sample(labels, draws), labels


def _named(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"teachers {name}": value for name, value in state.items()}
