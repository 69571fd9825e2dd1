from functools import partial

import pytest
import torch

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets.classifiers import ConvNet, LeNet5
from veilset.nets.resnets import ResNet, ResNeXt, WideResNet
from veilset.randomness import named_generator

NETWORKS = {
    "lenet": LeNet5,
    "convnet": ConvNet,
    "resnet-8": partial(ResNet, depth=8),
    "resnet-110": partial(ResNet, depth=110),
    "wrn-40-4": WideResNet,
    "resnext-29": ResNeXt,
}


def spec(height=32, width=32, channels=3, classes=10):
    return ImageSpec(
        height=height, width=width, channels=channels, class_names=tuple(f"class {i}" for i in range(classes))
    )


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def weights():
    return named_generator(0, "weights")


@pytest.mark.parametrize(
    ("name", "published", "exact"),
    [("resnet-110", 1.73e6, 1_730_714), ("wrn-40-4", 8.9e6, 8_949_210), ("resnext-29", 34.4e6, 34_426_698)],
)
def test_parameter_counts_for_cifar_equal_the_published_ones(name, published, exact):
    count = size(NETWORKS[name](spec(), weights()))
    assert count == exact
    # The papers print three digits, and ResNet-110 there has no projections.
    assert count == pytest.approx(published, rel=6e-3)


def test_resnet_has_the_hand_computed_number_of_parameters():
    stem = 3 * 16 * 9 + 2 * 16
    stage1 = 2 * (16 * 16 * 9 + 2 * 16)
    stage2 = 16 * 32 * 9 + 32 * 32 * 9 + 2 * 2 * 32 + (16 * 32 + 2 * 32)
    stage3 = 32 * 64 * 9 + 64 * 64 * 9 + 2 * 2 * 64 + (32 * 64 + 2 * 64)
    assert size(NETWORKS["resnet-8"](spec(), weights())) == stem + stage1 + stage2 + stage3 + 64 * 10 + 10


def test_small_networks_for_mnist_have_the_published_number_of_parameters():
    mnist = spec(28, 28, 1)
    assert size(ConvNet(mnist, weights())) == 317_706
    assert size(LeNet5(mnist, weights())) == 61_706


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("height", "width", "channels"), [(8, 8, 1), (9, 13, 3), (28, 28, 1)])
def test_any_image_shape_gives_one_finite_logit_per_class(name, height, width, channels):
    model = NETWORKS[name](spec(height, width, channels, 3), weights()).eval()
    images = torch.rand(2, channels, height, width, generator=named_generator(0, "images"))
    with torch.inference_mode():
        logits = model(images)
    assert logits.shape == (2, 3)
    assert torch.isfinite(logits).all()
    assert not torch.equal(logits[0], logits[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_depend_on_the_passed_generator_alone(name):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = NETWORKS[name](spec(8, 8), weights())
        assert torch.equal(torch.get_rng_state(), before), "building a network advanced the global generator"
        torch.manual_seed(2)
        second = NETWORKS[name](spec(8, 8), weights())
    other = NETWORKS[name](spec(8, 8), named_generator(1, "weights"))
    for key, value in first.state_dict().items():
        assert torch.isfinite(value).all()
        assert torch.equal(value, second.state_dict()[key])
        if value.dim() > 1:
            assert not torch.equal(value, other.state_dict()[key])


def test_convolutions_start_with_the_variance_of_he_and_norms_at_one_and_zero():
    model = ResNet(spec(), weights(), depth=20)
    conv = model.blocks[-1].chain[1].conv.weight
    assert float(conv.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    norm = model.stem.norm
    assert torch.equal(norm.weight, torch.ones(16))
    assert torch.equal(norm.running_var, torch.ones(16))
    assert torch.equal(norm.running_mean, torch.zeros(16))


def test_the_stages_of_a_residual_network_halve_the_image_twice():
    model = ResNet(spec(), weights(), depth=8).eval()
    sizes = []
    for block in model.blocks:
        block.register_forward_hook(lambda block, images, result: sizes.append(tuple(result.shape[1:])))
    model(torch.zeros(1, 3, 32, 32))
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_the_wide_network_draws_its_dropout_from_the_passed_generator():
    model = WideResNet(spec(8, 8), weights())
    images = torch.rand(2, 3, 8, 8, generator=named_generator(0, "images"))
    with pytest.raises(ConfigError, match="dropout"):
        model(images)
    first, again = (model(images, named_generator(0, "masks")) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, model(images, named_generator(1, "masks")))


@pytest.mark.parametrize("depth", [2, 9, 111])
def test_a_depth_that_basic_blocks_cannot_fill_is_refused(depth):
    with pytest.raises(ConfigError, match="6n"):
        ResNet(spec(), weights(), depth=depth)
