"""Conditional image generators for the open side: they are trained on released values only."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.nets.jitter import STILL, Jitter


class ConvGenerator(nn.Module):
    """Latent code and one-hot label to an image: dense layers to a small map, then upsampling convolutions.

    The layout of DP-MERF (Harder et al. 2021) for any image size: the smallest map has at most 8 pixels a side, each
    block doubles it, and the last rows and columns are cropped where the size is no multiple.
    """

    def __init__(self, spec: ImageSpec, *, latent_size: int, hidden_size: int, map_channels: int) -> None:
        super().__init__()
        self.spec = spec
        self.latent_size = latent_size
        doublings = max(1, math.ceil(math.log2(max(spec.height, spec.width) / 8)))
        self.map_shape = (map_channels, -(-spec.height // 2**doublings), -(-spec.width // 2**doublings))
        self.to_map = nn.Sequential(
            nn.Linear(latent_size + spec.num_classes, hidden_size),
            nn.BatchNorm1d(hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, math.prod(self.map_shape)),
            nn.BatchNorm1d(math.prod(self.map_shape)),
        )
        narrower = [max(map_channels >> level, 8) for level in range(1, doublings)]
        widths = [map_channels, *narrower, spec.channels]
        blocks: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            blocks += [nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(before, after, 5, padding=2), nn.ReLU()]
        self.to_image = nn.Sequential(*blocks[:-1], nn.Sigmoid())

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        one_hot = F.one_hot(labels, self.spec.num_classes).to(latents.dtype)
        maps = self.to_map(torch.cat([latents, one_hot], dim=1)).reshape(-1, *self.map_shape)
        return self.to_image(maps)[:, :, : self.spec.height, : self.spec.width]

    def latents(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, self.latent_size, generator=generator, device=generator.device)


class DoublingConv(nn.Conv2d):
    """Every pixel as 2x2 equal ones, then a 3x3 convolution: the same as one transposed convolution, by half the work.

    Equal pixels are multiplied once, by the sum of the weights that meet them.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after, 3)

    def forward(self, maps: Tensor) -> Tensor:
        weights = F.avg_pool2d(F.pad(self.weight.flip(2, 3), (1, 1, 1, 1)), 2, stride=1) * 4
        return F.conv_transpose2d(maps, weights.transpose(0, 1), self.bias, stride=2, padding=1)


class UpsamplingGenerator(nn.Module):
    """Latent code and one-hot label to an image: one dense layer to a map of at most 8 pixels a side, then doublings.

    Wider than `ConvGenerator`, batch norm after every layer, nearest-neighbour doublings and 3x3 convolutions. Its
    samples are jittered: training sees them so, and so does everyone else.

    Args:
        kinds: of images in each class, which it tells apart; how many samples are of which is `kind_shares`.
        overshoot: how far beyond black and white the last layer can go before it is cut off there. A sigmoid alone
          comes near them ever more slowly and leaves a haze.
    """

    NARROWEST = 16

    def __init__(
        self,
        spec: ImageSpec,
        *,
        latent_size: int,
        channels: int,
        jitter: Jitter = STILL,
        kinds: int = 1,
        overshoot: float = 0.0,
    ) -> None:
        super().__init__()
        self.spec, self.latent_size, self.jitter, self.overshoot = spec, latent_size, jitter, overshoot
        self.num_groups = spec.num_classes * kinds
        if kinds > 1:
            self.register_buffer("kind_shares", torch.ones(spec.num_classes, kinds))
            self.kind_shares: Tensor
        doublings = max(1, math.ceil(math.log2(max(spec.height, spec.width) / 8)))
        widths = [max(channels >> level, min(self.NARROWEST, channels)) for level in range(doublings + 1)]
        self.map_shape = (channels, -(-spec.height // 2**doublings), -(-spec.width // 2**doublings))
        self.to_map = nn.Linear(latent_size + self.num_groups, math.prod(self.map_shape))
        self.map_norm = nn.BatchNorm2d(channels)
        blocks: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            blocks += [DoublingConv(before, after), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.to_image = nn.Sequential(*blocks, nn.Conv2d(widths[-1], spec.channels, 3, padding=1))

    def forward(self, latents: Tensor, groups: Tensor) -> Tensor:
        """Groups are labels or, with several kinds of a class, label * kinds + kind."""
        one_hot = F.one_hot(groups, self.num_groups).to(latents.dtype)
        maps = self.to_map(torch.cat([latents, one_hot], dim=1)).reshape(-1, *self.map_shape)
        maps = self.map_norm(maps.contiguous(memory_format=torch.channels_last)).relu()
        images = self.to_image(maps).float().sigmoid()[:, :, : self.spec.height, : self.spec.width]
        return (images * (1 + 2 * self.overshoot) - self.overshoot).clamp(0, 1) if self.overshoot else images

    def latents(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, self.latent_size, generator=generator, device=generator.device)

    def sample(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """One image for each label."""
        return self.jitter(self(self.latents(len(labels), generator), self._groups(labels, generator)), generator)

    def _groups(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Kinds are drawn by their shares."""
        if self.num_groups == self.spec.num_classes:
            return labels
        kinds = torch.multinomial(self.kind_shares[labels], 1, generator=generator)[:, 0]
        return labels * self.kind_shares.shape[1] + kinds
