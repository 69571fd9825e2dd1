"""What a classifier is to an evaluation: a way to fit on one set of images and to predict labels of others."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.data.spec import ImageSet
from veilset.randomness import named_generator

Predict = Callable[[Tensor], Tensor]
"""uint8 images (n, channels, height, width) to int64 labels (n,) on the CPU."""


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """What a fit may use besides the images it trains on."""

    seed: int
    device: torch.device
    tick: Callable[[str], None]
    """Called with a message after each unit of work, ``Classifier.num_ticks`` times."""
    warn: Callable[[str], None]

    def generator(self, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """A stream of this fit's own: the same for gen2real and real2gen, another for every seed and name."""
        return named_generator(self.seed, f"gen2real/{name}", device)


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A fit sees the training images alone, so that it cannot select an epoch or a setting on the test set."""

    fit: Callable[[ImageSet, TrainContext], Predict]
    num_ticks: int = 1
    notes: tuple[str, ...] = ()
    """Where the protocol differs from its source; copied into the details of every score."""
    check: Callable[[], None] = lambda: None
    """Raises MissingExtra where a package is not installed: asked of all classifiers before any of them is fitted."""
