"""Training a stack of critics, each on its own shard, and what they want changed in generated images. Vault side.

A step of critic k depends on its own weights, its shard, its step and the generator, and on nothing of any other shard:
no sum runs over critics, batches are drawn by shard, and all critics take the same path in the same shapes, whether
their shards hold many images or none. What leaves here is private: `privacy` bounds it, sums it and adds noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from veilset.compilation import fused_on_cuda
from veilset.engines.critic_memory import bytes_of_one, spare_bytes
from veilset.engines.cuda_graphs import GraphedStep
from veilset.engines.shard_batches import ImageShards
from veilset.errors import ConfigError
from veilset.nets.critics import Critics, Ready

RATE = 1e-4
BETAS = (0.5, 0.9)
TINY = 1e-8
PENALTY = 10.0
DRIFT = 0.001
"""Keeps scores of real images near zero. In the code of GS-WGAN, not in its paper."""
WORKSPACE = {"cpu": 1 << 28, "cuda": 16 << 30}
"""Bytes for the critics that are in work at once, unless said otherwise."""
COPIES_OF_A_LOOK = 4
"""Of the gradients in all images, while critics are asked for them."""


class Fakes(Protocol):
    """Generated images for the critics' own batches."""

    @property
    def numbers(self) -> int:
        """How many uniform numbers an image takes."""

    def __call__(self, labels: Tensor, chances: Tensor) -> Tensor:
        """Labels (critics, n) and chances (critics, n, numbers) -> (critics, n, channels, height, width).

        An image must depend on its own label and chances alone: batch norm, say, would tie shards to each other.
        """


@dataclass(frozen=True)
class PooledFakes:
    """Fakes picked from one pool for all critics, (classes, images, channels, height, width).

    A generator often costs more than a critic; one pool a step makes its cost independent of the number of critics.
    """

    pool: Tensor

    @property
    def numbers(self) -> int:
        return 1

    def __call__(self, labels: Tensor, chances: Tensor) -> Tensor:
        return self.pool[labels, (chances[..., 0] * self.pool.shape[1]).long()]


Losses = Callable[[Critics, Ready, Tensor, Tensor, Tensor, Tensor], Tensor]
"""As `critic_losses`."""


Reading = Callable[[Tensor], Tensor]
"""Makes few numbers of the gradient in an image, (..., channels, height, width) -> (..., numbers); linear."""


class CriticStack:
    """One critic for every shard.

    Args:
        net: what a critic is.
        batch: images of a critic's step.
        draws: on any device; for the first weights, which are public.
        workspace: bytes for the critics that are in work at once.
        rate: learning rate.
    """

    def __init__(
        self,
        net: Critics,
        shards: ImageShards,
        *,
        batch: int,
        draws: torch.Generator,
        workspace: int | None = None,
        rate: float = RATE,
    ) -> None:
        self.net, self.shards, self.batch, self.device = net, shards, batch, shards.device
        self.rate = rate
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        spare = spare_bytes(net, shards.count, batch, self.device)
        self.workspace = min(WORKSPACE[self.device.type], spare // 2) if workspace is None else workspace
        self.at_once = min(shards.count, max(1, self.workspace // bytes_of_one(net, batch, self.dtype)))
        weights, vectors = (value.to(self.device) for value in net.draw(shards.count, draws))
        self.state = {
            "weights": weights,
            "vectors": vectors,
            "first moments": torch.zeros_like(weights),
            "second moments": torch.zeros_like(weights),
            "steps": torch.zeros(shards.count, dtype=torch.int64, device=self.device),
        }
        self.benches: dict[tuple[int, Losses], _Bench] = {}

    def train(self, fakes: Fakes, steps: int, which: Tensor | None = None, losses: Losses | None = None) -> None:
        """Takes `steps` steps of all critics, or of those numbered `which` (each at most once).

        Args:
            losses: those of WGAN-GP unless given.
        """
        for some, number in self._pieces(which, self.at_once):
            bench = self._bench(len(some), losses or critic_losses)
            for name, value in bench.state.items():
                torch.index_select(self.state[name], 0, some, out=value)
            for _ in range(steps):
                self._step(bench, some, fakes)
            for name, value in bench.state.items():
                self.state[name].index_copy_(0, some[:number], value[:number])

    def _step(self, bench: _Bench, which: Tensor, fakes: Fakes) -> None:
        drawn = self.shards.draw(which, bench.state["steps"], self.batch, 1 + fakes.numbers)
        with torch.no_grad():
            made = fakes(drawn.labels, drawn.chances[..., 1:])
        mix = drawn.chances[..., 0].float()
        bench.take_step(drawn.images, made.float(), drawn.labels, mix, self.shards.sizes[which] > 0)

    @torch.no_grad()
    def image_gradients(
        self, images: Tensor, labels: Tensor, which: Tensor | None = None, of: Reading | None = None
    ) -> Tensor:
        """Of the generator's loss -mean(score) of one batch for all, by critic: (critics, n, ...) in float32.

        Neither clipped nor summed. Zero for an empty shard; where a critic has left the finite numbers its gradient
        has too, and the kernel makes it zero. The singular vectors stay as training left them, so that a look changes
        nothing.

        Args:
            images: (n, channels, height, width), the same for every critic.
            labels: (n,).
            which: critics, each at most once; all unless given.
            of: what is read from these gradients; more critics than are looked at at once leave nothing else in memory.
        """
        which, of = self._numbers(which), of or _unchanged
        looks = []
        at_once = max(1, self.workspace // (COPIES_OF_A_LOOK * images.numel() * images.element_size()))
        for some, number in self._pieces(which, min(at_once, self.at_once)):
            ready = self.net.ready(self.state["weights"][some], self.state["vectors"][some], self.dtype)
            parts = zip(images.split(self.batch), labels.split(self.batch), strict=True)
            gradients = torch.cat([self.net.image_gradients(ready, *part) for part in parts], dim=1) / -len(images)
            trained = (self.shards.sizes[some] > 0)[:, None, None, None, None]
            looks.append(of(torch.where(trained, gradients, 0.0))[:number])
        return torch.cat(looks) if looks else of(torch.zeros(0, *images.shape, device=self.device))

    def state_dict(self) -> dict[str, Tensor]:
        """All that training changes, copied to the host: on a GPU there may be no room for a second one."""
        return {name: value.to("cpu", copy=True) for name, value in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where the stack that gave `state` stood."""
        shapes = {name: tuple(value.shape) for name, value in self.state.items()}
        found = {name: tuple(value.shape) for name, value in state.items()}
        if found != shapes:
            raise ConfigError(
                f"the state of critics of shapes {shapes}", f"{found}", "Use the settings it was made with."
            )
        for name, value in self.state.items():
            value.copy_(state[name])

    def redraw(self, draws: torch.Generator, which: Tensor | None = None) -> None:
        """New critics in the place of all, or of those numbered `which`: their first weights come from `draws`."""
        some = self._numbers(which)
        drawn = zip(("weights", "vectors"), self.net.draw(len(some), draws), strict=True)
        fresh = {name: value.to(self.device) for name, value in drawn}
        for name, value in self.state.items():
            value[some] = fresh.get(name, 0)

    def renew_adam(self) -> None:
        """Forgets what Adam knows; the critics keep their weights, and their shards draw from the first batch on."""
        for name in ("first moments", "second moments", "steps"):
            self.state[name].zero_()

    def _numbers(self, which: Tensor | None) -> Tensor:
        return torch.arange(self.shards.count, device=self.device) if which is None else which.to(self.device)

    def _pieces(self, which: Tensor | None, at_once: int) -> Iterator[tuple[Tensor, int]]:
        """Critics that are in work together, at most `at_once`, and how many of them count.

        The last piece repeats a critic where it would be short: all have one shape, so that one graph does for all.
        """
        which = self._numbers(which)
        if not len(which):
            return
        number = math.ceil(len(which) / at_once)
        size = math.ceil(len(which) / number)
        for some in which.split(size):
            yield torch.cat([some, some[-1:].expand(size - len(some))]), len(some)

    def _bench(self, size: int, losses: Losses) -> _Bench:
        if (size, losses) not in self.benches:
            self.benches[size, losses] = _Bench(self, size, losses)
        return self.benches[size, losses]


class _Bench:
    """Memory of its own for the critics in work, as a CUDA graph works at fixed addresses; they come and go."""

    def __init__(self, stack: CriticStack, size: int, losses: Losses) -> None:
        self.net, self.dtype, self.rate, self.losses = stack.net, stack.dtype, stack.rate, losses
        self.state = {
            name: torch.zeros_like(value[:1]).repeat_interleave(size, 0) for name, value in stack.state.items()
        }
        images = torch.zeros(size, stack.batch, *stack.net.spec.shape, device=stack.device)
        labels = torch.zeros(size, stack.batch, dtype=torch.int64, device=stack.device)
        example = [images, images, labels, images[:, :, 0, 0, 0], labels[:, 0] > 0]
        self.take_step = GraphedStep(self.step, example, [])

    def step(self, real: Tensor, fake: Tensor, labels: Tensor, mix: Tensor, trained: Tensor) -> None:
        weights, vectors = self.state["weights"], self.state["vectors"]
        vectors.copy_(self.net.iterated(weights, vectors))
        with torch.enable_grad():
            leaf = weights.detach().requires_grad_()
            ready = self.net.ready(leaf, vectors, self.dtype)
            loss = self.losses(self.net, ready, real, fake, labels, mix).sum()
            (gradients,) = torch.autograd.grad(loss, leaf)
        # Moments that never saw a gradient move nothing, so the critic of an empty shard stays as it was drawn.
        gradients = torch.where(trained[:, None], gradients, 0.0)
        self.state["steps"] += 1
        moments = (self.state[name] for name in ("first moments", "second moments", "steps"))
        adam(weights, gradients, *moments, self.rate)


def critic_losses(net: Critics, ready: Ready, real: Tensor, fake: Tensor, labels: Tensor, mix: Tensor) -> Tensor:
    """The loss of WGAN-GP of every critic, (critics,); their sum has every critic's own gradient.

    Args:
        real, fake: (critics, n, channels, height, width); a fake has the label of the real image at its place.
        mix: (critics, n), the share of the real image where the gradient is looked at.
    """
    of_real, of_fake = net.scores(ready, torch.cat([real, fake], 1), torch.cat([labels, labels], 1)).chunk(2, dim=1)
    between = torch.lerp(fake, real, mix[..., None, None, None])
    slopes = net.image_gradients(ready, between, labels).flatten(2).norm(dim=2)
    return (of_fake - of_real + PENALTY * (slopes - 1).square() + DRIFT * of_real.square()).mean(1)


@fused_on_cuda
def adam(
    weights: Tensor, gradients: Tensor, first: Tensor, second: Tensor, steps: Tensor, rate: float = RATE
) -> Tensor:
    """A step of Adam in place, with the number of steps of each row's own critic."""
    after_first, after_second = (1 - beta ** steps[:, None].double() for beta in BETAS)
    first.lerp_(gradients, 1 - BETAS[0])
    second.lerp_(gradients.square(), 1 - BETAS[1])
    length = (second / after_second.float()).sqrt() + TINY
    return weights.sub_(first / length * (rate / after_first).float())


def _unchanged(gradients: Tensor) -> Tensor:
    return gradients
