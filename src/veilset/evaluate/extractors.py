"""What turns images into feature vectors for the fidelity metrics.

Name and hash of the extractor stand beside every number: numbers of different extractors cannot be compared.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.errors import ConfigError
from veilset.randomness import named_generator


class Extractor(Protocol):
    """Features of one image depend on that image alone, not on the batch it came in."""

    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str:
        """SHA-256 of the weights: equal hashes mean equal features, up to rounding."""
        ...

    @property
    def dim(self) -> int: ...
    def features(self, images: Tensor) -> Tensor:
        """uint8 images (n, 1 or 3, height, width) to float32 (n, dim) on the CPU."""
        ...


def exact_convolutions() -> AbstractContextManager[None]:
    """A context, because these flags are global: no TF32, and the same features on every call."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)


_LAYERS = ((3, 32, 5), (32, 64, 3), (64, 64, 3))
_SIDE = 32
_BATCH = 512


class RandomConvExtractor:
    """256 features of three fixed random convolutions: for any machine and any kind of image, thousands a second.

    Random features see shapes and textures, but no meaning: they order generators of one data set, and their values
    mean nothing beside a published FID. Reference: Naeem et al. 2020 use random networks where Inception is blind.
    """

    name = "random-conv-1"
    dim = 256

    def __init__(self, *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        draws = named_generator(0, f"extractor/{self.name}")  # a public constant, never the user's seed
        # Standard deviation sqrt(2 / fan in) keeps the size of the values through ReLU layers (He et al. 2015).
        weights = [
            torch.randn(outside, inside, side, side, generator=draws) * (2 / (inside * side**2)) ** 0.5
            for inside, outside, side in _LAYERS
        ]
        digest = hashlib.sha256(self.name.encode())
        for weight in weights:
            digest.update(weight.numpy().astype("<f4").tobytes())
        self.hash = digest.hexdigest()
        self._weights = [weight.to(self.device) for weight in weights]

    def features(self, images: Tensor) -> Tensor:
        """uint8 images, grey or RGB, of any size to float32 (n, 256) on the CPU."""
        with torch.inference_mode(), exact_convolutions():
            return torch.cat([self._batch(batch.to(self.device)).cpu() for batch in images.split(_BATCH)])

    def _batch(self, pixels: Tensor) -> Tensor:
        hidden = pixels.to(torch.float32) / 127.5 - 1
        if hidden.shape[2:] != (_SIDE, _SIDE):
            hidden = F.interpolate(hidden, (_SIDE, _SIDE), mode="bilinear", align_corners=False, antialias=True)
        hidden = hidden.expand(-1, 3, -1, -1)
        for weight in self._weights:
            hidden = F.relu(F.conv2d(hidden, weight, stride=2, padding=weight.shape[2] // 2))
        # Four quarters of the image: where a stroke lies matters, its exact pixel does not.
        return F.avg_pool2d(hidden, 2).flatten(1)


EXTRACTORS = ("auto", "fid-inception-2015", "random-conv-1")


def get_extractor(name: str = "auto", *, device: torch.device | str = "cpu") -> Extractor:
    """An extractor by name; "auto" is Inception where its weights are found, and random convolutions elsewhere.

    Raises: ConfigError for an unknown name, or for Inception without its weights.
    """
    from veilset.evaluate.inception import InceptionExtractor, find_weights

    if name == "auto":
        try:
            find_weights()
        except ConfigError:
            return RandomConvExtractor(device=device)
        return InceptionExtractor(device=device)
    if name == InceptionExtractor.name:
        return InceptionExtractor(device=device)
    if name == RandomConvExtractor.name:
        return RandomConvExtractor(device=device)
    raise ConfigError(f"an extractor out of: {', '.join(EXTRACTORS)}", f"{name!r}", "Choose one of these.")
