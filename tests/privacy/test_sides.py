"""Tensors of sealed networks are recognised by memory and by value."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

from veilset.privacy.sides import is_sealed, seal, sealed_twin, seals_kept


@pytest.fixture
def critic() -> nn.Linear:
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(12.0).reshape(3, 4) / 7 + 1e-9)
        layer.bias.zero_()
    seal(layer)
    return layer


def test_sealing_returns_the_network_and_marks_whatever_contains_it(critic: nn.Linear) -> None:
    assert seal(critic) is critic
    assert is_sealed(critic)
    assert is_sealed(nn.Sequential(nn.ReLU(), nn.Sequential(critic)))
    assert not is_sealed(nn.Linear(4, 3))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda weight: weight, id="the tensor itself"),
        pytest.param(lambda weight: weight[0], id="a part of it"),
        pytest.param(lambda weight: weight.t(), id="a transposed view"),
        pytest.param(lambda weight: weight.clone(), id="a copy"),
        pytest.param(lambda weight: weight.flatten().clone(), id="a copy of another shape"),
        pytest.param(lambda weight: weight.half(), id="a copy of half precision"),
        pytest.param(lambda weight: weight.double(), id="a copy of double precision"),
    ],
)
def test_tensors_of_a_sealed_network_are_recognised(critic: nn.Linear, made: object) -> None:
    assert callable(made)
    assert sealed_twin(made(critic.weight.detach()))


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.zeros(3), id="zeros, like its untrained bias"),
        pytest.param(torch.arange(12.0).reshape(3, 4), id="other values"),
        pytest.param(torch.empty(0), id="nothing"),
        pytest.param(torch.tensor(0), id="a counter"),
    ],
)
def test_other_tensors_are_not(critic: nn.Linear, tensor: Tensor) -> None:
    assert not sealed_twin(tensor)


def test_a_sealed_network_with_empty_tensors_blocks_nothing() -> None:
    empty = nn.Module()
    empty.register_buffer("nothing", torch.empty(0))
    seal(empty)
    assert not sealed_twin(torch.empty(0))


def test_a_shared_submodule_of_a_sealed_network_is_recognised_by_its_tensors() -> None:
    inner = nn.Linear(2, 2)
    outer = nn.Sequential(inner, nn.ReLU())
    seal(outer)
    assert sealed_twin(inner.weight.detach())


def test_seals_outlive_the_network_until_the_release_is_checked() -> None:
    values = torch.rand(5, 5, generator=torch.Generator().manual_seed(0))

    def make_and_forget() -> None:
        critic = nn.Linear(5, 5)
        with torch.no_grad():
            critic.weight.copy_(values)
        seal(critic)

    with seals_kept():
        make_and_forget()
        gc.collect()
        assert sealed_twin(values)
    gc.collect()
    assert not sealed_twin(values), "and no longer: memory of a finished run is given back"
