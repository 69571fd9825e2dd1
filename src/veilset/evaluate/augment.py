"""Random changes of images in training, all images of a batch at once."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SCALE = 0.2
DEGREES = 45.0


def crop_scale_or_rotate(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image is shifted by up to an eighth of its size, scaled by up to 20% per axis, or turned by up to 45°.

    One of the three per image; new pixels are 0, the mean of standardised images. ``generator`` lives on the CPU, so
    that every device sees the same images. This is how PSG (Chen et al. 2022, code) trains its evaluation networks; it
    pads by 4 pixels, an eighth of 32, and interpolates by nearest (scaling) or cubic (rotation), where we are bilinear.
    """
    count, _, height, width = images.shape
    draws = torch.rand(count, 4, generator=generator)
    kind = (draws[:, 0] * 3).long()
    matrices = torch.eye(2, 3).repeat(count, 1, 1)
    limits = torch.tensor([_shift_limit(width), _shift_limit(height)])
    pixels = (draws[:, 1:3] * 2 * limits).floor() - limits  # from -limit to limit - 1, whole pixels
    shifts = 2 * pixels / torch.tensor([width, height])
    factors = 1 + SCALE * (2 * draws[:, 1:3] - 1)
    angles = math.radians(DEGREES) * (2 * draws[:, 3] - 1)
    ratio = height / width
    cosine, sine = angles.cos(), angles.sin()
    turned = torch.stack([torch.stack([cosine, -sine * ratio], 1), torch.stack([sine / ratio, cosine], 1)], dim=1)
    matrices[kind == 0, :, 2] = shifts[kind == 0]
    matrices[kind == 1, :, :2] = torch.diag_embed(1 / factors[kind == 1])
    matrices[kind == 2, :, :2] = turned[kind == 2]
    grid = F.affine_grid(matrices.to(images.device), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).contiguous(memory_format=torch.channels_last)


def _shift_limit(side: int) -> float:
    return float(math.floor(side / 8 + 0.5))
