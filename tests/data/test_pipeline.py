"""Work ahead: in order, a few results at a time, and nothing left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from veilset.data.pipeline import grouped, in_order


def test_results_come_in_the_order_of_the_tasks_however_long_each_takes() -> None:
    def task(number: int) -> int:
        time.sleep(0.002 * (7 - number % 7))
        return number

    assert list(in_order(((lambda n=n: task(n)) for n in range(30)), workers=4)) == list(range(30))


def test_tasks_are_started_only_a_little_ahead_of_what_is_needed() -> None:
    started: list[int] = []

    def tasks() -> Iterator[Callable[[], int]]:
        for number in range(100):
            started.append(number)
            yield lambda number=number: number

    results = in_order(tasks(), workers=3)
    for number in range(50):
        assert next(results) == number
        assert len(started) <= number + 4


def test_an_error_of_a_task_reaches_whoever_needs_its_result() -> None:
    def fails() -> int:
        raise KeyError("broken")

    results = in_order([lambda: 1, fails, lambda: 3], workers=2)
    assert next(results) == 1
    with pytest.raises(KeyError, match="broken"):
        next(results)


def test_leaving_early_stops_the_threads() -> None:
    others = set(threading.enumerate())  # a test before this one may have left an iterator that nobody closed
    results = in_order(((lambda n=n: n) for n in range(1000)), workers=2)
    next(results)
    started = set(threading.enumerate()) - others
    assert started
    results.close()  # type: ignore[attr-defined]
    for thread in started:
        thread.join(timeout=60)  # a task that had begun may end
        assert not thread.is_alive()


def test_groups_cover_everything_and_only_the_last_is_short() -> None:
    assert list(grouped(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(grouped([], 3)) == []
