import itertools

import pytest
import torch

from veilset.data.spec import ImageSpec
from veilset.nets.vgg import SIDE, Vgg11, to_side
from veilset.randomness import named_generator


def spec(height=28, width=28, channels=1, classes=10):
    names = tuple(f"class {number}" for number in range(classes))
    return ImageSpec(height=height, width=width, channels=channels, class_names=names)


def test_the_parameter_count_for_mnist_equals_the_hand_computed_one():
    widths = [1, 64, 128, 256, 256, 512, 512, 512, 512]
    convolutions = sum(9 * a * b + b + 2 * b for a, b in itertools.pairwise(widths))
    model = Vgg11(spec(), named_generator(0, "weights"))
    assert sum(parameter.numel() for parameter in model.parameters()) == convolutions + 512 * 10 + 10


@pytest.mark.parametrize(("height", "width", "channels", "classes"), [(8, 8, 1, 2), (28, 28, 1, 10), (33, 64, 3, 5)])
def test_any_image_shape_gives_one_finite_logit_per_class(height, width, channels, classes):
    model = Vgg11(spec(height, width, channels, classes), named_generator(0, "weights")).eval()
    logits = model(torch.rand(2, channels, height, width, generator=named_generator(0, "images")))
    assert logits.shape == (2, classes)
    assert bool(logits.isfinite().all())


def test_the_black_frame_around_28_pixels_is_the_padding_of_3_in_the_paper():
    conv = torch.nn.functional.conv2d
    images = torch.rand(2, 1, 28, 28, generator=named_generator(0, "images"))
    weight = torch.rand(4, 1, 3, 3, generator=named_generator(0, "weight"))
    torch.testing.assert_close(conv(to_side(images), weight, padding=1), conv(images, weight, padding=3))
    assert to_side(images).shape[2:] == (SIDE, SIDE)


def test_building_draws_nothing_from_global_state():
    before = torch.get_rng_state()
    Vgg11(spec(), named_generator(0, "weights"))
    assert torch.equal(torch.get_rng_state(), before)
