"""Counts are believed as far as their noise allows, and come to what was released."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from veilset.data.spec import ImageSpec
from veilset.engines.clipped_gradients import GradientTerms
from veilset.engines.contexts import PublicFacts
from veilset.engines.noisy_counts import NoisyCounts
from veilset.privacy.bounds import Adjacency, Unit


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


def test_all_images_are_found_sooner_than_their_shares() -> None:
    """Fewer were declared than there are: the number of all is known before that of a group, which even shares of it
    stand in for."""
    counts = NoisyCounts(torch.zeros(10, dtype=torch.float64), expected_batch=1000, noise_std=150.0)
    for batch in range(1, 11):
        found = counts.after(torch.tensor([1100.0, *[100.0] * 9]), batch)
    assert float(found.sum()) == pytest.approx(2000, rel=0.05)
    assert 200 < float(found[0]) < 900


def test_a_batch_of_users_is_expected_to_hold_what_they_may_bring() -> None:
    """40 users of one to five images: 120 are expected, and 60 of each group, until counts say otherwise."""
    unknown = NoisyCounts(torch.zeros(2), expected_batch=40, noise_std=1e6, rows_per_user=5)
    assert unknown.after(torch.tensor([0.0, 0.0]), 1).tolist() == pytest.approx([60, 60], rel=1e-3)
    for each in (1, 5):
        counts = NoisyCounts(torch.zeros(2), expected_batch=40, noise_std=20.0, rows_per_user=5)
        for batch in range(1, 21):
            found = counts.after(torch.tensor([30.0 * each, 10.0 * each]), batch)
        assert float(found.sum()) == pytest.approx(40 * each, rel=0.1)


def test_users_of_several_images_make_a_first_count_less_sure() -> None:
    """40 users with two images each, of one group or the other, are 40 coins and not 80."""
    one, two = (
        NoisyCounts(torch.zeros(2), expected_batch=batch, noise_std=0.0, rows_per_user=cap)
        for batch, cap in ((80, None), (40, 3))
    )
    assert one.expected == two.expected == 80
    assert two.first_seen == 2 * one.first_seen


def test_shares_are_of_an_even_one_and_know_no_scale() -> None:
    one, ten = (NoisyCounts(torch.zeros(3), expected_batch=30 * scale, noise_std=0.0) for scale in (1, 10))
    for batch in range(1, 2001):
        small, large = (
            counts.shares_after(torch.tensor([45.0, 30.0, 15.0]) * scale, batch)
            for counts, scale in ((one, 1), (ten, 10))
        )
    assert small.tolist() == pytest.approx([1.5, 1.0, 0.5], abs=1e-3)
    assert large.tolist() == pytest.approx([1.5, 1.0, 0.5], abs=1e-3)
    nothing = NoisyCounts(torch.zeros(3), expected_batch=30, noise_std=5.0).shares_after(
        torch.tensor([90.0, 0, -40]), 1
    )
    assert float(nothing.min()) >= 0.05, "no class is left out, whatever the noise"
    assert float(nothing.mean()) == pytest.approx(1)


def test_counts_go_on_where_they_were_kept() -> None:
    one = NoisyCounts(torch.zeros(2), expected_batch=10, noise_std=3.0)
    one.after(torch.tensor([7.0, 3.0]), 1)
    two = NoisyCounts(one.sums.clone(), expected_batch=10, noise_std=3.0)
    assert torch.equal(one.after(torch.tensor([6.0, 4.0]), 2), two.after(torch.tensor([6.0, 4.0]), 2))


@pytest.mark.parametrize(("adjacency", "times"), [(Adjacency.ADD_REMOVE, 3), (Adjacency.REPLACE, 6)])
def test_the_counts_of_a_fit_have_the_noise_of_its_releases_and_are_of_its_users(
    adjacency: Adjacency, times: int
) -> None:
    spec = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b"))
    facts = PublicFacts(spec=spec, declared_size=100, adjacency=adjacency, unit=Unit.USER, rows_per_user=3)
    terms = GradientTerms(declared_size=100, expected_batch=20, clip_norm=0.4, rows_per_user=3, total_weight=0.3)
    context = SimpleNamespace(noise_drawn=2.0, facts=facts, device="cpu")
    made = NoisyCounts.of(terms, context, 2)  # type: ignore[arg-type]
    like = NoisyCounts(torch.zeros(2), 20, 2.0 * times * 0.5 / 0.3, rows_per_user=3)
    assert made.first_seen == pytest.approx(like.first_seen)
    assert made.total_first_seen == pytest.approx(like.total_first_seen)
    assert made.expected == 40
