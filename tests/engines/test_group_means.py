"""Means of groups: of which images, with what noise, and divided by which counts."""

from __future__ import annotations

import pytest
import torch

from veilset.engines.group_means import NoisyCounts, mean_of_groups, with_noise
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


def test_counts_come_to_what_was_released() -> None:
    counts = NoisyCounts(torch.zeros(2, dtype=torch.float64), expected_batch=40, noise_std=30.0)
    first = counts.after(torch.tensor([-5000.0, 5040.0]), 1)
    assert float(first.min()) == pytest.approx(2.0), "a tenth of an even share, whatever the noise"
    counts.sums.zero_()
    for batch in range(1, 2001):
        last = counts.after(torch.tensor([30.0, 10.0]), batch)
    assert last.tolist() == pytest.approx([30.0, 10.0], abs=0.1)


def test_a_first_count_is_believed_by_its_noise() -> None:
    clear, noisy = (
        NoisyCounts(torch.zeros(2), expected_batch=2000, noise_std=std).after(torch.tensor([1600.0, 400.0]), 1)
        for std in (0.0, 50_000.0)
    )
    assert clear.tolist() == pytest.approx([1600.0, 400.0], abs=5)
    assert noisy.tolist() == pytest.approx([1000.0, 1000.0], abs=5)


def test_few_images_tell_little_about_shares_even_without_noise() -> None:
    """Two images of a group are expected, give or take 1.4, and even shares are right up to one: they count twice."""
    counts = NoisyCounts(torch.zeros(2), expected_batch=4, noise_std=0.0).after(torch.tensor([4.0, 0.0]), 1)
    assert counts.tolist() == pytest.approx([(4 + 2 * 2) / 3, 2 * 2 / 3])


def test_counts_go_on_where_they_were_kept() -> None:
    one = NoisyCounts(torch.zeros(2), expected_batch=10, noise_std=3.0)
    one.after(torch.tensor([7.0, 3.0]), 1)
    two = NoisyCounts(one.sums.clone(), expected_batch=10, noise_std=3.0)
    assert torch.equal(one.after(torch.tensor([6.0, 4.0]), 2), two.after(torch.tensor([6.0, 4.0]), 2))
