"""The networks of DPAF: a classifier, and a critic that judges the mean features of a batch instead of single images.

Convolutions come in three parts, counted by a layout such as "C2-C1-x": the critic takes the first part from the
classifier, averages what the second part makes of the images of a batch, and scores that average by the third part and
two dense layers. No layer before the average looks at another image.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets.classifiers import draw_weights

KERNEL, WIDEST = 4, 8
"""Side of a convolution; how many times as wide as the first one the widest may be."""
NORM_EPSILON = 1e-5
"""Added to the variance of a map: it can only shorten normalised features."""

Activation = Literal["leaky-relu", "tanh"]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky-relu": lambda values: F.leaky_relu(values, 0.2),
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class ConvLayout:
    """How many convolutions are conv1, conv2* and conv3* of the paper.

    >>> ConvLayout.of("C2-C1-x")
    ConvLayout(transferred=2, averaged=1, scoring=0)
    """

    transferred: int
    averaged: int
    scoring: int

    @classmethod
    def of(cls, text: str) -> ConvLayout:
        found = re.fullmatch(r"C([1-9])-C([1-9])-(?:C([1-9])|x)", text)
        if found is None:
            raise ConfigError("a layout such as C2-C1-x or C2-C2-C1", f"{text!r}", "Correct the option.")
        return cls(*(int(part or 0) for part in found.groups()))

    @property
    def before_average(self) -> int:
        return self.transferred + self.averaged


class SplitConvNet(nn.Module):
    """Convolutions that halve an image and double their width, in three parts, and two dense layers."""

    def __init__(
        self, spec: ImageSpec, layout: ConvLayout, *, width: int, dense_width: int, outputs: int, activation: Activation
    ) -> None:
        super().__init__()
        if activation not in get_args(Activation):
            raise ConfigError(f"one of {', '.join(get_args(Activation))}", f"{activation!r}", "Correct the option.")
        self.act = _ACTIVATIONS[activation]
        number = layout.before_average + layout.scoring
        shapes = map_shapes(spec, number, width)
        # On the meta device torch's constructors draw nothing from the global generator.
        with torch.device("meta"):
            convs = [_halving(before, after) for before, after in itertools.pairwise(shapes)]
            self.conv1 = nn.ModuleList(convs[: layout.transferred])
            self.conv2 = nn.ModuleList(convs[layout.transferred : layout.before_average])
            self.conv3 = nn.ModuleList(convs[layout.before_average :])
            self.dense1 = nn.Linear(math.prod(shapes[-1]), dense_width)
            self.dense2 = nn.Linear(dense_width, outputs)

    def drawn(self, generator: torch.Generator) -> Self:
        """Itself, with memory and weights."""
        draw_weights(self, generator)
        return self

    def behind_conv1(self) -> list[nn.Parameter]:
        """All weights but those of the first part, in their order, which is after those."""
        first = set(self.conv1.parameters())
        return [value for value in self.parameters() if value not in first]

    def forward(self, images: Tensor) -> Tensor:
        """Images in [0, 1] to numbers."""
        return self.scored(self.convolved(2 * images - 1, (*self.conv1, *self.conv2)))

    def convolved(self, maps: Tensor, convs: Iterable[nn.Module]) -> Tensor:
        for conv in convs:
            maps = self.act(conv(maps))
        return maps

    def scored(self, maps: Tensor) -> Tensor:
        """Maps after the second part to numbers: the third part and the dense layers."""
        hidden = self.convolved(maps, self.conv3).flatten(1)
        return self.dense2(self.act(self.dense1(hidden)))


class AggregatingCritic(SplitConvNet):
    """Scores means over a batch of normalised features; or, where there is no batch, the features of one image.

    Means are of groups of images: of each class, or of all images together. A label is an addend of each map of the
    second convolution, which is the same, up to the border, as constant maps of its embedding beside the input of that
    convolution (cDCGAN). Each group has a score of its own: a common one could tell whether a mean is that of some
    class, but not of which.
    """

    def __init__(
        self,
        spec: ImageSpec,
        layout: ConvLayout,
        *,
        width: int,
        dense_width: int,
        activation: Activation,
        num_groups: int,
    ) -> None:
        super().__init__(spec, layout, width=width, dense_width=dense_width, outputs=num_groups, activation=activation)
        self.num_classes, self.num_groups = spec.num_classes, num_groups
        shapes = map_shapes(spec, layout.before_average, width)
        self.feature_shape = shapes[-1]
        with torch.device("meta"):
            self.label = nn.Linear(spec.num_classes, shapes[2][0], bias=False)

    def groups_of(self, labels: Tensor) -> Tensor:
        """The mean to which an image of each label contributes."""
        return labels if self.num_groups > 1 else torch.zeros_like(labels)

    def before_average(self) -> list[nn.Parameter]:
        """What is trained and lies before the average: conv2* and the embedding of labels."""
        return [*self.conv2.parameters(), *self.label.parameters()]

    def after_average(self) -> list[nn.Parameter]:
        return [value for part in (self.conv3, self.dense1, self.dense2) for value in part.parameters()]

    def features(self, images: Tensor, labels: Tensor) -> Tensor:
        """(n, maps, height, width), normalised; an image's features depend on it and its label alone."""
        first, second, *others = (*self.conv1, *self.conv2)
        addend = self.label(F.one_hot(labels, self.num_classes).to(images.dtype))
        maps = self.act(second(self.convolved(2 * images - 1, [first])) + addend[:, :, None, None])
        return normalised(self.convolved(maps, others))

    def score(self, features: Tensor, groups: Tensor) -> Tensor:
        """(n,), of features of images of these groups."""
        return self.scored(features).gather(1, groups[:, None])[:, 0]

    def score_means(self, means: Tensor) -> Tensor:
        """(groups,), of an average for each group."""
        return self.score(means, torch.arange(self.num_groups, device=means.device))


def normalised(maps: Tensor) -> Tensor:
    """Simplified instance norm: every map of every image with mean 0 and variance at most 1, without factors.

    A map of p x p pixels then has a norm of at most p, and m of them of at most sqrt(m) p.
    """
    return F.group_norm(maps, maps.shape[1], eps=NORM_EPSILON)


def feature_norm(shape: tuple[int, ...]) -> float:
    """The bound of `normalised` maps of this shape."""
    return math.sqrt(math.prod(shape))


def map_shapes(spec: ImageSpec, number: int, width: int) -> list[tuple[int, int, int]]:
    """Channels, height and width of an image and after each of `number` convolutions."""
    shapes = [spec.shape]
    for level in range(number):
        _, height, side = shapes[-1]
        shapes.append((width * min(2**level, WIDEST), -(-height // 2), -(-side // 2)))
    return shapes


def feature_shape(spec: ImageSpec, layout: ConvLayout, width: int) -> tuple[int, int, int]:
    """Of what is averaged.

    Raises: ConfigError where a map has one pixel: it would be its own mean, and nothing would be left of it.
    """
    shape = map_shapes(spec, layout.before_average, width)[-1]
    if shape[1] * shape[2] < 2:
        raise ConfigError(
            f"a layout that leaves more than one pixel of {spec.height} x {spec.width}",
            f"{layout.before_average} convolutions before the average",
            "Use fewer of them.",
        )
    return shape


def _halving(before: tuple[int, int, int], after: tuple[int, int, int]) -> nn.Conv2d:
    """Stride 2; odd sides are rounded up by another row of padding."""
    padding = (1 + before[1] % 2, 1 + before[2] % 2)
    return nn.Conv2d(before[0], after[0], KERNEL, stride=2, padding=padding)
