"""Half precision: where it is used, and that it changes figures by rounding alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from veilset.data.spec import ImageSpec
from veilset.nets import half_precision as module
from veilset.nets.feature_bank import FeatureBank
from veilset.nets.half_precision import half_on_cuda, half_precision
from veilset.randomness import named_generator

CPU = torch.device("cpu")
SPEC = ImageSpec(height=28, width=28, channels=1, class_names=("a", "b"))


def on_a_cpu(monkeypatch: pytest.MonkeyPatch, *, multiplies: bool) -> None:
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: multiplies)


@pytest.mark.parametrize(("multiplies", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_layers_are_half_precise_only_on_a_cpu_that_multiplies_so(
    monkeypatch: pytest.MonkeyPatch, multiplies: bool, expected: torch.dtype
) -> None:
    on_a_cpu(monkeypatch, multiplies=multiplies)
    with half_precision(CPU):
        assert F.linear(torch.ones(2, 3), torch.ones(4, 3)).dtype is expected


def test_what_is_half_precise_on_cuda_alone_is_not_so_on_any_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu(monkeypatch, multiplies=True)
    with half_on_cuda(CPU):
        assert F.linear(torch.ones(2, 3), torch.ones(4, 3)).dtype is torch.float32


def in_both_precisions(
    monkeypatch: pytest.MonkeyPatch, measured: Callable[[FeatureBank, Tensor, Tensor], Tensor]
) -> list[Tensor]:
    """The same images measured by the same networks, on a CPU that multiplies bfloat16 and on one that does not."""
    bank = FeatureBank.draw(SPEC, 3, 16, named_generator(0, "bank"))
    images = torch.rand(20, *SPEC.shape, generator=named_generator(0, "images"))
    found = []
    for multiplies in (True, False):
        on_a_cpu(monkeypatch, multiplies=multiplies)
        found.append(measured(bank, images, torch.arange(3)))
    return found


def test_soft_features_in_half_precision_point_where_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_both_precisions(monkeypatch, FeatureBank.soft)
    assert all(features.dtype is torch.float32 for features in found)
    assert not torch.equal(*found)
    assert float(F.cosine_similarity(*found, dim=2).min()) > 0.999


def test_sums_that_are_released_are_exact_whatever_the_cpu_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.equal(*in_both_precisions(monkeypatch, FeatureBank.whole))
