"""Jobs, done one after the other in this process or side by side in fresh ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any


@dataclass(frozen=True)
class Job:
    """What another process can do, as it needs nothing but its arguments, and what is done here with its result."""

    work: Callable[[], Any]
    done: Callable[[Future[Any]], list[Job]]
    """Gives the jobs that follow: they are begun before any that waits."""
    wanted: Callable[[], bool]
    """Asked before it is begun."""
    aside: bool = False
    """It leaves the device to others, so it does not count among those that run at once."""


def run_jobs(jobs: Iterable[Job], at_once: int) -> None:
    """Does the jobs and those that follow from them, in their order and `at_once` of them side by side."""
    queue, running = list(jobs), dict[Future[Any], Job]()
    beside = 1 if at_once == 1 else max(2, (os.cpu_count() or 1) // 2)
    with _executor(at_once) as pool, _executor(beside) as aside:
        while queue or running:
            free = at_once - sum(not job.aside for job in running.values())
            for job in _ready(queue, free):
                queue.remove(job)
                if job.wanted():
                    running[(aside if job.aside else pool).submit(job.work)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                queue[:0] = running.pop(future).done(future)


def _ready(queue: list[Job], free: int) -> list[Job]:
    aside = [job for job in queue if job.aside]
    return [*aside, *[job for job in queue if not job.aside][:free]]


def _executor(processes: int) -> Executor:
    # Fresh processes: a fork of this one could not use CUDA, and would share its threads.
    return _InThisProcess() if processes == 1 else ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


class _InThisProcess(Executor):
    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future = Future[Any]()
        try:
            future.set_result(work(*given, **named))
        except Exception as error:  # as in a process: whoever asks for the result gets it
            future.set_exception(error)
        return future
