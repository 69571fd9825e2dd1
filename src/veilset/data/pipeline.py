"""Work done a little ahead of whoever needs its results, in order and in bounded memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

WORKERS = min(4, os.cpu_count() or 1)


def in_order(tasks: Iterable[Callable[[], T]], workers: int = WORKERS) -> Iterator[T]:
    """Results of the tasks, in their order, computed in threads; at most `workers + 1` results exist at a time.

    Decoding and reading release Python's lock for their longest parts, so threads overlap with each other and with
    the measuring of the batch before.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="veilset-read")
    waiting: deque[Future[T]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(task))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be short."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group
