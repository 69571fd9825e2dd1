"""Random mixtures of what networks see: one more layer, of random sums and ReLU, behind the features of every network.

A mean of features says where a class lies among images; a mean of positive parts of many random sums of them says also
how it is spread, which a generator needs in order to make all kinds of images of a class.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from veilset.nets.feature_bank import DEVIATION, WEIGHT_TOP, CentredBank, FeatureBank
from veilset.nets.half_precision import half_precision
from veilset.randomness import named_generator

STEPS = 2.0**11
"""Of a feature, from 0 to its largest value. Numbers of 11 bits times weights of 5 are exact in TF32 too, and their
sums stay below 2^24: the features of an image have length 1, so not all of them can be large."""
MIXTURES = 1152
"""Of each network, however narrow: random sums are cheap, and each tells more of how a class is spread."""


class MixedBank(CentredBank):
    """The features of `networks`, mixed by one public matrix for all, and for each network the centre of its mixtures.

    Exact as the networks are: integers below 2^24, added up in any order.
    """

    def __init__(self, networks: FeatureBank, centre: Tensor | None = None) -> None:
        super().__init__(networks.count, MIXTURES, centre)
        self.networks, self.values_per_pixel = networks, networks.values_per_pixel
        draws = torch.randn(networks.length, MIXTURES, generator=named_generator(0, "mixtures of features"))
        mixture = (draws * DEVIATION).round().clamp(-WEIGHT_TOP, WEIGHT_TOP)
        # Anybody can draw it again, so it is not stored.
        self.register_buffer("mixture", mixture, persistent=False)
        self.mixture: Tensor

    @property
    def width(self) -> int:
        return self.networks.width

    def seen_from(self, centre: Tensor) -> Self:
        return type(self)(self.networks, centre)

    def whole(self, images: Tensor, which: Tensor) -> Tensor:
        features = (self.networks._exact(images, which) * STEPS).round()
        # A CPU may be told to multiply float32 as bfloat16, which holds 8 bits; a GPU is slow at float64.
        dtype = torch.float32 if images.is_cuda else torch.float64
        return (features.to(dtype) @ self.mixture.to(dtype)).relu_()

    def smooth(self, images: Tensor, which: Tensor) -> Tensor:
        features = self.networks.soft(images, which)
        with half_precision(images.device):
            return (features @ self.mixture).float().relu()
