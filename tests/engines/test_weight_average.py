"""Averages of weights: what a checkpoint keeps of them, and how they get into their network."""

from __future__ import annotations

import torch
from torch import nn

from veilset.engines.weight_average import WeightAverage


def test_a_checkpoint_names_every_average_and_shares_its_memory() -> None:
    average = WeightAverage([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(3))], 0.5)
    kept = average.tensors()
    assert list(kept) == ["average 0", "average 1", "updates"]
    kept["average 1"].fill_(7)  # as restoring does
    assert average.values[1].tolist() == [7, 7, 7]


def test_put_in_place_writes_the_average_into_the_very_weights() -> None:
    weight = nn.Parameter(torch.zeros(1))
    average = WeightAverage([weight], 0.5)
    with torch.no_grad():
        weight.fill_(11)
    average.update()
    before = weight.data_ptr()
    average.put_in_place()
    assert (weight.item(), weight.data_ptr()) == (average.values[0].item(), before)
    assert weight.item() == 9.0  # the first update weighs the new weight by 1 - 2 / 11
