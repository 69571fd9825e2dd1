"""Targets are the released sums, divided by counts that noise may have made absurd."""

from __future__ import annotations

import pytest
import torch
from contract.cases import TINY, make_images

from veilset.engines.targets import targets_of, usable_counts
from veilset.methods.base import get_method, make_config
from veilset.sketch_file import Round

SKETCH = get_method("sketch")


def test_tones_of_several_rounds_are_one_target_in_which_the_less_noisy_round_counts_more() -> None:
    images = make_images((40, 30, 20))
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    bank = SKETCH.layout(config).random_bank(images.spec)
    counts = torch.full((3, 1), 30 * config.total_weight)
    first, second = (Round(bank, torch.cat([torch.full((3, bank.numbers), sums), counts], 1)) for sums in (3.0, 6.0))
    alone = [
        targets_of([part], [1.0], config.total_weight, len(images), torch.device("cpu"))[-1] for part in (first, second)
    ]
    *networks, tones = targets_of([first, second], [0.2, 0.8], config.total_weight, len(images), torch.device("cpu"))
    assert len(networks) == 2
    assert tones.weight == pytest.approx(alone[0].weight)
    torch.testing.assert_close(tones.means, 0.2 * alone[0].means + 0.8 * alone[1].means)


def test_a_class_without_a_credible_count_is_not_divided_by_zero() -> None:
    images = make_images((40, 30, 20))
    config = make_config(SKETCH, {**TINY["sketch"], "rounds": 1})
    bank = SKETCH.layout(config).random_bank(images.spec)
    sums = torch.zeros(3, bank.numbers + 1)
    sums[1, -1] = -5.0
    targets = targets_of([Round(bank, sums)], [1.0], config.total_weight, len(images), torch.device("cpu"))
    assert all(bool(target.means.isfinite().all()) for target in targets)


def test_a_class_without_a_positive_count_is_taken_for_a_small_one() -> None:
    assert usable_counts(torch.tensor([40.0, 0.0, -3.0]), 50).tolist() == [40.0, 5.0, 5.0]
