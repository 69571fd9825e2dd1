"""Pooling by a product is pooling, bit for bit the same at every place of a batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from veilset.nets.pooling import average_of_fours
from veilset.randomness import named_generator


@pytest.mark.parametrize("shape", [(3, 2, 8, 8), (2, 5, 7, 9), (1, 1, 2, 3), (4, 16, 32, 32)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_and_both_derivatives_are_those_of_average_pooling(
    shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    images = torch.randn(shape, generator=named_generator(0, "images")).contiguous(memory_format=layout)
    images.requires_grad_()
    slopes = []
    for pool in (average_of_fours, lambda images: F.avg_pool2d(images, 2)):
        pooled = pool(images)
        (first,) = torch.autograd.grad(pooled.pow(3).sum(), images, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), images)
        slopes.append((pooled, first, second))
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_image_is_pooled_alike_at_every_place_of_a_batch() -> None:
    images = torch.randn(9, 16, 14, 14, generator=named_generator(0, "images"))
    together = average_of_fours(images)
    assert all(
        torch.equal(average_of_fours(one[None])[0], pooled) for one, pooled in zip(images, together, strict=True)
    )
