from __future__ import annotations

import functools

import pytest
import torch

from veilset import compilation
from veilset.compilation import fused_on_cuda


def double(values: torch.Tensor) -> torch.Tensor:
    return values * 2


class OnCuda(torch.Tensor):
    """Says it is on CUDA, to take that way on a machine without one."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def test_on_the_cpu_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    assert fused_on_cuda(double)(torch.ones(2)).tolist() == [2, 2]


def test_where_compiling_fails_the_function_runs_as_written_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object):
        def call(*_: object) -> None:
            raise RuntimeError("no toolchain")

        return call

    monkeypatch.setattr(compilation, "_has_compiler", lambda: True)
    monkeypatch.setattr(torch, "compile", broken)
    call = fused_on_cuda(double)
    values = torch.ones(2).as_subclass(OnCuda)
    with pytest.warns(UserWarning, match="slower"):
        assert call(values).tolist() == [2, 2]
    assert call(values).tolist() == [2, 2]


def test_what_worked_once_is_not_computed_in_another_way_later(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([None, RuntimeError("out of memory")])

    def sometimes(function, **_: object):
        def call(values: torch.Tensor) -> torch.Tensor:
            if (error := next(calls)) is not None:
                raise error
            return function(values)

        return call

    monkeypatch.setattr(compilation, "_has_compiler", lambda: True)
    monkeypatch.setattr(torch, "compile", sometimes)
    call = fused_on_cuda(double)
    values = torch.ones(2).as_subclass(OnCuda)
    assert call(values).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="memory"):
        call(values)


def test_a_function_is_compiled_for_more_shapes_than_the_limit_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    num_shapes = 12
    assert torch._dynamo.config.recompile_limit < num_shapes
    graphs = []

    def counting(graph: torch.fx.GraphModule, _: object):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(compilation, "_has_compiler", lambda: True)
    monkeypatch.setattr(OnCuda, "__torch_function__", torch._C._disabled_torch_function_impl)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counting))
    call = fused_on_cuda(double)
    for size in range(2, 2 + num_shapes):
        call(torch.ones(size).as_subclass(OnCuda))
    assert len(graphs) == num_shapes


def test_an_error_of_the_function_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(values: torch.Tensor) -> torch.Tensor:
        raise ValueError("my own")

    monkeypatch.setattr(compilation, "_has_compiler", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with pytest.raises(ValueError, match="my own"), pytest.warns(UserWarning, match="slower"):
        fused_on_cuda(wrong)(torch.ones(2).as_subclass(OnCuda))
