"""How a network is trained to judge images: one loop for every recipe, on the CPU and on CUDA.

Images stay on the device as bytes, and a step waits for nothing: the host looks at a result once per epoch, and only
where a recipe chooses its epoch on held-out training images.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.compilation import fused_on_cuda
from veilset.data.spec import ImageSet, ImageSpec, to_unit_range
from veilset.engines.cuda_graphs import GraphedStep
from veilset.engines.weight_average import WeightAverage
from veilset.evaluate.fitting import Predict, TrainContext

NETWORK_TICKS = 10
"""Units of progress of one fit, whatever the number of epochs."""
PREDICT_BATCH = 512
FAST_PREDICT_VALUES = 2**21
"""Pixels of one batch of predictions on CUDA (2,674 images of 28 x 28): small batches would wait for the host."""
SMALL_SET = 5_000
"""Up to this many images ``Recipe.small_set_epochs`` counts."""

Scaling = Literal["unit", "symmetric", "mnist", "training-set"]
"""Pixels to [0, 1], to [-1, 1], by the constants of MNIST, or to mean 0 and deviation 1 over the training set."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A network and how it is trained. Without a hold-out the last epoch counts."""

    network: Callable[[ImageSpec, torch.Generator], nn.Module]
    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch: int
    epochs: int
    small_set_epochs: int | None = None
    decay_factor: float = 1.0
    decay_at: tuple[float, ...] = ()
    """Shares of the training after which the learning rate is multiplied by ``decay_factor``."""
    warm_up_steps: int = 0
    """Steps in which the learning rate rises from nearly 0, a fifth of all at most."""
    scaling: Scaling = "unit"
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    average_decay: float | None = None
    """Decay of the average over the weights that is evaluated in their place."""
    hold_out_one_in: int | None = None
    """One in so many TRAINING images of each class is kept back to choose the epoch."""
    fast_on_cuda: bool = False
    """bfloat16, the fastest convolutions and CUDA graphs; a score then repeats up to rounding, not bit by bit."""

    def num_epochs(self, num_images: int) -> int:
        if self.small_set_epochs is not None and num_images <= SMALL_SET:
            return self.small_set_epochs
        return self.epochs

    def rate_in(self, epoch: int, num_epochs: int) -> float:
        """Learning rate of an epoch, counted from 0."""
        return self.learning_rate * self.decay_factor ** sum(epoch >= round(at * num_epochs) for at in self.decay_at)


def fit_network(name: str, recipe: Recipe, train: ImageSet, ctx: TrainContext) -> Predict:
    """Trains a fresh network and returns its predictions. Nothing but ``train`` is seen."""

    def tick(epoch: int, num_epochs: int) -> None:
        for _ in range(epoch * NETWORK_TICKS // num_epochs - (epoch - 1) * NETWORK_TICKS // num_epochs):
            ctx.tick(f"epoch {epoch} of {num_epochs}")

    return train_network(name, recipe, train, ctx, tick).predict


def train_network(
    name: str, recipe: Recipe, train: ImageSet, ctx: TrainContext, after_epoch: Callable[[int, int], None]
) -> Training:
    """``after_epoch`` is called with the number of epochs done and of all."""
    kept_back = held_out_rows(train, recipe.hold_out_one_in, ctx.generator(f"{name}/hold-out"))
    training = Training(name, recipe, train, ~kept_back, ctx)
    num_epochs = training.num_epochs
    best_hits, best = -1, None
    with training.convolutions():
        for epoch in range(num_epochs):
            training.epoch(recipe.rate_in(epoch, num_epochs))
            if bool(kept_back.any()) and (hits := training.hits(kept_back)) >= best_hits:
                best_hits, best = hits, training.state()
            after_epoch(epoch + 1, num_epochs)
        training.finish(training.state() if best is None else best)
    return training


def held_out_rows(train: ImageSet, one_in: int | None, generator: torch.Generator) -> Tensor:
    """A mask of the training images that choose the epoch: the same share of every class, none of a tiny class."""
    mask = torch.zeros(len(train), dtype=torch.bool)
    if one_in is None:
        return mask
    labels = train.labels.cpu()
    for label in range(train.spec.num_classes):
        rows = (labels == label).nonzero().flatten()
        order = torch.randperm(len(rows), generator=generator)
        mask[rows[order[: len(rows) // one_in]]] = True
    return mask


class Training:
    """One network on its way. Weights and batch order are drawn on the CPU, so that they are the same everywhere."""

    def __init__(self, name: str, recipe: Recipe, train: ImageSet, rows: Tensor, ctx: TrainContext) -> None:
        self.recipe, self.device = recipe, ctx.device
        self.fast = recipe.fast_on_cuda and ctx.device.type == "cuda"
        self.pixels, self.labels = train.pixels.to(ctx.device), train.labels.to(ctx.device)
        self.rows = rows.nonzero().flatten()
        self.num_epochs = recipe.num_epochs(len(self.rows))
        self.predict_batch = max(1, FAST_PREDICT_VALUES // train.spec.num_values) if self.fast else PREDICT_BATCH
        steps = self.num_epochs * -(-len(self.rows) // recipe.batch)
        self.steps_done, self.warm_up = 0, min(recipe.warm_up_steps, steps // 5)
        self.mean, self.deviation = (value.to(ctx.device) for value in _scaling(recipe.scaling, train.pixels[rows]))
        self.order = ctx.generator(f"{name}/order")
        self.augmentation = ctx.generator(f"{name}/augmentation", ctx.device if self.fast else "cpu")
        self.masks = ctx.generator(f"{name}/dropout", ctx.device)
        model = recipe.network(train.spec, ctx.generator(f"{name}/weights")).to(ctx.device)
        # channels_last: measured 6 times faster than the default layout on a 2-core CPU.
        self.model: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.fast:
            _fuse_blocks(self.model, recipe.batch)
        self.optimiser = self._optimiser()
        decay = recipe.average_decay
        self.average = None if decay is None else WeightAverage(list(self.model.parameters()), decay)
        self.take_step: Callable[[Tensor], None] = self.step
        if self.fast:
            example = torch.zeros(recipe.batch, dtype=torch.int64, device=ctx.device)
            self.take_step = GraphedStep(self.step, [example], [self.masks, self.augmentation], ctx.warn)

    def _optimiser(self) -> torch.optim.Optimizer:
        recipe, weights = self.recipe, self.model.parameters()
        fused = self.device.type in ("cpu", "cuda")
        # A graph replays the rate it was captured with, unless that rate is a tensor.
        rate = torch.tensor(recipe.learning_rate, device=self.device) if self.fast else recipe.learning_rate
        decay = recipe.weight_decay
        if recipe.optimiser == "sgd":
            return torch.optim.SGD(weights, lr=rate, momentum=recipe.momentum, weight_decay=decay, fused=fused)
        return torch.optim.Adam(weights, lr=rate, weight_decay=decay, fused=fused, capturable=self.fast)

    def epoch(self, rate: float) -> None:
        self.model.train()
        self._set_rate(rate)
        order = torch.randperm(len(self.rows), generator=self.order)
        for batch in self.rows[order].to(self.device).split(self.recipe.batch):
            self.steps_done += 1
            if self.steps_done <= self.warm_up + 1:  # after that the rate of the epoch stays in place
                self._set_rate(rate * self.steps_done / (self.warm_up + 1))
            self.take_step(batch)

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def step(self, rows: Tensor) -> None:
        images = self.inputs(self.pixels[rows])
        if self.recipe.augment is not None:
            images = self.recipe.augment(images, self.augmentation)
        with self.precision():
            loss = F.cross_entropy(self.model(images, self.masks), self.labels[rows])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        if self.average is not None:
            self.average.update()

    def inputs(self, pixels: Tensor) -> Tensor:
        images = to_unit_range(pixels).contiguous(memory_format=torch.channels_last)
        return images if self.recipe.scaling == "unit" else (images - self.mean) / self.deviation

    def precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cuda", dtype=torch.bfloat16) if self.fast else nullcontext()

    def convolutions(self) -> AbstractContextManager[object]:
        # A context, because these flags are global: without the fast way the same seed gives the same score on CUDA.
        return torch.backends.cudnn.flags(
            enabled=True, benchmark=self.fast, deterministic=not self.fast, allow_tf32=self.fast
        )

    def state(self) -> list[Tensor]:
        """The weights to evaluate, averaged where the recipe says so, and the running statistics of the norms.

        The statistics are those of the live network, as in DPImageBench, which averages weights alone.
        """
        weights = list(self.model.parameters()) if self.average is None else self.average.values
        return [value.detach().clone() for value in (*weights, *self.model.buffers())]

    def finish(self, state: list[Tensor]) -> None:
        """Puts ``state`` in place for predictions and lets go of what only training needs."""
        with torch.no_grad():
            for slot, value in zip((*self.model.parameters(), *self.model.buffers()), state, strict=True):
                slot.copy_(value)
                slot.grad = None
        self.model.eval()
        self.average, self.take_step = None, self.step
        self.optimiser.state.clear()

    def hits(self, rows: Tensor) -> int:
        """How many of the given training images the network of this moment gets right."""
        self.model.eval()
        names = [name for name, _ in self.model.named_parameters()]
        weights = {} if self.average is None else dict(zip(names, self.average.values, strict=True))
        hits = torch.zeros((), dtype=torch.int64, device=self.device)
        for batch in rows.nonzero().flatten().to(self.device).split(self.predict_batch):
            hits += (self.logits(self.pixels[batch], weights).argmax(1) == self.labels[batch]).sum()
        return int(hits)

    def logits(self, pixels: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        """``weights`` stand in for the network's own ones."""
        with torch.inference_mode(), self.precision():
            return torch.func.functional_call(self.model, weights or {}, (self.inputs(pixels.to(self.device)),))

    def predict(self, images: Tensor) -> Tensor:
        with self.convolutions():
            return torch.cat([self.logits(batch).argmax(1).cpu() for batch in images.split(self.predict_batch)])


def _fuse_blocks(model: nn.Module, batch: int) -> None:
    """Compiles the residual blocks for training, one by one: equal blocks share their code, so it takes seconds.

    For batches of one size alone: the short one that ends an epoch would double the time that compiling takes.
    """
    for block in getattr(model, "blocks", ()):
        plain, fused = block.forward, fused_on_cuda(block.forward)

        def forward(*inputs: Tensor, block=block, plain=plain, fused=fused) -> Tensor:
            return (fused if block.training and len(inputs[0]) == batch else plain)(*inputs)

        block.forward = forward


def _scaling(scaling: Scaling, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation in units of [0, 1], one per channel."""
    constants = {"unit": (0.0, 1.0), "symmetric": (0.5, 0.5), "mnist": (0.1307, 0.3081)}
    if scaling != "training-set":
        mean, deviation = constants[scaling]
        return torch.tensor(mean), torch.tensor(deviation)
    values = to_unit_range(pixels).transpose(0, 1).flatten(1).double()
    shape = (1, -1, 1, 1)
    # 0.01: images of one single colour have no deviation to divide by.
    return values.mean(1).float().view(shape), values.std(1).clamp_min(0.01).float().view(shape)
