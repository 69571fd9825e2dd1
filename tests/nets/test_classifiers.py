import pytest
import torch

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets.classifiers import PaperCnn, dropout
from veilset.randomness import named_generator


def spec(height=28, width=28, channels=1, classes=10):
    return ImageSpec(
        height=height, width=width, channels=channels, class_names=tuple(f"class {i}" for i in range(classes))
    )


def test_parameter_count_for_mnist_equals_the_hand_computed_one():
    model = PaperCnn(spec(), named_generator(0, "weights"))
    by_hand = 320 + 18_496 + (9216 * 128 + 128) + 1_290
    assert by_hand == 1_199_882
    assert sum(parameter.numel() for parameter in model.parameters()) == by_hand


@pytest.mark.parametrize(("height", "width", "channels", "classes"), [(8, 8, 1, 2), (9, 11, 3, 5), (32, 28, 3, 1)])
def test_any_image_shape_gives_one_logit_per_class(height, width, channels, classes):
    model = PaperCnn(spec(height, width, channels, classes), named_generator(0, "weights")).eval()
    assert model(torch.zeros(3, channels, height, width)).shape == (3, classes)


def test_pooling_before_relu_equals_the_published_order_in_value_and_gradient():
    model = PaperCnn(spec(12, 12), named_generator(0, "weights")).eval()
    images = torch.rand(4, 1, 12, 12, generator=named_generator(0, "images"))

    def published(x):
        x = torch.max_pool2d(torch.relu(model.conv2(torch.relu(model.conv1(x)))), 2).flatten(1)
        return model.dense2(torch.relu(model.dense1(x)))

    ours, theirs = model(images), published(images)
    assert torch.equal(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), list(model.parameters())),
        torch.autograd.grad(theirs.square().sum(), list(model.parameters())),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_weights_depend_on_the_passed_generator_alone():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = PaperCnn(spec(8, 8), named_generator(0, "weights"))
        assert torch.equal(torch.get_rng_state(), before), "building a classifier advanced the global generator"
        torch.manual_seed(2)
        second = PaperCnn(spec(8, 8), named_generator(0, "weights"))
    other = PaperCnn(spec(8, 8), named_generator(1, "weights"))
    for name, weight in first.named_parameters():
        assert torch.isfinite(weight).all()
        assert torch.equal(weight, second.get_parameter(name))
        assert not torch.equal(weight, other.get_parameter(name))


def test_dropout_drops_the_stated_share_and_keeps_the_mean():
    dropped = dropout(torch.ones(100_000), 0.25, named_generator(0, "masks"))
    # 0.01 is more than seven standard deviations of a share of 100,000 draws.
    assert abs(float((dropped == 0).double().mean()) - 0.25) < 0.01
    assert abs(float(dropped.mean()) - 1) < 0.01


def test_training_without_a_dropout_generator_is_refused():
    model = PaperCnn(spec(8, 8), named_generator(0, "weights"))
    with pytest.raises(ConfigError, match="dropout"):
        model(torch.zeros(1, 1, 8, 8))


def test_dropout_acts_in_training_mode_only():
    model = PaperCnn(spec(8, 8), named_generator(0, "weights"))
    images = torch.rand(4, 1, 8, 8, generator=named_generator(0, "images"))
    masks = named_generator(0, "masks")
    assert not torch.equal(model(images, masks), model(images, masks))
    model.eval()
    assert torch.equal(model(images, masks), model(images))
