"""Means of groups: of which images, and with what noise."""

from __future__ import annotations

import pytest
import torch

from veilset.engines.group_means import mean_of_groups, with_noise
from veilset.randomness import named_generator


def test_a_mean_is_of_the_images_of_its_group_and_zero_without_any() -> None:
    features = torch.arange(12.0).reshape(3, 2, 2)
    means, counts = mean_of_groups(features, torch.tensor([2, 0, 2]), 3)
    assert torch.equal(means[0], features[1])
    assert not bool(means[1].any())
    assert torch.equal(means[2], (features[0] + features[2]) / 2)
    assert counts.tolist() == [1, 1, 2], "none counts as one, so that nothing is divided by zero"


def test_every_group_gets_a_noise_of_its_own() -> None:
    noisy = with_noise(torch.zeros(2, 50, 50), torch.tensor([1.0, 3.0]), named_generator(0, "noise"))
    assert noisy.flatten(1).std(dim=1).tolist() == pytest.approx([1.0, 3.0], rel=0.1)
