"""A stack of critics scores and differentiates as the critics would one by one."""

from __future__ import annotations

import pytest
import torch
from plain_critics import PlainCritic, spec_of
from torch import Tensor

from veilset.errors import ConfigError
from veilset.nets.critics import Critics, Ready, conv_critics, dense_critics
from veilset.nets.patches import by_pixels, by_windows, folded, halved, patches
from veilset.randomness import named_generator

COUNT, NUMBER = 3, 4
NETS = [
    conv_critics(spec_of(8, 8, 1), 3),
    conv_critics(spec_of(28, 28, 1), 4),
    conv_critics(spec_of(9, 13, 3), 2),
    conv_critics(spec_of(33, 64, 3, classes=1), 2),
    conv_critics(spec_of(128, 128, 3), 1),
    dense_critics(spec_of(28, 28, 1), 8),
    dense_critics(spec_of(9, 8, 3), 5),
]
SHAPES = [f"{len(net.blocks)} blocks, {net.spec.height}x{net.spec.width}x{net.spec.channels}" for net in NETS]
every_net = pytest.mark.parametrize("net", NETS, ids=SHAPES)


def drawn(net: Critics) -> tuple[Tensor, Tensor]:
    weights, vectors = net.draw(COUNT, named_generator(0, "critics"))
    return weights, net.iterated(weights, vectors)


def batch(net: Critics) -> tuple[Tensor, Tensor]:
    draws = named_generator(0, "images")
    labels = torch.randint(0, net.spec.num_classes, (COUNT, NUMBER), generator=draws)
    return torch.rand(COUNT, NUMBER, *net.spec.shape, generator=draws), labels


def ready(net: Critics) -> Ready:
    return net.ready(*drawn(net), torch.float32)


def singly(net: Critics) -> list[PlainCritic]:
    weights, vectors = net.draw(COUNT, named_generator(0, "critics"))
    critics = [PlainCritic(net, weights, vectors, number) for number in range(COUNT)]
    for critic in critics:
        critic.iterate()
    return critics


def close(found: Tensor, expected: Tensor, within: float = 1e-5) -> bool:
    return bool((found - expected).norm() <= within * expected.norm())


@every_net
def test_scores_are_those_of_the_critics_one_by_one(net: Critics) -> None:
    images, labels = batch(net)
    expected = torch.stack([critic(*some) for critic, *some in zip(singly(net), images, labels, strict=True)])
    assert close(net.scores(ready(net), images, labels), expected)


@every_net
def test_image_gradients_are_those_of_autograd(net: Critics) -> None:
    images, labels = batch(net)
    images.requires_grad_()
    expected = [critic(*some).sum() for critic, *some in zip(singly(net), images, labels, strict=True)]
    assert close(
        net.image_gradients(ready(net), images, labels), torch.autograd.grad(torch.stack(expected).sum(), images)[0]
    )


@every_net
def test_the_gradient_of_a_penalty_is_the_second_derivative_of_autograd(net: Critics) -> None:
    images, labels = batch(net)
    weights, vectors = drawn(net)
    weights.requires_grad_()
    slopes = net.image_gradients(net.ready(weights, vectors, torch.float32), images, labels).flatten(2).norm(dim=2)
    (found,) = torch.autograd.grad((slopes - 1).square().mean(1).sum(), weights)
    for number, critic in enumerate(singly(net)):
        critic.penalty(images[number], labels[number]).backward()
        parts = [value.grad if value.grad is not None else torch.zeros_like(value) for value in critic.parameters()]
        assert close(found[number], torch.cat([part.flatten() for part in parts]))


def test_scores_can_be_differentiated_twice_by_autograd_too() -> None:
    net = NETS[1]
    images, labels = batch(net)
    weights, vectors = drawn(net)
    weights.requires_grad_()
    prepared = net.ready(weights, vectors, torch.float32)
    slopes = net.image_gradients(prepared, images, labels)
    (expected,) = torch.autograd.grad(slopes.square().sum(), weights, retain_graph=True)
    images.requires_grad_()
    (slopes,) = torch.autograd.grad(net.scores(prepared, images, labels).sum(), images, create_graph=True)
    (found,) = torch.autograd.grad(slopes.square().sum(), weights)
    assert close(found, expected)


def test_windows_and_their_transpose_are_each_others_derivatives() -> None:
    draws = named_generator(0, "maps")
    maps = torch.rand(1, 1, 3, 4, 1, generator=draws, dtype=torch.float64, requires_grad=True)
    columns = torch.rand(1, 4, 25, generator=draws, dtype=torch.float64, requires_grad=True)
    assert torch.allclose((patches(maps) * columns).sum(), (maps * folded(columns, 3, 4, 1)).sum())
    assert torch.autograd.gradcheck(patches, maps)
    assert torch.autograd.gradgradcheck(lambda values: patches(values).square(), maps)
    assert torch.autograd.gradgradcheck(lambda values: folded(values, 3, 4, 1).square(), columns)


@pytest.mark.parametrize(("height", "width"), [(28, 28), (7, 8), (3, 5), (1, 2)])
def test_windows_add_up_to_the_same_on_both_kinds_of_device(height: int, width: int) -> None:
    draws = named_generator(0, "windows")
    for dtype in (torch.float32, torch.bfloat16):
        shape = (2, 3, halved(height), halved(width), 5, 5, 4)
        windows = torch.randn(shape, generator=draws).to(dtype)
        found, expected = by_pixels(windows, height, width), by_windows(windows, height, width)
        assert found.dtype == expected.dtype == torch.float32
        assert torch.allclose(found, expected, atol=1e-5)


@every_net
def test_one_batch_for_all_critics_is_scored_as_if_each_had_it(net: Critics) -> None:
    images, labels = (values[0] for values in batch(net))
    every_image, every_label = images.expand(COUNT, *images.shape), labels.expand(COUNT, -1)
    prepared = ready(net)
    assert close(net.scores(prepared, images, labels), net.scores(prepared, every_image, every_label))
    found = net.image_gradients(prepared, images, labels)
    assert close(found, net.image_gradients(prepared, every_image, every_label))


def test_a_critic_of_the_paper_has_as_many_weights_as_its_code() -> None:
    assert conv_critics(spec_of(28, 28, 1, classes=10)).num_weights == 1_071_105


@pytest.mark.parametrize(("side", "filters"), [(8, [2]), (28, [2, 4, 8]), (32, [2, 4, 8]), (128, [2, 4, 8, 8, 8])])
def test_larger_images_pass_more_blocks(side: int, filters: list[int]) -> None:
    net = conv_critics(spec_of(side, side, 3), 2)
    assert [block.outputs for block in net.blocks] == filters
    assert max(net.blocks[-1].out_shape[:2]) <= 4


def test_power_iteration_brings_the_largest_singular_value_to_one() -> None:
    net = NETS[1]
    weights, vectors = drawn(net)
    for _ in range(100):
        vectors = net.iterated(weights, vectors)
    for matrix in net.ready(weights, vectors, torch.float32).matrices:
        largest = torch.linalg.matrix_norm(matrix, 2)
        assert torch.allclose(largest, torch.ones(COUNT), atol=1e-3)


def test_a_critic_that_is_not_a_number_any_more_keeps_it_to_itself() -> None:
    net = NETS[1]
    images, labels = batch(net)
    weights, vectors = drawn(net)
    before = net.image_gradients(net.ready(weights, vectors, torch.float32), images, labels)
    weights[1] = torch.nan
    after = net.image_gradients(net.ready(weights, net.iterated(weights, vectors), torch.float32), images, labels)
    assert torch.isnan(after[1]).all()
    assert torch.isfinite(after[[0, 2]]).all()
    vectors[1] = torch.nan
    assert torch.equal(
        net.image_gradients(net.ready(weights, vectors, torch.float32), images, labels)[::2], before[::2]
    )


@every_net
def test_half_precision_is_near(net: Critics, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = batch(net)
    single, half = ready(net), net.ready(*drawn(net), torch.bfloat16)
    assert close(net.scores(half, images, labels), net.scores(single, images, labels), within=0.02)
    # A ReLU near zero may change sides, which counts in networks as small as these: the same ones are on for both.
    hidden = net._hidden(single, images)
    monkeypatch.setattr(net, "_hidden", lambda prepared, images: hidden)
    found = net.image_gradients(half, images, labels)
    assert found.dtype == torch.float32
    assert close(found, net.image_gradients(single, images, labels), within=0.02)


def test_first_weights_follow_torchs_laws() -> None:
    net = conv_critics(spec_of(28, 28, 1, classes=10), 8)
    weights, _ = net.draw(2, named_generator(0, "critics"))
    other, _ = net.draw(2, named_generator(1, "critics"))
    assert not torch.equal(weights, other)
    first = weights[:, : 25 * 8]
    assert float(first.abs().max()) <= 25**-0.5
    assert float(first.std()) == pytest.approx(25**-0.5 / 3**0.5, rel=0.1)
    embedding = weights[:, -net.matrices[-1][1] * 10 - sum(net.biases) : -sum(net.biases)]
    assert float(embedding.std()) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("make", [conv_critics, dense_critics])
def test_critics_without_width_are_refused(make: object) -> None:
    with pytest.raises(ConfigError, match="width 1 or more"):
        make(spec_of(8, 8, 1), 0)  # type: ignore[operator]
