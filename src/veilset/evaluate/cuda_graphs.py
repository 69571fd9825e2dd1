"""Replaying a training step on CUDA without the host in between: a deep, narrow network is otherwise bound by it."""

from collections.abc import Callable

import torch
from torch import Tensor

from veilset.evaluate.fitting import FitContext

PLAIN_STEPS = 5
"""Steps before the capture: they choose convolution algorithms and create the optimiser's state. They train as any."""


class GraphedStep:
    """Calls ``step`` with row numbers. Full batches are replayed as one CUDA graph after a few plain steps.

    Where the capture is not possible every step stays a plain one, and the score carries a warning.
    """

    def __init__(self, step: Callable[[Tensor], None], batch: int, ctx: FitContext, generator: torch.Generator) -> None:
        self.step, self.ctx, self.generator = step, ctx, generator
        self.rows = torch.zeros(batch, dtype=torch.int64, device=ctx.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.plain_steps = 0
        self.gave_up = False

    def __call__(self, rows: Tensor) -> None:
        if self.gave_up or len(rows) != len(self.rows):
            self.step(rows)
        elif self.plain_steps < PLAIN_STEPS:
            self.plain_steps += 1
            self._on_a_side_stream(rows)
        else:
            self.rows.copy_(rows)
            self._replay()

    def _on_a_side_stream(self, rows: Tensor) -> None:
        # What a capture needs before it, by torch's documentation: work on another stream than the default one.
        side = torch.cuda.Stream(self.ctx.device)
        side.wait_stream(torch.cuda.current_stream(self.ctx.device))
        with torch.cuda.stream(side):
            self.step(rows)
        torch.cuda.current_stream(self.ctx.device).wait_stream(side)

    def _replay(self) -> None:
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            try:
                graph.register_generator_state(self.generator)
                with torch.cuda.graph(graph):
                    self.step(self.rows)  # recorded, not executed
            except (AttributeError, RuntimeError) as error:
                self.gave_up = True
                self.ctx.warn(f"slower than need be: this step cannot be a CUDA graph ({error})")
                self.step(self.rows)
                return
            self.graph = graph
        self.graph.replay()
