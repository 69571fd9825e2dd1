"""A few images per class whose mean features are the released ones, optimised pixel by pixel. Open side.

Here the set itself is the answer, so its own mean is compared with the released one; a generator instead stands for
endlessly many images, whose mean has to be estimated (`engines.matching`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.engines.matching import Target
from veilset.engines.training_steps import faded
from veilset.errors import ConfigError
from veilset.nets.jitter import Jitter
from veilset.randomness import named_generator

RATE = 0.05
"""Of Adam, on the logarithm of odds of a pixel."""
CLASSES_PER_STEP = 20
MOST = 100_000
"""Images in all: more are drawn from a generator, in less time."""


def match_pixels(
    targets: Sequence[Target],
    spec: ImageSpec,
    *,
    per_class: int,
    steps: int,
    networks_per_step: int,
    jitter: Jitter,
    seed: int,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> Tensor:
    """(classes x per_class, channels, height, width) in [0, 1], the images of a class side by side."""
    if not 1 <= per_class * spec.num_classes <= MOST:
        raise ConfigError(f"1 to {MOST:,} images", f"{per_class} a class", "Correct --per-class, or train a model.")
    draws, order = named_generator(seed, "pixel sets", device), named_generator(seed, "pixel set order")
    shape = (spec.num_classes, per_class, *spec.shape)
    odds = torch.randn(shape, generator=draws, device=device).requires_grad_()
    optimiser = torch.optim.Adam([odds], lr=RATE)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = RATE * faded(step, steps)
        classes = torch.randperm(spec.num_classes, generator=order)[:CLASSES_PER_STEP].to(device)
        images = jitter(odds[classes].sigmoid().flatten(0, 1), draws)
        loss = torch.stack([_distance(target, images, classes, networks_per_step, order) for target in targets]).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress(step + 1, steps)
    return odds.detach().sigmoid().flatten(0, 1)


def _distance(target: Target, images: Tensor, classes: Tensor, networks: int, order: torch.Generator) -> Tensor:
    """Squared distance of the sets' mean features, of some of the networks."""
    which = torch.randperm(target.bank.count, generator=order)[:networks].to(images.device)
    features = target.bank.soft(images, which)
    means = features.reshape(len(classes), -1, *features.shape[1:]).mean(1)
    return target.weight * (means - target.means[classes][:, which]).square().sum() / len(which)
