"""Classifiers that judge synthetic images. Their randomness, dropout included, comes from passed generators only."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets.pooling import average_of_fours
from veilset.randomness import initialise


def dropout(values: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Zeroes a share ``rate`` of ``values`` and scales up the rest; the generator lives on the device of ``values``.

    torch's own dropout takes no generator. Comparing uniform draws is also twice as fast as ``bernoulli_`` on a CPU.
    """
    # Drawn in the memory layout of the values, and scaled in their type: mixing either one costs a copy.
    keep = torch.empty_like(values, dtype=torch.float32).uniform_(generator=generator) >= rate
    return values * (keep * (1 / (1 - rate))).to(values.dtype)


def masks_of(module: nn.Module, dropout_generator: torch.Generator | None) -> torch.Generator | None:
    """Where ``module`` draws its dropout masks from, or None where it draws none because it is not in training."""
    if module.training and dropout_generator is None:
        raise ConfigError(
            "a generator for the dropout masks", "none in training mode", "Pass one, or call eval() first."
        )
    return dropout_generator if module.training else None


def draw_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Gives memory and weights to a module built on the meta device."""
    module.to_empty(device=generator.device)
    restart(module, generator)


def restart(module: nn.Module, generator: torch.Generator) -> None:
    """New weights, and norms at 1 and 0, in the old tensors, where a CUDA graph expects them."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            layer.reset_parameters()
    initialise(module, generator)


class PaperCnn(nn.Module):
    """The 32/64 CNN by which published DP generators are compared on MNIST-like data (1,199,882 parameters there).

    conv 3x3 32, ReLU, conv 3x3 64, ReLU, max-pool 2, dropout 0.25, dense 128, ReLU, dropout 0.5, dense classes;
    no padding. Reference: the evaluation CNN of "Private GANs, Revisited" (Bie et al. 2023); layers only, its batch
    size and its model selection differ from ours.
    """

    def __init__(self, spec: ImageSpec, generator: torch.Generator) -> None:
        super().__init__()
        pooled_values = 64 * ((spec.height - 4) // 2) * ((spec.width - 4) // 2)
        # On the meta device torch's constructors draw nothing from the global generator.
        with torch.device("meta"):
            self.conv1 = nn.Conv2d(spec.channels, 32, 3)
            self.conv2 = nn.Conv2d(32, 64, 3)
            self.dense1 = nn.Linear(pooled_values, 128)
            self.dense2 = nn.Linear(128, spec.num_classes)
        draw_weights(self, generator)

    def forward(self, images: Tensor, dropout_generator: torch.Generator | None = None) -> Tensor:
        """Images in [0, 1] to logits. In training mode the dropout masks are drawn from ``dropout_generator``."""
        masks = masks_of(self, dropout_generator)
        # ReLU and max-pool commute, gradients included; pooling first leaves ReLU a quarter of the work.
        hidden = F.relu(F.max_pool2d(self.conv2(F.relu(self.conv1(images))), 2)).flatten(1)
        hidden = hidden if masks is None else dropout(hidden, 0.25, masks)
        hidden = F.relu(self.dense1(hidden))
        hidden = hidden if masks is None else dropout(hidden, 0.5, masks)
        return self.dense2(hidden)


class LeNet5(nn.Module):
    """conv 5x5 6, ReLU, max-pool 2, conv 5x5 16, ReLU, max-pool 2, dense 120, 84, classes (61,706 weights for MNIST).

    Images below 32 pixels a side are padded by 2, as in the paper's code for 28 pixels, and by more below 12, where
    nothing would be left to pool. Reference: the evaluation network of GS-WGAN (Chen et al. 2020), code.
    """

    def __init__(self, spec: ImageSpec, generator: torch.Generator) -> None:
        super().__init__()
        padding = [2 + max(0, 12 - side + 1) // 2 if side < 32 else 0 for side in (spec.height, spec.width)]
        rows, columns = (
            ((side + 2 * pad - 4) // 2 - 4) // 2 for side, pad in zip((spec.height, spec.width), padding, strict=True)
        )
        with torch.device("meta"):
            self.conv1 = nn.Conv2d(spec.channels, 6, 5, padding=(padding[0], padding[1]))
            self.conv2 = nn.Conv2d(6, 16, 5)
            self.dense1 = nn.Linear(16 * rows * columns, 120)
            self.dense2 = nn.Linear(120, 84)
            self.dense3 = nn.Linear(84, spec.num_classes)
        draw_weights(self, generator)

    def forward(self, images: Tensor, dropout_generator: torch.Generator | None = None) -> Tensor:
        hidden = F.relu(F.max_pool2d(self.conv1(images), 2))
        hidden = F.relu(F.max_pool2d(self.conv2(hidden), 2)).flatten(1)
        return self.dense3(F.relu(self.dense2(F.relu(self.dense1(hidden)))))


class ConvNet(nn.Module):
    """Three times conv 3x3 128, instance norm, ReLU, average-pool 2; then one dense layer (317,706 weights for MNIST).

    28 pixels a side become 32 by the padding of the first layer. Reference: PSG (Chen et al. 2022), whose width is 128.
    """

    def __init__(self, spec: ImageSpec, generator: torch.Generator, *, width: int = 128) -> None:
        super().__init__()
        padding = [3 if side == 28 else 1 for side in (spec.height, spec.width)]
        rows, columns = (
            (side + 2 * pad - 2) // 8 for side, pad in zip((spec.height, spec.width), padding, strict=True)
        )
        with torch.device("meta"):
            self.convs = nn.ModuleList(
                nn.Conv2d(before, width, 3, padding=pad)
                for before, pad in ((spec.channels, (padding[0], padding[1])), (width, (1, 1)), (width, (1, 1)))
            )
            self.norms = nn.ModuleList(nn.GroupNorm(width, width) for _ in self.convs)
            self.dense = nn.Linear(width * rows * columns, spec.num_classes)
        draw_weights(self, generator)

    def forward(self, images: Tensor, dropout_generator: torch.Generator | None = None) -> Tensor:
        return self.dense(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the dense layer sees: (n, numbers)."""
        hidden = images
        for conv, norm in zip(self.convs, self.norms, strict=True):
            hidden = average_of_fours(F.relu(norm(conv(hidden))))
        return hidden.flatten(1)
