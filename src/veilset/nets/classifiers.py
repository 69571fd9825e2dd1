"""Classifiers that judge synthetic images. Their randomness, dropout included, comes from passed generators only."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.randomness import initialise


def dropout(values: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Zeroes a share ``rate`` of ``values`` and scales up the rest; the generator lives on the device of ``values``.

    torch's own dropout takes no generator. Comparing uniform draws is also twice as fast as ``bernoulli_`` on a CPU.
    """
    keep = torch.rand(values.shape, generator=generator, device=values.device) >= rate
    return values * (keep * (1 / (1 - rate)))


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
        self.to_empty(device=generator.device)
        initialise(self, generator)

    def forward(self, images: Tensor, dropout_generator: torch.Generator | None = None) -> Tensor:
        """Images in [0, 1] to logits. In training mode the dropout masks are drawn from ``dropout_generator``."""
        if self.training and dropout_generator is None:
            raise ConfigError(
                "a generator for the dropout masks", "none in training mode", "Pass one, or call eval() first."
            )
        masks = dropout_generator if self.training else None
        # ReLU and max-pool commute, gradients included; pooling first leaves ReLU a quarter of the work.
        hidden = F.relu(F.max_pool2d(self.conv2(F.relu(self.conv1(images))), 2)).flatten(1)
        hidden = hidden if masks is None else dropout(hidden, 0.25, masks)
        hidden = F.relu(self.dense1(hidden))
        hidden = hidden if masks is None else dropout(hidden, 0.5, masks)
        return self.dense2(hidden)
