"""A stack of generators makes the images its generators would make one by one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from plain_critics import spec_of
from torch import Tensor

from veilset.nets.stacked_generators import Generators
from veilset.randomness import named_generator

COUNT, NUMBER = 3, 4
NETS = [Generators(spec_of(28, 28, 1), 3, 5), Generators(spec_of(9, 13, 3), 2, 4), Generators(spec_of(8, 8, 1), 2, 1)]
every_net = pytest.mark.parametrize("net", NETS, ids=lambda net: f"{net.spec.height}x{net.spec.width}")


def batch(net: Generators) -> tuple[Tensor, Tensor, Tensor]:
    draws = named_generator(0, "codes")
    latents = torch.randint(0, 2, (COUNT, NUMBER, net.latent_size), generator=draws).float()
    labels = torch.randint(0, net.spec.num_classes, (COUNT, NUMBER), generator=draws)
    return net.draw(COUNT, draws), latents, labels


def alone(net: Generators, weights: Tensor, latents: Tensor, labels: Tensor) -> Tensor:
    """One generator in torch's own layers."""
    sizes = [math.prod(shape) for shape in net.matrices]
    pieces = weights.split([*sizes, *net.biases])
    matrices = [piece.reshape(shape) for piece, shape in zip(pieces, net.matrices, strict=False)]
    dense, *biases = pieces[len(sizes) :]
    codes = torch.cat([latents, F.one_hot(labels, net.spec.num_classes).float()], dim=1)
    maps = (codes @ matrices[0] + dense).reshape(-1, *net.first).permute(0, 3, 1, 2)
    for block, matrix, bias in zip(net.blocks, matrices[1:], biases, strict=True):
        maps = maps.relu() / (maps.relu().square().mean(1, keepdim=True) + 1e-10).sqrt()
        kernel = matrix.reshape(block.outputs, 5, 5, block.channels).permute(0, 3, 1, 2)
        rest = [(side - 1) % 2 for side in (block.height, block.width)]
        maps = F.conv_transpose2d(maps, kernel, bias, stride=2, padding=2, output_padding=rest)
    return maps.sigmoid()


@every_net
def test_images_are_those_of_the_generators_one_by_one(net: Generators) -> None:
    weights, latents, labels = batch(net)
    expected = torch.stack([alone(net, *some) for some in zip(weights, latents, labels, strict=True)])
    found = net.images(weights, latents, labels, torch.float32)
    assert found.shape == (COUNT, NUMBER, *net.spec.shape)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@every_net
def test_gradients_stay_in_the_row_of_their_generator(net: Generators) -> None:
    weights, latents, labels = batch(net)
    weights.requires_grad_()
    images = net.images(weights, latents, labels, torch.float32)
    (gradients,) = torch.autograd.grad(images[1].square().sum(), weights)
    assert gradients[1].any()
    assert not gradients[[0, 2]].any()


def test_a_generator_that_is_not_a_number_any_more_keeps_it_to_itself() -> None:
    weights, latents, labels = batch(NETS[0])
    before = NETS[0].images(weights, latents, labels, torch.float32)
    weights[1] = torch.nan
    after = NETS[0].images(weights, latents, labels, torch.float32)
    assert torch.isnan(after[1]).all()
    assert torch.equal(after[::2], before[::2])


def test_latents_and_labels_change_the_image() -> None:
    weights, latents, labels = batch(NETS[0])
    images = NETS[0].images(weights, latents, labels, torch.float32)
    assert not torch.equal(NETS[0].images(weights, 1 - latents, labels, torch.float32), images)
    assert not torch.equal(NETS[0].images(weights, latents, (labels + 1) % 3, torch.float32), images)


def test_half_precision_is_near() -> None:
    weights, latents, labels = batch(NETS[0])
    single, half = (NETS[0].images(weights, latents, labels, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert half.dtype == torch.float32
    assert float((half - single).abs().mean()) < 0.01  # the norm of a pixel that is almost off may be far
