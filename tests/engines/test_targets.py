"""Targets are the released sums, divided by counts that noise may have made absurd."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from contract.cases import TINY, make_images
from torch import Tensor

from veilset.engines.targets import MOST_EVENED, Released, usable_counts
from veilset.methods.base import get_method, make_config
from veilset.nets.kinds import Kinds
from veilset.nets.measurement import Measurement
from veilset.randomness import named_generator
from veilset.sketch_file import Round

SKETCH = get_method("sketch")
CPU = torch.device("cpu")


def test_tones_of_several_rounds_are_one_target_in_which_the_less_noisy_round_counts_more() -> None:
    images = make_images((40, 30, 20))
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    bank = SKETCH.layout(config).random_bank(images.spec)
    counts = torch.full((3, 1), 30 * config.total_weight)
    first, second = (Round(bank, torch.cat([torch.full((3, bank.numbers), sums), counts], 1)) for sums in (3.0, 6.0))
    alone = [Released([part], [1.0], config.total_weight, len(images)).of_classes(CPU)[-1] for part in (first, second)]
    *networks, tones = Released([first, second], [2.0, 1.0], config.total_weight, len(images)).of_classes(CPU)
    assert len(networks) == 2
    assert tones.weight == pytest.approx(alone[0].weight)
    torch.testing.assert_close(tones.means, 0.2 * alone[0].means + 0.8 * alone[1].means)


def test_a_generator_learns_from_the_last_round_alone() -> None:
    images = make_images((40, 30, 20))
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    bank = SKETCH.layout(config).random_bank(images.spec)
    first, second = (Round(bank, torch.full((3, bank.numbers + 1), value)) for value in (3.0, 6.0))
    both, last = (
        Released(rounds, [2.0, 1.0], config.total_weight, len(images)).of_kinds(CPU)
        for rounds in ([first, second], [second])
    )
    assert [target.weight for target in both] == [target.weight for target in last]
    for one, other in zip(both, last, strict=True):
        torch.testing.assert_close(one.means, other.means)


def test_a_class_without_a_credible_count_is_not_divided_by_zero() -> None:
    images = make_images((40, 30, 20))
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    bank = SKETCH.layout(config).random_bank(images.spec)
    sums = torch.zeros(3, bank.numbers + 1)
    sums[1, -1] = -5.0
    targets = Released([Round(bank, sums)], [1.0], config.total_weight, len(images)).of_kinds(CPU)
    assert all(bool(target.means.isfinite().all()) for target in targets)


def two_kinds() -> tuple[Released, Tensor]:
    """A released round of three classes with two kinds each, of 10 and 30 images, whose rows are known."""
    images = make_images((40, 40, 40))
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    plain = SKETCH.layout(config).random_bank(images.spec)
    bank = Measurement(plain.networks, plain.tones, plain.tone_share, Kinds(torch.zeros(3, 2, plain.numbers)))
    counts = torch.tensor([10.0, 30.0]).repeat(3)[:, None]
    rows = torch.linspace(-1, 1, 6 * bank.numbers).reshape(6, -1)
    sums = torch.cat([rows * counts, counts * config.total_weight], dim=1)
    first = Round(plain, torch.zeros(3, plain.numbers + 1))
    return Released([first, Round(bank, sums)], [1e9, 1.0], config.total_weight, len(images)), rows


def test_kinds_have_targets_and_shares_of_their_own_by_the_round_that_knows_them() -> None:
    released, rows = two_kinds()
    targets = released.of_kinds(CPU)
    assert [len(target.means) for target in targets] == [6, 6]
    expected = released.rounds[-1].bank.means(rows, torch.ones(6, 1))
    for target, means in zip(targets, expected, strict=True):
        torch.testing.assert_close(target.means, means)
    torch.testing.assert_close(released.kind_shares(), torch.tensor([10.0, 30.0]).repeat(3, 1))


def test_the_mean_of_a_class_is_that_of_its_kinds_weighted_by_their_counts() -> None:
    released, rows = two_kinds()
    _, second, tones = released.of_classes(CPU)
    mixed = (rows.unflatten(0, (3, 2)) * torch.tensor([0.25, 0.75])[:, None]).sum(1)
    for target, means in zip((second, tones), released.rounds[-1].bank.means(mixed, torch.ones(3, 1)), strict=True):
        torch.testing.assert_close(target.means, means)


def test_a_class_without_a_positive_count_is_taken_for_a_small_one() -> None:
    assert usable_counts(torch.tensor([40.0, 0.0, -3.0]), 50).tolist() == [40.0, 5.0, 5.0]


def evened_sums(*counts: int, kinds: int = 1) -> Tensor:
    """(groups, numbers) of sums that were 0 with noise of 2 before they were evened, for classes of so many images."""
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    plain = SKETCH.layout(config).random_bank(make_images((40, 30, 20)).spec)
    prototypes = Kinds(torch.zeros(len(counts), kinds, plain.numbers)) if kinds > 1 else None
    bank = Measurement(plain.networks, plain.tones, plain.tone_share, prototypes)
    totals = torch.tensor(counts, dtype=torch.float32).repeat_interleave(kinds)[:, None] / kinds * config.total_weight
    sums = torch.cat([torch.zeros(len(totals), bank.numbers), totals], dim=1)
    released = Released([Round(bank, sums)], [2.0], config.total_weight, sum(counts), partial(named_generator, 0))
    evened = released.sums(0)
    assert torch.equal(evened[:, -1:], totals)
    assert not released.rounds[0].sums[:, :-1].any()
    return evened[:, :-1]


def test_classes_of_one_size_are_left_as_they_are() -> None:
    assert not evened_sums(30, 30, 30).any()


def test_means_of_large_classes_become_as_noisy_as_those_of_the_smallest() -> None:
    added = evened_sums(20, 40, 50).std(dim=1)
    noise_of_means = (added.square() + 2.0**2).sqrt() / torch.tensor([20.0, 40.0, 50.0])
    torch.testing.assert_close(noise_of_means, torch.full((3,), 2.0 / 20), rtol=0.05, atol=0)


def test_kinds_are_evened_by_the_size_of_their_class() -> None:
    added = evened_sums(20, 40, kinds=2).std(dim=1)
    torch.testing.assert_close(added, 2.0 * torch.tensor([0.0, 0.0, 3**0.5, 3**0.5]), rtol=0.05, atol=0)


def test_a_class_that_is_far_too_rare_does_not_drown_the_others() -> None:
    added = evened_sums(10, 1000).std(dim=1)
    torch.testing.assert_close(added[1], torch.tensor(2.0 * (MOST_EVENED**2 - 1) ** 0.5), rtol=0.05, atol=0)
