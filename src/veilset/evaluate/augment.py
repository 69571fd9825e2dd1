"""Random changes of images in training, all images of a batch at once."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SCALE = 0.2
DEGREES = 45.0


def crop_scale_or_rotate(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image is shifted by up to an eighth of its size, scaled by up to 20% per axis, or turned by up to 45°.

    One of the three per image; new pixels are 0, the mean of standardised images. With a ``generator`` on the CPU every
    device sees the same images. This is how PSG (Chen et al. 2022, code) trains its evaluation networks; it pads by 4
    pixels, an eighth of 32, and interpolates by nearest (scaling) or cubic (rotation), where we are bilinear.
    """
    count, _, height, width = images.shape
    draws = torch.rand(4, count, generator=generator, device=generator.device)
    kind = (draws[0] * 3).long()
    one, zero = torch.ones_like(draws[0]), torch.zeros_like(draws[0])
    # From -limit to limit - 1, whole pixels; grid coordinates count half sides.
    across, down = (
        2 * ((draw * 2 * limit).floor() - limit) / side
        for draw, side in zip(draws[1:3], (width, height), strict=True)
        for limit in (_shift_limit(side),)
    )
    wider, taller = (1 / (1 + SCALE * (2 * draw - 1)) for draw in draws[1:3])
    angle = math.radians(DEGREES) * (2 * draws[3] - 1)
    cosine, sine, ratio = angle.cos(), angle.sin(), height / width
    # No indexing by kind: a CUDA graph cannot record what depends on how many images there are of each.
    shifted = torch.stack([one, zero, across, zero, one, down])
    scaled = torch.stack([wider, zero, zero, zero, taller, zero])
    turned = torch.stack([cosine, -sine * ratio, zero, sine / ratio, cosine, zero])
    chosen = torch.where(kind == 0, shifted, torch.where(kind == 1, scaled, turned))
    grid = F.affine_grid(chosen.T.reshape(count, 2, 3).to(images.device), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).contiguous(memory_format=torch.channels_last)


def _shift_limit(side: int) -> float:
    return float(math.floor(side / 8 + 0.5))


def random_crops_and_flips(images: Tensor, generator: torch.Generator, *, padding: int = 4) -> Tensor:
    """Each image shifted by up to `padding` pixels over black, and mirrored with probability 1/2."""
    count, _, height, width = images.shape
    draws = torch.rand(3, count, generator=generator, device=generator.device).to(images.device)
    tops, lefts = (draws[:2] * (2 * padding + 1)).long()
    mirrored = draws[2] < 0.5
    rows = tops[:, None] + torch.arange(height, device=images.device)
    columns = lefts[:, None] + torch.arange(width, device=images.device)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = F.pad(images, (padding,) * 4)
    index = torch.arange(count, device=images.device)
    # Advanced indices around a slice: the channel axis comes last and moves back.
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
