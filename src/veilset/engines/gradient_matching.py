"""A small set of images is moved until a network's gradient on it points where a released gradient points. Open side.

Everything here is computed from released gradients and public settings: no function takes a private image.
Reference: PSG (Chen et al. 2022); the distance is that of Zhao et al. 2021, "Dataset Condensation with Gradient
Matching", over rows of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value

from veilset.compilation import fused_on_cuda
from veilset.data.spec import ImageSpec
from veilset.engines.cuda_graphs import GraphedStep
from veilset.engines.training_steps import step_along
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.half_precision import half_on_cuda
from veilset.nets.image_sets import labels_of
from veilset.randomness import initialise

TINY_NORM = 1e-6
"""Keeps the cosine of a row without length finite."""


@dataclass(frozen=True)
class Standard:
    """How images in [0, 1] are shown to a network: by declared constants, because measured ones would be private."""

    mean: float
    deviation: float

    def of(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.deviation

    @property
    def range(self) -> tuple[float, float]:
        """What 0 and 1 are shown as."""
        return -self.mean / self.deviation, (1 - self.mean) / self.deviation

    def undone(self, values: Tensor) -> Tensor:
        return (values * self.deviation + self.mean).clamp(0, 1)  # beyond by rounding


class FreePixels(nn.Module):
    """A set whose every pixel is optimised, from standardised noise."""

    def __init__(self, spec: ImageSpec, per_class: int, standard: Standard, draws: torch.Generator) -> None:
        super().__init__()
        self.standard = standard
        shape = (spec.num_classes * per_class, *spec.shape)
        self.values = nn.Parameter(torch.randn(shape, generator=draws, device=draws.device))
        self.keep_to_range()

    def forward(self) -> Tensor:
        return self.values

    @torch.no_grad()
    def begin_with(self, images: Tensor) -> None:
        """Images in [0, 1], in the order of the labels, in the place of noise."""
        self.values.copy_(self.standard.of(images))

    @torch.no_grad()
    def keep_to_range(self) -> None:
        self.values.clamp_(*self.standard.range)


class GeneratedImages(nn.Module):
    """A set that a generator makes of one fixed latent code for each image; the generator's weights are optimised."""

    def __init__(
        self, spec: ImageSpec, per_class: int, standard: Standard, draws: torch.Generator, *, latent_size: int,
        channels: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.standard = standard
        self.generator = UpsamplingGenerator(spec, latent_size=latent_size, channels=channels).to(draws.device)
        initialise(self.generator, draws)
        self.labels = labels_of(spec, per_class, draws.device)
        self.register_buffer("latents", self.generator.latents(len(self.labels), draws))
        self.latents: Tensor

    def forward(self) -> Tensor:
        return self.standard.of(self.generator(self.latents, self.labels))

    def keep_to_range(self) -> None:
        """A generator's images are in range by construction."""


class GradientMatching:
    """Moves a set along released gradients, and trains the network whose gradients they are on that set.

    Args:
        images: gives the standardised images of the set when called without arguments.
        batch: of the images that a training step of the network takes.
    """

    def __init__(
        self,
        network: nn.Module,
        images: FreePixels | GeneratedImages,
        labels: Tensor,
        optimiser: torch.optim.Optimizer,
        *,
        network_rate: float,
        batch: int,
    ) -> None:
        self.network, self.images, self.labels, self.optimiser = network, images, labels, optimiser
        self.batch = min(batch, len(labels))
        self.weights = list(network.parameters())
        self.trainer = torch.optim.SGD(self.weights, lr=network_rate)
        self.distance = torch.zeros((), device=labels.device)
        """Of the last match."""
        self._shown, self._as_it_is = images().detach(), torch.arange(len(labels), device=labels.device)
        self._fused_slopes, self._fused_loss = fused_on_cuda(self._slopes), fused_on_cuda(self._loss)
        self._even = torch.ones(len(labels), device=labels.device)
        self._match = GraphedStep(self._match_step, [self._even, *self.weights], [])
        self._train = GraphedStep(self._train_step, [torch.zeros_like(labels[: self.batch])], [])

    def match(self, gradients: Sequence[Tensor], class_weights: Tensor | None = None) -> None:
        """One step of the set towards images on which the network has these gradients.

        Args:
            class_weights: (classes,): how much the loss of an image counts, by its class; all alike without it.
        """
        weights = self._even if class_weights is None else class_weights.to(self._even)[self.labels]
        self._match(weights, *gradients)

    def _match_step(self, image_weights: Tensor, *gradients: Tensor) -> None:
        images, wanted = self.images(), list(self.images.parameters())
        slopes, distance = self._fused_slopes(images.detach(), image_weights, *gradients)
        step_along(self.optimiser, torch.autograd.grad(images, wanted, slopes))
        self.images.keep_to_range()
        self.distance.copy_(distance)

    def _slopes(self, images: Tensor, image_weights: Tensor, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The derivative by the images of the distance between the network's gradients on them and the given ones, and
        that distance. By torch.func, because second derivatives through `backward` cannot be compiled."""
        now = {name: value.detach() for name, value in self.network.named_parameters()}

        def loss(weights: dict[str, Tensor], images: Tensor) -> Tensor:
            losses = F.cross_entropy(functional_call(self.network, weights, (images,)), self.labels, reduction="none")
            return (losses * image_weights).mean()

        def distance(images: Tensor) -> Tensor:
            return cosine_distance(list(grad(loss)(now, images).values()), gradients)

        slopes, found = grad_and_value(distance)(images)
        return slopes, found

    def train(self, epochs: int, draws: torch.Generator) -> None:
        """Trains the network on the set as it is."""
        self._shown.copy_(self.images().detach())
        for _ in range(epochs):
            for rows in self._order(draws).split(self.batch):
                self._train(rows)

    def _order(self, draws: torch.Generator) -> Tensor:
        if self.batch == len(self.labels):  # in one batch every order is the same
            return self._as_it_is
        return torch.randperm(len(self.labels), generator=draws, device=draws.device).to(self.labels.device)

    def _train_step(self, rows: Tensor) -> None:
        loss = self._fused_loss(self._shown[rows], self.labels[rows])
        step_along(self.trainer, torch.autograd.grad(loss, self.weights))

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        # In half precision on CUDA, as the private gradients of the same network: five of these go with each of those.
        with half_on_cuda(images.device):
            return F.cross_entropy(self.network(images), labels)


def cosine_distance(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """The sum of 1 - cosine over the rows of all weights; biases and factors of norms have none and are left out."""
    distance = torch.zeros((), device=ours[0].device)
    for mine, given in zip(ours, theirs, strict=True):
        if mine.dim() > 1:
            a, b = mine.flatten(1), given.flatten(1)
            distance = distance + (1 - (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1) + TINY_NORM)).sum()
    return distance
