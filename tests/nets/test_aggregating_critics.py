"""The networks of DPAF: their layouts, and features that depend on one image and are as long as their bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets.aggregating_critics import (
    AggregatingCritic,
    ConvLayout,
    SplitConvNet,
    feature_norm,
    feature_shape,
    map_shapes,
    normalised,
)
from veilset.randomness import named_generator

MNIST = ImageSpec(height=28, width=28, channels=1, class_names=tuple("0123456789"))
CELEBA = ImageSpec(height=32, width=32, channels=3, class_names=("female", "male"))
TABLES = ("C1-C1-x", "C1-C2-x", "C2-C1-x", "C1-C3-x", "C2-C2-x", "C3-C1-x", "C2-C2-C1", "C1-C3-C1", "C2-C1-C1",
          "C2-C1-C2", "C3-C1-C1")  # fmt: skip
"""All arrangements of tables 10 and 11 of the paper."""


def critic(
    spec: ImageSpec = MNIST, layout: str = "C2-C1-x", activation: str = "leaky-relu", by_class: bool = True
) -> AggregatingCritic:
    made = AggregatingCritic(
        spec,
        ConvLayout.of(layout),
        width=16,
        dense_width=8,
        activation=activation,  # type: ignore[arg-type]
        num_groups=spec.num_classes if by_class else 1,
    )
    return made.drawn(named_generator(0, "critic"))


def images(spec: ImageSpec, number: int) -> tuple[Tensor, Tensor]:
    draws = named_generator(1, "images")
    labels = torch.randint(spec.num_classes, (number,), generator=draws)
    return torch.rand(number, *spec.shape, generator=draws), labels


@pytest.mark.parametrize("layout", TABLES)
@pytest.mark.parametrize("spec", [MNIST, CELEBA], ids=["MNIST", "CelebA"])
def test_every_layout_of_the_paper_can_be_built_with_its_numbers_of_layers(layout: str, spec: ImageSpec) -> None:
    net = critic(spec, layout)
    counts = [0 if part == "x" else int(part[1]) for part in layout.split("-")]
    assert [len(net.conv1), len(net.conv2), len(net.conv3)] == counts
    some, labels = images(spec, 3)
    assert net.score(net.features(some, labels), net.groups_of(labels)).shape == (3,)
    classes = SplitConvNet(spec, ConvLayout.of(layout), width=16, dense_width=8, outputs=4, activation="tanh")
    assert classes.drawn(named_generator(0, "classifier"))(images(spec, 3)[0]).shape == (3, 4)


@pytest.mark.parametrize("text", ["", "C2", "C2-C1", "C0-C1-x", "x-C1-x", "C2-x-x", "C2-C1-X", "C2-C1-C0", "c2-c1-x"])
def test_a_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="C2-C1-x"):
        ConvLayout.of(text)


def test_sides_are_halved_and_rounded_up_and_widths_doubled_up_to_eight_times() -> None:
    assert map_shapes(MNIST, 3, 32) == [(1, 28, 28), (32, 14, 14), (64, 7, 7), (128, 4, 4)]
    assert [channels for channels, *_ in map_shapes(CELEBA, 6, 16)] == [3, 16, 32, 64, 128, 128, 128]
    odd = ImageSpec(height=9, width=13, channels=1, class_names=("a",))
    net = critic(odd, "C1-C1-x")
    assert net.features(*images(odd, 2)).shape[1:] == map_shapes(odd, 2, 16)[-1] == net.feature_shape


def test_a_layout_that_leaves_one_pixel_is_refused() -> None:
    with pytest.raises(ConfigError, match="one pixel"):
        feature_shape(CELEBA, ConvLayout.of("C3-C2-x"), 16)
    assert feature_shape(CELEBA, ConvLayout.of("C2-C2-C1"), 16) == (128, 2, 2)


def test_features_have_the_length_of_their_bound_and_never_more() -> None:
    net = critic()
    lengths = net.features(*images(MNIST, 20)).flatten(1).norm(dim=1)
    bound = feature_norm(net.feature_shape)
    assert bound == math.sqrt(64) * 4, "sqrt(maps) times the side, as in the paper"
    assert bool((lengths <= bound * (1 + 1e-6)).all())
    assert bool((lengths > 0.9 * bound).all())


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e6])
def test_normalised_maps_are_no_longer_than_the_bound_whatever_they_are(scale: float) -> None:
    maps = torch.randn(5, 3, 4, 4, generator=named_generator(2, "maps"), dtype=torch.float64) * scale
    assert bool((normalised(maps).flatten(1).norm(dim=1) <= math.sqrt(48) * (1 + 1e-12)).all())
    assert not bool(normalised(torch.full((1, 3, 4, 4), scale)).abs().gt(1e-3).any()), "a flat map has nothing left"


def test_the_features_of_an_image_depend_neither_on_other_images_nor_on_its_place() -> None:
    net, (pixels, labels) = critic(), images(MNIST, 8)
    alone = net.features(pixels, labels)
    other = pixels.clone()
    other[1:] = 0
    assert torch.equal(net.features(other, labels)[0], alone[0])
    assert torch.equal(net.features(pixels.flip(0), labels.flip(0)).flip(0), alone)


def test_a_label_changes_the_features() -> None:
    net, (pixels, labels) = critic(), images(MNIST, 8)
    assert not torch.allclose(net.features(pixels, labels), net.features(pixels, (labels + 1) % 10), atol=1e-3)


@pytest.mark.parametrize(("by_class", "groups"), [(True, [3, 0, 9]), (False, [0, 0, 0])])
def test_means_are_of_each_class_or_of_all_images_together(by_class: bool, groups: list[int]) -> None:
    net = critic(by_class=by_class)
    assert net.groups_of(torch.tensor([3, 0, 9])).tolist() == groups
    assert net.num_groups == (10 if by_class else 1)


def test_the_parts_before_and_after_the_mean_hold_every_weight_but_the_transferred_ones_once() -> None:
    net = critic(CELEBA, "C2-C2-C1")
    parts = [*net.conv1.parameters(), *net.before_average(), *net.after_average()]
    assert len(parts) == len({id(weight) for weight in parts}) == len(list(net.parameters()))


def test_an_activation_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="tanh"):
        critic(activation="relu")
    assert not torch.equal(critic(activation="tanh").features(*images(MNIST, 2)), critic().features(*images(MNIST, 2)))
