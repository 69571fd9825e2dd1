"""FID and KID against closed forms."""

import math

import pytest
import torch

from veilset.errors import DataError
from veilset.evaluate.moments import fid, frechet_distance, kid, mean_and_covariance, squared_mmd
from veilset.randomness import named_generator


def normal(count, dim, name, *, shift=0.0, scale=1.0):
    return torch.randn(count, dim, generator=named_generator(0, name)) * scale + shift


def test_frechet_distance_of_diagonal_gaussians_is_the_closed_form():
    variances_a, variances_b = torch.tensor([1.0, 4.0, 9.0]).double(), torch.tensor([4.0, 4.0, 1.0]).double()
    mean_a, mean_b = torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor([1.0, 1.0, 0.0]).double()
    by_hand = (1 + 0 + 4) + ((1 - 2) ** 2 + 0 + (3 - 1) ** 2)  # |a - b|^2 + sum of (sd_a - sd_b)^2
    found = frechet_distance(mean_a, variances_a.diag(), mean_b, variances_b.diag())
    assert found == pytest.approx(by_hand, rel=1e-12)


def test_frechet_distance_of_correlated_gaussians_is_the_closed_form_of_two_dimensions():
    # tr (A B)^(1/2) of 2x2 matrices is sqrt(tr(A B) + 2 sqrt(det(A B))).
    a = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double()
    b = torch.tensor([[5.0, -2.0], [-2.0, 1.0]]).double()
    root_trace = math.sqrt(float((a @ b).trace()) + 2 * math.sqrt(float(torch.det(a @ b))))
    by_hand = float(a.trace() + b.trace()) - 2 * root_trace
    zero = torch.zeros(2).double()
    assert frechet_distance(zero, a, zero, b) == pytest.approx(by_hand, rel=1e-12)


def test_frechet_distance_is_symmetric_and_zero_for_equal_gaussians_of_low_rank():
    thin = normal(40, 3, "thin").double() @ normal(3, 64, "mix").double()
    other = normal(50, 64, "other").double()
    first, second = mean_and_covariance(thin), mean_and_covariance(other)
    assert frechet_distance(*first, *first) == pytest.approx(0, abs=1e-5)
    assert frechet_distance(*first, *second) == pytest.approx(frechet_distance(*second, *first), rel=1e-7)


def test_mean_and_covariance_equal_those_of_numpy_also_in_pieces(monkeypatch):
    import numpy as np

    from veilset.evaluate import moments

    monkeypatch.setattr(moments, "_PIECE", 7)
    features = normal(50, 5, "features", shift=100.0)
    mean, covariance = mean_and_covariance(features)
    np.testing.assert_allclose(mean, features.double().numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(covariance, np.cov(features.double().numpy(), rowvar=False), rtol=1e-9)


def test_fid_of_two_samples_approaches_the_distance_of_their_distributions():
    ours, theirs = normal(20_000, 4, "a", shift=1.0, scale=2.0), normal(20_000, 4, "b")
    assert fid(ours, theirs) == pytest.approx(4 * 1.0 + 4 * (2 - 1) ** 2, rel=0.03)


def test_fid_of_a_set_with_itself_is_far_below_that_of_a_shifted_copy():
    features = normal(500, 32, "features")
    assert fid(features, features) < 1e-6
    assert fid(features + 0.01, features) == pytest.approx(32 * 0.01**2, rel=1e-3)


def test_kid_of_equal_distributions_averages_to_zero_even_for_small_samples():
    values = [squared_mmd(*normal(40, 8, f"draw {i}").double().split(20)) for i in range(600)]
    mean, error = torch.tensor(values).mean().item(), torch.tensor(values).std().item() / math.sqrt(600)
    assert min(values) < 0  # unbiased estimates of zero fall on both sides
    assert abs(mean) < 3 * error


def test_kid_equals_a_double_loop_over_the_kernel():
    a, b = normal(4, 3, "a").double(), normal(5, 3, "b").double()

    def k(x, y):
        return (float(x @ y) / 3 + 1) ** 3

    within_a = sum(k(a[i], a[j]) for i in range(4) for j in range(4) if i != j) / (4 * 3)
    within_b = sum(k(b[i], b[j]) for i in range(5) for j in range(5) if i != j) / (5 * 4)
    between = sum(k(x, y) for x in a for y in b) / 20
    assert squared_mmd(a, b) == pytest.approx(within_a + within_b - 2 * between, rel=1e-12)


def test_kid_averages_over_subsets_drawn_by_the_given_generator():
    ours, theirs = normal(300, 4, "a", shift=0.5), normal(200, 4, "b")
    first, second = (kid(ours, theirs, named_generator(0, "kid"), subset_size=50, num_subsets=20) for _ in range(2))
    assert first == second
    assert (first.subset_size, first.num_subsets) == (50, 20)
    assert first.mean > 3 * first.subset_sd / math.sqrt(20)
    small = kid(ours[:30], theirs[:30], named_generator(0, "kid"))
    assert (small.subset_size, small.num_subsets, small.subset_sd) == (30, 1, None)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_images_are_refused(count):
    with pytest.raises(DataError, match="at least 2"):
        fid(normal(count, 4, "a"), normal(9, 4, "b"))
    with pytest.raises(DataError, match="at least 2"):
        kid(normal(9, 4, "a"), normal(count, 4, "b"), named_generator(0, "kid"))
