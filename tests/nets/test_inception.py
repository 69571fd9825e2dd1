"""The network's shape and its resize rule. Parity with the published TorchScript is in test_extractors.py."""

import pytest
import torch

from veilset.nets.inception import FEATURES, SIDE, FidInception, inception_input, resize_tf1
from veilset.randomness import named_generator


def random_net():
    net, draws = FidInception().eval(), named_generator(0, "weights")
    tensors = {}
    for name, tensor in net.state_dict().items():
        fan_in = tensor[0].numel() if tensor.dim() > 1 else 1
        scale = (2 / fan_in) ** 0.5 if tensor.dim() > 1 else 0.1
        tensors[name] = torch.randn(tensor.shape, generator=draws) * scale
    net.load_state_dict(tensors, assign=True)
    return net.requires_grad_(False)


def test_the_network_has_the_published_number_of_convolutions_and_weights():
    tensors = FidInception().state_dict()
    weights = {name: tensor for name, tensor in tensors.items() if name.endswith(".weight")}
    assert len(weights) == 94
    assert len(tensors) == 2 * 94
    assert sum(tensor.numel() for tensor in weights.values()) == 21_751_136
    assert sum(tensor.numel() for tensor in tensors.values()) == 21_768_352


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("stem.0.weight", (32, 3, 3, 3)),
        ("stem.5.weight", (192, 80, 3, 3)),
        ("mixed.0.branches.1.1.weight", (64, 48, 5, 5)),
        ("mixed.4.branches.2.1.weight", (128, 128, 7, 1)),
        ("mixed.8.branches.1.3.weight", (192, 192, 3, 3)),
        ("mixed.10.branches.2.2.branches.1.weight", (384, 384, 3, 1)),
        ("mixed.10.branches.3.1.bias", (192,)),
    ],
)
def test_parameters_keep_their_names_and_shapes_because_the_weights_file_uses_them(name, shape):
    assert tuple(FidInception().state_dict()[name].shape) == shape


def test_building_the_network_draws_nothing_from_global_state():
    before = torch.get_rng_state()
    assert all(tensor.is_meta for tensor in FidInception().state_dict().values())
    assert torch.equal(torch.get_rng_state(), before)


def test_two_runs_on_the_same_weights_give_the_same_features():
    images = torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8, generator=named_generator(0, "images"))
    first, second = (random_net()(inception_input(images)) for _ in range(2))
    assert first.shape == (2, FEATURES)
    assert torch.equal(first, second)
    assert bool((first >= 0).all())
    assert not torch.allclose(first[0], first[1])


def tf1_by_hand(image, side):
    """TensorFlow 1's bilinear resize of a list of rows, one pixel at a time."""
    height, width = len(image), len(image[0])

    def corner(i, size):
        position = i * size / side
        low = int(position)
        return low, min(low + 1, size - 1), position - low

    out = []
    for i in range(side):
        top, bottom, down = corner(i, height)
        row = []
        for j in range(side):
            left, right, across = corner(j, width)
            upper = image[top][left] * (1 - across) + image[top][right] * across
            lower = image[bottom][left] * (1 - across) + image[bottom][right] * across
            row.append(upper * (1 - down) + lower * down)
        out.append(row)
    return out


@pytest.mark.parametrize(("height", "width", "side"), [(3, 2, 7), (8, 8, 5), (4, 6, 4), (13, 28, 29)])
def test_resize_equals_a_hand_written_tensorflow_1_rule(height, width, side):
    image = torch.rand(height, width, generator=named_generator(0, "image"))
    expected = torch.tensor(tf1_by_hand(image.tolist(), side))
    torch.testing.assert_close(resize_tf1(image[None, None], side)[0, 0], expected, rtol=0, atol=1e-6)


def test_resize_has_neither_half_pixel_shift_nor_antialiasing():
    ramp = torch.tensor([0.0, 100.0]).repeat(2, 1)[None, None]
    assert resize_tf1(ramp, 4)[0, 0, 0].tolist() == [0.0, 50.0, 100.0, 100.0]
    stripes = torch.tensor([0.0, 255.0] * 4).repeat(8, 1)[None, None]
    assert resize_tf1(stripes, 4).unique().tolist() == [0.0]
    modern = torch.nn.functional.interpolate(ramp, (4, 4), mode="bilinear")
    assert not torch.allclose(resize_tf1(ramp, 4), modern)


def test_an_image_of_the_right_size_is_not_resampled():
    image = torch.randint(0, 256, (1, 3, SIDE, SIDE), dtype=torch.uint8, generator=named_generator(0, "image"))
    torch.testing.assert_close(inception_input(image), (image.float() - 128) / 128, rtol=0, atol=1e-4)


def test_grey_is_replicated_and_black_and_white_land_where_the_network_expects_them():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1).expand(2, 1, 8, 8)
    prepared = inception_input(pixels)
    assert prepared.shape == (2, 3, SIDE, SIDE)
    assert prepared[0].unique().tolist() == [-1.0]
    assert prepared[1].unique().tolist() == [127 / 128]
