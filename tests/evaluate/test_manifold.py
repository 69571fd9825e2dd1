"""Precision, recall, density and coverage on toy clusters whose answers are plain."""

import pytest
import torch

from veilset.errors import DataError
from veilset.evaluate.distances import neighbour_radii, squared_distances
from veilset.evaluate.manifold import at_most, manifold
from veilset.randomness import named_generator


def cluster(count, name, centre=0.0):
    return torch.randn(count, 4, generator=named_generator(0, name)) + centre


def test_precision_and_density_are_about_synthetic_images_and_recall_and_coverage_about_real_ones():
    # Real data has two modes, synthetic data only one of them: everything synthetic is fine, half of reality is missed.
    real = torch.cat([cluster(300, "left"), cluster(300, "right", 50.0)])
    found = manifold(cluster(600, "fake"), real)
    assert found.precision > 0.9
    assert found.density > 0.8
    assert found.recall == pytest.approx(0.5, abs=0.05)
    assert found.coverage == pytest.approx(0.5, abs=0.05)
    # And the other way round: half of what is synthetic is nonsense, nothing of reality is missed.
    found = manifold(real, cluster(600, "fake"))
    assert found.precision == pytest.approx(0.5, abs=0.05)
    assert found.density == pytest.approx(0.5, abs=0.1)
    assert found.recall > 0.9
    assert found.coverage > 0.8


def test_equal_distributions_have_density_near_one_and_disjoint_ones_score_zero():
    found = manifold(cluster(1000, "a"), cluster(1000, "b"))
    assert found.density == pytest.approx(1, abs=0.1)
    assert min(found.precision, found.recall, found.coverage) > 0.85
    apart = manifold(cluster(100, "a"), cluster(100, "b", 1000.0))
    assert (apart.precision, apart.recall, apart.density, apart.coverage) == (0, 0, 0, 0)


def test_a_memoriser_of_few_images_is_precise_but_covers_little():
    real = cluster(500, "real")
    found = manifold(real[:10].repeat(50, 1), real)
    assert found.precision == 1
    assert found.coverage < 0.2
    assert found.recall < 0.1


def test_four_points_on_a_line_give_the_hand_computed_numbers():
    real = torch.tensor([[0.0], [1.0], [2.0], [4.0]])
    fake = torch.tensor([[0.5], [9.0]])
    # One neighbour only, as there are two synthetic points: real radii 1, 1, 1, 2; synthetic radii 8.5, 8.5.
    found = manifold(fake, real)
    assert found.neighbours == (1, 1)
    assert found.precision == 0.5
    assert found.density == 2 / (1 * 2)  # 0.5 lies in the balls of 0 and 1
    assert found.coverage == 0.5
    assert found.recall == 1.0


def test_the_numbers_do_not_depend_on_how_the_distances_are_cut_into_pieces():
    real, fake = cluster(60, "real"), cluster(45, "fake", 0.5)
    assert manifold(fake, real, max_entries=100) == manifold(fake, real)


def test_distances_equal_those_of_torch_and_are_zero_between_equal_vectors():
    vectors = cluster(30, "a", 100.0).double()
    torch.testing.assert_close(
        squared_distances(vectors, vectors + 1).sqrt(), torch.cdist(vectors, vectors + 1), rtol=1e-6, atol=1e-6
    )
    assert squared_distances(vectors, vectors).diagonal().tolist() == [0.0] * 30


def test_a_vector_is_not_its_own_neighbour():
    vectors = torch.tensor([[0.0], [1.0], [3.0]]).double()
    assert neighbour_radii(vectors, 2).tolist() == [[1.0, 9.0], [1.0, 4.0], [4.0, 9.0]]


def test_at_most_draws_without_replacement():
    rows = torch.arange(10)[:, None]
    picked = at_most(rows, 6, named_generator(0, "rows")).flatten().tolist()
    assert len(set(picked)) == 6
    assert torch.equal(at_most(rows, 10, named_generator(0, "rows")), rows)


def test_fewer_than_two_images_are_refused():
    with pytest.raises(DataError, match="at least 2"):
        manifold(cluster(1, "a"), cluster(9, "b"))
