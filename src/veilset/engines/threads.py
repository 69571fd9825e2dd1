"""How many CPU threads a piece of work uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For long loops of tiny operations: a second thread gains a tenth on an idle machine and loses a factor of eight
    on a busy one, where the threads wait for each other at every operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
