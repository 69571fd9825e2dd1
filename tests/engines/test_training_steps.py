"""Steps along given gradients, and how a learning rate fades."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from veilset.engines.training_steps import faded, step_along


def test_a_step_goes_along_one_gradient_for_each_parameter_of_all_groups() -> None:
    first, second = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimiser = torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=0.5)
    step_along(optimiser, [torch.ones(2), torch.full((2,), 4.0)])
    assert (first.tolist(), second.tolist()) == ([-0.5, -0.5], [-2.0, -2.0])


def test_a_step_forgets_the_gradients_of_the_one_before() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    for _ in range(3):
        step_along(optimiser, [torch.ones(1)])
    assert weight.item() == -3.0


@pytest.mark.parametrize("number", [1, 3])
def test_a_step_refuses_another_number_of_gradients_than_of_parameters(number: int) -> None:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1)) for _ in range(2)], lr=1.0)
    with pytest.raises(ValueError, match="zip"):
        step_along(optimiser, [torch.ones(1)] * number)


def test_a_rate_fades_from_one_to_zero_along_half_a_cosine() -> None:
    assert [faded(step, 4) for step in range(5)] == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0])
    assert (faded(0.0), faded(0.5)) == (1.0, faded(8, 16))
