"""Replaying a training step on CUDA without the host in between: many small kernels are otherwise bound by it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

PLAIN_STEPS = 5
"""Steps before the capture: they choose convolution algorithms and create the optimiser's state. They train as any."""


class GraphedStep:
    """Calls ``step`` with tensors; in the shapes of ``example`` they become one CUDA graph after a few plain steps.

    Where the capture is not possible every step stays a plain one, and ``warn`` says so. On the CPU all are plain.
    """

    def __init__(
        self,
        step: Callable[..., None],
        example: Sequence[Tensor],
        generators: Sequence[torch.Generator],
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.step, self.generators, self.warn = step, generators, warn
        self.inputs = [torch.zeros_like(value) for value in example]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.plain_steps = 0
        self.plain_only = any(not value.is_cuda for value in example)

    def __call__(self, *inputs: Tensor) -> None:
        if self.plain_only or not self.fits(*inputs):
            self.step(*inputs)
        elif self.plain_steps < PLAIN_STEPS:
            self.plain_steps += 1
            self._on_a_side_stream(inputs)
        else:
            for mine, given in zip(self.inputs, inputs, strict=True):
                mine.copy_(given)
            self._replay()

    def rehearse(self) -> None:
        """Makes the graph now, by steps on zeros: for a step that leaves nothing behind but its result."""
        for _ in range(PLAIN_STEPS + 1):
            if not self.plain_only:
                self(*self.inputs)

    def fits(self, *inputs: Tensor) -> bool:
        """Whether these have the shapes of the example; others are never replayed."""
        return all(a.shape == b.shape for a, b in zip(inputs, self.inputs, strict=True))

    def _on_a_side_stream(self, inputs: Sequence[Tensor]) -> None:
        # What a capture needs before it, by torch's documentation: work on another stream than the default one.
        device = inputs[0].device
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self.step(*inputs)
        torch.cuda.current_stream(device).wait_stream(side)

    def _replay(self) -> None:
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            try:
                for generator in self.generators:
                    graph.register_generator_state(generator)
                with torch.cuda.graph(graph):
                    self.step(*self.inputs)  # recorded, not executed
            except (AttributeError, RuntimeError) as error:
                self.plain_only = True
                self.warn(f"slower than need be: this step cannot be a CUDA graph ({error})")
                self.step(*self.inputs)
                return
            self.graph = graph
        self.graph.replay()
