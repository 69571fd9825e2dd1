"""VGG-11 with batch normalisation, the classifier behind the Inception score of grey 28x28 data sets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.nets.classifiers import draw_weights

SIDE = 32
_WIDTHS = (64, 128, (256, 256), (512, 512), (512, 512))


class Vgg11(nn.Module):
    """Eight 3x3 convolutions in five pooled stages, then one dense layer 512 -> classes.

    The five stages halve 32x32 down to one pixel, so smaller images get a black frame (28x28: the first convolution's
    padding of 3 in GS-WGAN, Chen et al. 2020) and larger ones are resized.
    """

    def __init__(self, spec: ImageSpec, generator: torch.Generator) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inside = spec.channels
        # On the meta device torch's constructors draw nothing from the global generator.
        with torch.device("meta"):
            for stage in _WIDTHS:
                for width in (stage,) if isinstance(stage, int) else stage:
                    layers += [nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                    inside = width
                layers.append(nn.MaxPool2d(2))
            self.stages = nn.Sequential(*layers)
            self.dense = nn.Linear(inside, spec.num_classes)
        draw_weights(self, generator)

    def forward(self, images: Tensor, dropout_generator: torch.Generator | None = None) -> Tensor:
        """Images in [0, 1] to logits. There is no dropout."""
        return self.dense(self.stages(to_side(images)).flatten(1))


def to_side(images: Tensor) -> Tensor:
    """Images of any size as 32x32: each side is padded with black or, where too long, resized."""
    height, width = (min(size, SIDE) for size in images.shape[2:])
    if (height, width) != tuple(images.shape[2:]):
        images = F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)
    top, left = (SIDE - height) // 2, (SIDE - width) // 2
    return F.pad(images, (left, SIDE - width - left, top, SIDE - height - top))
