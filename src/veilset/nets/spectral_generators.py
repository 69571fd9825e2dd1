"""The generator of GS-WGAN: residual blocks with spectral norm and pixel norm. Open side.

No layer looks at other images of its batch, and a forward pass changes nothing: private labels may go through it in the
vault without leaving a trace. The power iteration behind the spectral norm is a call of its own.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import ImageSpec

FIRST_SIDE = 4
FLAT = 1e-10


class SpectralNorm(nn.Module):
    """Weights divided by their largest singular value, as estimated by its two vectors; these are buffers."""

    weight: Tensor
    left: Tensor
    right: Tensor

    def with_vectors(self) -> None:
        for name, size in (("left", len(self.weight)), ("right", self.weight[0].numel())):
            self.register_buffer(name, torch.full((size,), size**-0.5))

    @torch.no_grad()
    def iterate(self) -> None:
        """One step of power iteration."""
        matrix = self.weight.flatten(1)
        self.right = F.normalize(self.left @ matrix, dim=0)
        self.left = F.normalize(matrix @ self.right, dim=0)

    def normed(self) -> Tensor:
        return self.weight / (self.left @ self.weight.flatten(1) @ self.right)


class NormedLinear(nn.Linear, SpectralNorm):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.with_vectors()

    def forward(self, values: Tensor) -> Tensor:
        return F.linear(values, self.normed(), self.bias)


class NormedConv(nn.Conv2d, SpectralNorm):
    def __init__(self, before: int, after: int, kernel: int, padding: int) -> None:
        super().__init__(before, after, kernel, padding=padding)
        self.with_vectors()

    def forward(self, maps: Tensor) -> Tensor:
        return F.conv2d(maps, self.normed(), self.bias, padding=self.padding)


class DoublingBlock(nn.Module):
    """Doubles height and width: two convolutions beside a short cut of one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = NormedConv(channels, channels, 3, padding=1)
        self.second = NormedConv(channels, channels, 3, padding=1)
        self.short_cut = NormedConv(channels, channels, 1, padding=0)

    def forward(self, maps: Tensor) -> Tensor:
        hidden = self.first(_doubled(_pixel_normed(maps)))
        return self.second(_pixel_normed(hidden).relu()) + self.short_cut(_doubled(maps))


class SpectralGenerator(nn.Module):
    """Latent code of coin flips and one-hot label to an image (Chen et al. 2020; their 'ResNet adapted from BigGAN').

    A dense layer to 4 x 4 for 28 x 28 pixels, doublings to 32 x 32, a last convolution without padding, and the first
    28 rows and columns. Other sizes alike; where no pixel can be spared the last convolution is padded.
    """

    def __init__(self, spec: ImageSpec, *, latent_size: int, channels: int) -> None:
        super().__init__()
        self.spec, self.latent_size, self.channels = spec, latent_size, channels
        self.doublings = max(1, math.ceil(math.log2(max(spec.height, spec.width) / FIRST_SIDE)))
        self.first_sides = (-(-spec.height // 2**self.doublings), -(-spec.width // 2**self.doublings))
        spare = all(
            side << self.doublings >= wanted + 2 for side, wanted in zip(self.first_sides, spec.shape[1:], strict=True)
        )
        self.to_map = NormedLinear(latent_size + spec.num_classes, channels * math.prod(self.first_sides))
        self.blocks = nn.Sequential(*(DoublingBlock(channels) for _ in range(self.doublings)))
        self.to_image = NormedConv(channels, spec.channels, 3, padding=0 if spare else 1)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        one_hot = F.one_hot(labels, self.spec.num_classes).to(latents.dtype)
        maps = self.to_map(torch.cat([latents, one_hot], dim=1)).reshape(-1, self.channels, *self.first_sides)
        images = self.to_image(self.blocks(_pixel_normed(maps.relu()))).sigmoid()
        return images[:, :, : self.spec.height, : self.spec.width]

    def sample(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """One image for each label."""
        chances = torch.rand(len(labels), self.latent_size, generator=generator, device=generator.device)
        return self(coin_flips(chances), labels)

    def iterate(self, times: int) -> None:
        """Lets the norms follow the weights by `times` steps of power iteration."""
        for layer in self.modules():
            if isinstance(layer, SpectralNorm):
                for _ in range(times):
                    layer.iterate()

    @property
    def products(self) -> int:
        """Multiplications of one image, without the first and the last layer."""
        pixels = math.prod(self.first_sides) * sum(4**level for level in range(1, self.doublings + 1))
        return pixels * self.channels**2 * (9 + 9 + 1)


def coin_flips(chances: Tensor) -> Tensor:
    """Uniform numbers in (0, 1) -> zeros and ones: the latent prior of the paper's code."""
    return (chances < 0.5).float()


def _doubled(maps: Tensor) -> Tensor:
    return F.interpolate(maps, scale_factor=2, mode="nearest")


def _pixel_normed(maps: Tensor) -> Tensor:
    """Each pixel's channels with a mean square of 1."""
    return maps * (maps.square().mean(1, keepdim=True) + FLAT).rsqrt()
