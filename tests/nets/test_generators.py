"""Generators give images of the declared shape, from arguments alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from veilset.data.spec import ImageSpec
from veilset.nets.generators import ConvGenerator, DoublingConv, UpsamplingGenerator
from veilset.randomness import initialise, named_generator


def generator_for(height: int = 8, width: int = 8, channels: int = 1, classes: int = 3) -> ConvGenerator:
    spec = ImageSpec(height=height, width=width, channels=channels, class_names=tuple(f"c{k}" for k in range(classes)))
    generator = ConvGenerator(spec, latent_size=4, hidden_size=8, map_channels=8)
    initialise(generator, named_generator(0, "weights"))
    return generator.eval()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 11), (13, 9), (9, 9), (28, 28), (17, 64), (33, 8)])
def test_images_have_the_declared_shape_and_range(height: int, width: int, channels: int) -> None:
    generator = generator_for(height, width, channels)
    with torch.no_grad():
        images = generator(generator.latents(5, named_generator(0, "z")), torch.tensor([0, 1, 2, 0, 1]))
    assert images.shape == (5, channels, height, width)
    assert bool(((images >= 0) & (images <= 1)).all())


@pytest.mark.parametrize(("height", "width"), [(8, 8), (13, 9), (40, 24)])
def test_the_smallest_map_has_at_most_eight_pixels_a_side(height: int, width: int) -> None:
    _, map_height, map_width = generator_for(height, width).map_shape
    assert 1 <= map_height <= 8
    assert 1 <= map_width <= 8


def test_the_label_changes_the_image() -> None:
    generator = generator_for()
    latents = generator.latents(1, named_generator(0, "z"))
    with torch.no_grad():
        first, second = generator(latents, torch.tensor([0])), generator(latents, torch.tensor([1]))
    assert not torch.equal(first, second)


def test_an_image_does_not_depend_on_its_batch_when_sampling() -> None:
    generator = generator_for()
    latents, labels = generator.latents(6, named_generator(0, "z")), torch.tensor([0, 1, 2, 0, 1, 2])
    with torch.no_grad():
        together = generator(latents, labels)
        alone = torch.cat([generator(latents[k : k + 1], labels[k : k + 1]) for k in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_latents_come_from_the_given_generator_alone() -> None:
    generator = generator_for()
    torch.manual_seed(1)
    first = generator.latents(3, named_generator(7, "z"))
    torch.manual_seed(2)
    assert torch.equal(first, generator.latents(3, named_generator(7, "z")))
    assert not torch.equal(first, generator.latents(3, named_generator(8, "z")))


def test_every_pixel_can_be_learned() -> None:
    generator = generator_for(13, 9).train()
    generator(generator.latents(4, named_generator(0, "z")), torch.tensor([0, 1, 2, 0])).sum().backward()
    for name, parameter in generator.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name


@pytest.mark.parametrize("map_channels", [1, 4, 7, 8, 33])
def test_any_number_of_map_channels_works(map_channels: int) -> None:
    spec = ImageSpec(height=28, width=20, channels=3, class_names=("a", "b"))
    generator = ConvGenerator(spec, latent_size=2, hidden_size=4, map_channels=map_channels).eval()
    assert generator(torch.zeros(2, 2), torch.tensor([0, 1])).shape == (2, 3, 28, 20)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (7, 7)])
def test_a_doubling_convolution_is_a_convolution_of_doubled_pixels(height: int, width: int) -> None:
    layer = initialise(DoublingConv(3, 5), named_generator(0, "weights"))
    maps = torch.randn(2, 3, height, width, generator=named_generator(0, "maps"))
    plain = F.conv2d(F.interpolate(maps, scale_factor=2.0), layer.weight, layer.bias, padding=1)
    torch.testing.assert_close(layer(maps), plain)


@pytest.mark.parametrize(
    ("overshoot", "logit", "level"), [(0.25, -2.0, 0.0), (0.25, 2.0, 1.0), (0.25, 0.0, 0.5), (0.0, -2.0, 0.119)]
)
def test_a_generator_that_overshoots_shows_pure_black_and_white(overshoot: float, logit: float, level: float) -> None:
    spec = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b"))
    generator = UpsamplingGenerator(spec, latent_size=2, channels=4, overshoot=overshoot).eval()
    last = generator.to_image[-1]
    assert isinstance(last, torch.nn.Conv2d)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(logit)
        images = generator(torch.zeros(2, 2), torch.tensor([0, 1]))
    torch.testing.assert_close(images, torch.full_like(images, level), atol=1e-3, rtol=0)
