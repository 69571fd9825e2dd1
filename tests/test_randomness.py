"""Named generators: by seed and name alone, never global state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from veilset.randomness import initialise, named_generator, stream_keys, uniforms


def draw(seed: int, name: str) -> list[float]:
    return torch.rand(4, generator=named_generator(seed, name)).tolist()


def test_the_same_seed_and_name_give_the_same_stream() -> None:
    assert draw(3, "weights") == draw(3, "weights")


def test_other_seeds_and_names_give_other_streams() -> None:
    streams = [draw(*pair) for pair in [(0, "a"), (1, "a"), (0, "b"), (1, "b"), (-1, "a"), (11, "a"), (1, "1/a")]]
    assert len({tuple(stream) for stream in streams}) == len(streams)


def test_global_state_is_neither_used_nor_changed() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw(0, "x")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert draw(0, "x") == first


def layers() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), nn.Linear(40, 20), nn.Embedding(10, 6))


def test_initialise_redraws_every_weight_from_the_generator() -> None:
    torch.manual_seed(1)
    first = initialise(layers(), named_generator(0, "w")).state_dict()
    torch.manual_seed(2)
    second = initialise(layers(), named_generator(0, "w")).state_dict()
    other = initialise(layers(), named_generator(1, "w")).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    drawn = [name for name in first if name.split(".")[0] in "023"]
    assert drawn
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


@pytest.mark.parametrize(("layer", "fan_in"), [(nn.Linear(40, 300), 40), (nn.Conv2d(3, 64, 5), 75)])
def test_initialise_has_the_law_of_torchs_own_default(layer: nn.Module, fan_in: int) -> None:
    weights = initialise(layer, named_generator(0, "w")).get_parameter("weight").detach().flatten()
    limit = fan_in**-0.5
    assert float(weights.abs().max()) <= limit
    assert float(weights.abs().max()) > 0.99 * limit
    assert float(weights.mean().abs()) < 0.05 * limit
    assert float(weights.std()) == pytest.approx(limit / 3**0.5, rel=0.03)


def test_batch_norm_keeps_its_ones_and_zeros() -> None:
    norm = nn.BatchNorm2d(4)
    initialise(norm, named_generator(0, "w"))
    assert norm.weight.tolist() == [1.0] * 4
    assert norm.bias.tolist() == [0.0] * 4


def test_streams_are_those_of_splitmix64() -> None:
    # First outputs for the seeds 0 and 1234567 of the generator's reference code.
    outputs = [0xE220A8397B1DCDAF, 6457827717110365317]
    keys, start = torch.tensor([0, 1234567]), torch.zeros(2, dtype=torch.int64)
    found = uniforms(keys, start, 1)[:, 0].tolist()
    assert found == [((output >> 12) + 0.5) * 2.0**-52 for output in outputs]


def test_a_streams_numbers_depend_on_its_key_and_step_alone() -> None:
    keys = stream_keys(3, "shard", 5)
    assert torch.equal(keys[:2], stream_keys(3, "shard", 2))
    assert len({*keys.tolist(), *stream_keys(4, "shard", 5).tolist(), *stream_keys(3, "other", 5).tolist()}) == 15
    steps = torch.tensor([0, 1, 2, 1_000_000, 7])
    together = uniforms(keys, steps, 9)
    assert torch.equal(together[3:4], uniforms(keys[3:4], steps[3:4], 9))
    assert torch.equal(together[:, :4], uniforms(keys, steps, 4))


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    numbers = uniforms(stream_keys(0, "shard", 200), torch.arange(200), 500)
    assert float(numbers.min()) > 0
    assert float(numbers.max()) < 1
    counts = (numbers * 10).long().flatten().bincount()
    assert float((counts - 10_000).square().sum()) / 10_000 < 35  # chi-square with 9 degrees of freedom
    related = torch.corrcoef(numbers)[~torch.eye(200, dtype=torch.bool)]
    assert float(related.std()) == pytest.approx(500**-0.5, rel=0.05)
