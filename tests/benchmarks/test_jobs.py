"""Jobs: their order, what follows from them, and what becomes of those nobody wants any more."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from jobs import Job, run_jobs


class Course:
    """Jobs that note when they are done."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.unwanted: set[str] = set()

    def job(self, name: str, *following: str, work: Any = None, aside: bool = False) -> Job:
        def done(future: Future[Any]) -> list[Job]:
            error = future.exception()
            self.done.append(type(error).__name__ if error else future.result())
            return [self.job(name) for name in following]

        return Job(work or partial(str, name), done, lambda: name not in self.unwanted, aside)


def test_what_follows_from_a_job_is_done_before_those_that_wait() -> None:
    course = Course()
    run_jobs([course.job("fit 0", "figure 0", "other 0"), course.job("fit 1", "figure 1")], 1)
    assert course.done == ["fit 0", "figure 0", "other 0", "fit 1", "figure 1"]


def test_a_job_that_is_not_wanted_any_more_is_not_begun() -> None:
    course = Course()
    course.unwanted.add("b")
    run_jobs([course.job("a"), course.job("b"), course.job("c")], 1)
    assert course.done == ["a", "c"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_reaches_whoever_waits_and_stops_no_other_job(at_once: int) -> None:
    course = Course()
    run_jobs([course.job("a", work=partial(int, "a")), course.job("b")], at_once)
    assert sorted(course.done) == ["ValueError", "b"]


def test_jobs_side_by_side_have_processes_of_their_own_and_those_aside_take_no_place() -> None:
    course = Course()
    jobs = [course.job("", work=partial(time.sleep, 1)), course.job("", work=partial(time.sleep, 1))]
    aside = [course.job("", work=os.getpid, aside=True), course.job("", work=os.getpid, aside=True)]
    run_jobs([*jobs, *aside], 2)
    assert course.done.count(None) == 2
    assert os.getpid() not in course.done
