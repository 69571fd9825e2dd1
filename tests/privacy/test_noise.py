import copy
import itertools
import math
import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from checks import check_noise_after_fork, check_noise_unique, check_standard_normal
from scipy import stats

from veilset.privacy.noise import NoiseSource, NoNoise, SeededNoise

MILLION = 1_000_000


@pytest.mark.parametrize("seed", [1, 2])
def test_a_million_normals_are_standard_and_independent(seed: int) -> None:
    check_standard_normal(SeededNoise(seed).normal(MILLION), 1.0)


def test_the_two_halves_of_a_transform_are_independent() -> None:
    first, second = SeededNoise(3).normal(MILLION).reshape(2, -1)
    for left, right in ((first, second), (first.square() - 1, (second.square() - 1) / 2)):
        assert abs(float((left * right).mean())) < stats.norm.isf(1e-6) * 1.5 / len(first) ** 0.5


def test_uniforms_lie_in_the_half_open_interval_and_are_uniform() -> None:
    values = SeededNoise(4).uniform(MILLION)
    assert values.dtype == torch.float64
    assert float(values.min()) > 0
    assert float(values.max()) <= 1
    assert torch.equal(values * 2.0**53, (values * 2.0**53).round())
    assert stats.kstest(values.numpy(), "uniform").pvalue > 1e-4


def test_extreme_words_give_the_ends_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SeededNoise(0)
    for word, expected in ((0, 2.0**-53), (2**32 - 1, 1.0)):
        monkeypatch.setattr(source, "_words", lambda count, _, w=word: torch.full((count,), w, dtype=torch.int64))
        assert source.uniform(2).tolist() == [expected, expected]
        assert source.normal(3).isfinite().all()


@pytest.mark.parametrize("deviations", [5, 7, 8])
def test_the_tail_is_as_dense_as_the_rest(monkeypatch: pytest.MonkeyPatch, deviations: int) -> None:
    """At 2^45 grid units of noise, the most a release allows, neighbouring radii are less than a grid unit apart."""
    coarse = round(math.exp(-(deviations**2) / 2) * 2**53)
    source = SeededNoise(0)

    def radius(fine: int) -> float:
        words = [value for number in (coarse, fine, 2**53 - 1) for value in (number >> 32, number & (2**32 - 1))]
        monkeypatch.setattr(source, "_words", lambda *_: torch.tensor(words))
        return float(source.normal(1))

    assert radius(0) == pytest.approx(deviations, rel=1e-3)
    # Float64 keeps 53 bits of coarse and fine together, so the finest step of the latter is this.
    near = sorted(radius(place << coarse.bit_length()) for place in range(2000))
    assert len(set(near)) > 10
    assert max(b - a for a, b in itertools.pairwise(near)) * 2**45 < 1


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_any_number_of_normals_can_be_drawn(count: int) -> None:
    assert SeededNoise(5).normal(count).shape == (count,)


def test_no_block_of_noise_is_ever_used_twice() -> None:
    check_noise_unique()


def test_a_fork_draws_other_noise() -> None:
    check_noise_after_fork()


def test_a_fork_draws_other_noise_though_it_has_the_number_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is given out again once its process has ended, to a grandchild perhaps, which holds the same key."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    check_noise_after_fork()


def test_threads_never_share_a_nonce() -> None:
    source = NoiseSource()
    with ThreadPoolExecutor(8) as pool:
        blocks = list(pool.map(lambda _: source.key_bytes(16), range(2000)))
    assert len(set(blocks)) == len(blocks)


@pytest.mark.parametrize("make", [NoiseSource, lambda: SeededNoise(1), NoNoise])
@pytest.mark.parametrize("leak", [copy.copy, copy.deepcopy, pickle.dumps, lambda s: s.__reduce_ex__(2)])
def test_a_source_can_be_neither_copied_nor_saved(make, leak) -> None:
    with pytest.raises(TypeError):
        leak(make())


def test_printing_a_source_shows_no_key() -> None:
    source = NoiseSource()
    key = source._NoiseSource__key
    for text in (repr(source), str(source), f"{source}"):
        assert "secret" in text
        assert key.hex() not in text
        assert repr(key) not in text


def test_global_seeds_cannot_change_noise() -> None:
    def seeded(make) -> torch.Tensor:
        # The one place where global state is touched on purpose: to show that it has no effect.
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        return make().normal(16)

    assert not torch.equal(seeded(NoiseSource), seeded(NoiseSource))
    assert torch.equal(seeded(lambda: SeededNoise(9)), SeededNoise(9).normal(16))


def test_drawing_noise_leaves_global_state_alone() -> None:
    before = torch.random.get_rng_state()
    NoiseSource().normal(100)
    assert torch.equal(before, torch.random.get_rng_state())


def test_seeded_noise_is_reproducible_and_says_so() -> None:
    assert torch.equal(SeededNoise(6).normal(100), SeededNoise(6).normal(100))
    assert not torch.equal(SeededNoise(6).normal(100), SeededNoise(7).normal(100))
    source = SeededNoise(6)
    assert not torch.equal(source.normal(100), source.normal(100))
    assert SeededNoise.reproducible
    assert NoNoise.reproducible
    assert not NoiseSource.reproducible


def test_no_noise_is_zero() -> None:
    assert not NoNoise().normal(5).any()


def test_key_bytes_have_the_asked_length_and_differ() -> None:
    source = NoiseSource()
    assert [len(source.key_bytes(n)) for n in (0, 1, 5, 32)] == [0, 1, 5, 32]
    assert source.key_bytes() != source.key_bytes()
