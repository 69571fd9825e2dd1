import pytest
import torch
from checks import (
    DRAWS,
    NUM_RECORDS,
    RATE,
    check_a_draw_feeds_one_release,
    check_draws_price_the_declared_rate,
    check_poisson,
    check_releases_on_one_draw_are_priced_together,
    check_sampler,
)
from scipy import stats

from veilset.errors import ConfigError
from veilset.privacy.events import Gaussian, PoissonSampled, ShardTouched
from veilset.privacy.noise import SeededNoise
from veilset.privacy.sampling import poisson_draw, shard_draw
from veilset.randomness import named_generator

BATCH = int(NUM_RECORDS * RATE)


def test_batches_are_poisson_samples() -> None:
    check_sampler()


def shuffled_epochs() -> list[torch.Tensor]:
    generator = named_generator(0, "shuffle")
    epochs = DRAWS * BATCH // NUM_RECORDS
    return [part for _ in range(epochs) for part in torch.randperm(NUM_RECORDS, generator=generator).split(BATCH)]


def fixed_size_subsets() -> list[torch.Tensor]:
    generator = named_generator(0, "subsets")
    return [torch.randperm(NUM_RECORDS, generator=generator)[:BATCH] for _ in range(DRAWS)]


def without_small_batches() -> list[torch.Tensor]:
    source, batches = SeededNoise(31), []
    while len(batches) < DRAWS:
        batch = poisson_draw(NUM_RECORDS, RATE, source).indices
        if len(batch) >= BATCH:
            batches.append(batch)
    return batches


@pytest.mark.parametrize("sampler", [shuffled_epochs, fixed_size_subsets, without_small_batches])
def test_samplers_that_are_not_poisson_are_noticed(sampler) -> None:
    with pytest.raises(AssertionError):
        check_poisson(sampler())


def test_a_draw_is_priced_by_its_declared_rate() -> None:
    check_draws_price_the_declared_rate()


def test_a_draw_feeds_one_release() -> None:
    check_a_draw_feeds_one_release()


def test_several_releases_on_one_draw_are_foreseen_and_priced_together() -> None:
    check_releases_on_one_draw_are_priced_together()


def test_an_empty_batch_is_still_priced() -> None:
    draw = poisson_draw(3, 1e-9, SeededNoise(0))
    assert len(draw.indices) == 0
    assert draw.price(Gaussian(1.0), 1.0) == PoissonSampled(1e-9, Gaussian(1.0))


def test_rate_one_takes_everybody() -> None:
    assert poisson_draw(50, 1.0, SeededNoise(0)).indices.tolist() == list(range(50))


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError):
        poisson_draw(10, rate, SeededNoise(0))


def test_round_robin_visits_the_shards_in_turn() -> None:
    source = SeededNoise(0)
    assert [int(shard_draw(step, 3, "round-robin", source).indices) for step in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_uniform_shards_are_uniform() -> None:
    source = SeededNoise(40)
    counts = torch.zeros(7)
    for step in range(7000):
        counts[int(shard_draw(step, 7, "uniform", source).indices)] += 1
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("schedule", ["round-robin", "uniform"])
def test_shard_draws_claim_no_amplification(schedule) -> None:
    draw = shard_draw(3, 5, schedule, SeededNoise(0))
    assert draw.price(Gaussian(1.0), 0.5) == ShardTouched(5, schedule, Gaussian(1.0))
