"""Networks for a later round of measuring: trained on synthetic images to tell their classes apart. Open side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.engines.cuda_graphs import GraphedStep
from veilset.engines.training_steps import faded
from veilset.nets.feature_bank import LEVEL, MAP, CentredBank, FeatureBank, in_range, shapes, soft_features
from veilset.nets.jitter import Jitter

SomeBank = TypeVar("SomeBank", bound=CentredBank)
BATCH = 128
RATE = 1e-3
CENTRE_BATCH = 500
ALIVE = {"cpu": 1 << 26, "cuda": 1 << 28}
"""Numbers of one layer's maps at once: few gigabytes in all, however large images are and many networks."""
BYTES_EACH = 20
"""Of memory for each of them, with the other layers, on a CPU."""


def train_bank(
    images: Tensor,
    labels: Tensor,
    spec: ImageSpec,
    *,
    count: int,
    width: int,
    steps: int,
    jitter: Jitter,
    draws: torch.Generator,
    progress: Callable[[int, int], None],
) -> FeatureBank:
    """Trains `count` networks as classifiers of synthetic images, all on the same ones.

    Args:
        images: synthetic images in [0, 1] on the device to train on.
        draws: on the same device.
    """
    device = images.device
    weights, heads = _random_networks(spec, count, width, draws)
    rate = torch.tensor(RATE, device=device)
    optimiser = torch.optim.Adam([*weights, heads], lr=rate, fused=True, capturable=device.type == "cuda")

    pieces = pieces_of(count, width * spec.height * spec.width, device)

    def step(rows: Tensor) -> None:
        optimiser.zero_grad()
        shown, wanted = jitter(images[rows], draws), labels[rows]
        for few, some in pieces:
            features = soft_features(shown[few], [in_range(weight[some]) for weight in weights])
            logits = torch.einsum("nkd,kdc->nkc", features / LEVEL, heads[some])
            expected = wanted[few].repeat_interleave(logits.shape[1])
            (F.cross_entropy(logits.flatten(0, 1), expected, reduction="sum") / BATCH).backward()
        optimiser.step()

    take_step = GraphedStep(step, [torch.zeros(BATCH, dtype=torch.int64, device=device)], [draws])
    for number in range(steps):
        rate.fill_(RATE * faded(number, steps))
        take_step(torch.randint(len(images), (BATCH,), generator=draws, device=device))
        progress(number + 1, steps)
    return FeatureBank.quantised(weights).to(device)


def _random_networks(spec: ImageSpec, count: int, width: int, draws: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """Convolutions of all networks, layer by layer, and what makes classes of their features; to be trained."""
    weights = [
        torch.randn(shape, generator=draws, device=draws.device) * (2 / math.prod(shape[2:])) ** 0.5
        for shape in shapes(spec, count, width)
    ]
    length = MAP * MAP * width
    heads = torch.randn(count, length, spec.num_classes, generator=draws, device=draws.device) / length**0.5
    return [weight.requires_grad_() for weight in weights], heads.requires_grad_()


def pieces_of(count: int, values: int, device: torch.device) -> list[tuple[slice, slice]]:
    """Images and networks that go side by side, each network with so many `values` of an image in its largest maps.

    On a CPU every network alone: gradients in the weights of all at once are slow there.
    """
    images = _images_at_once(values, device.type)
    networks = max(1, ALIVE["cuda"] // (images * values)) if device.type == "cuda" else 1
    return [(few, some) for some in _slices(count, networks) for few in _slices(BATCH, images)]


def _images_at_once(values: int, device: str) -> int:
    return max(1, min(BATCH, ALIVE[device] // values))


def _slices(count: int, most: int) -> list[slice]:
    """As even as may be."""
    size = math.ceil(count / math.ceil(count / most))
    return [slice(start, start + size) for start in range(0, count, size)]


def training_bytes(width: int, spec: ImageSpec) -> int:
    """Memory that the training of any number of networks takes on a CPU, about."""
    values = width * spec.height * spec.width
    return BYTES_EACH * values * _images_at_once(values, "cpu")


@torch.no_grad()
def centred(bank: SomeBank, images: Tensor) -> SomeBank:
    """The same measurements, seen from the mean of their unit vectors of `images` (synthetic ones)."""
    bank = bank.seen_from(torch.zeros_like(bank.centre)).to(images.device)
    total = torch.zeros(bank.count, bank.length, dtype=torch.float64, device=images.device)
    for batch in images.split(CENTRE_BATCH):
        total += bank.exact(batch).sum(0)
    return bank.seen_from((total / len(images)).float()).to(images.device)
