"""What people see while the command line works: progress on stderr; on stdout, for programs, one JSON result."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from veilset.errors import VeilsetError
from veilset.wording import duration

PLAIN_EVERY = 5.0
"""Seconds between lines of progress where stderr is not a terminal."""


class Show:
    """Messages and progress for people; silent with `--quiet`. Use as a context manager around long work."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._tasks: dict[str, Any] = {}
        self._plain: tuple[str, float, float] = ("", 0.0, 0.0)

    def __enter__(self) -> Show:
        if not self.quiet and self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
            )
            self._bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        if not self.quiet:
            self._console.print(text, markup=False)

    def warn(self, text: str) -> None:
        if not self.quiet:
            self._console.print(f"warning: {text}", style="yellow", markup=False)

    def progress(self, message: str, done: int, total: int) -> None:
        if self.quiet:
            return
        if self._bar is not None:
            work = _work(message)
            if work not in self._tasks:
                self._tasks[work] = self._bar.add_task(message, total=total, rate="")
            task = next(t for t in self._bar.tasks if t.id == self._tasks[work])
            rate = f"{task.speed:.3g}/s" if task.speed else ""
            self._bar.update(task.id, description=message, completed=done, total=total, rate=rate)
        else:
            self._plain_progress(message, done, total)

    def _plain_progress(self, message: str, done: int, total: int) -> None:
        now = time.monotonic()
        doing, started, shown = self._plain
        if _work(message) != doing:
            self._plain = (_work(message), now, 0.0)
            doing, started, shown = self._plain
        if done == total or now - shown > PLAIN_EVERY:
            self.say(f"{message}: {done}/{total}{_pace(now - started, done, total)}")
            self._plain = (doing, started, now)


def command(*words: object) -> str:
    """A command of ours to copy into a shell.

    >>> command("report", "my run")
    "veilset report 'my run'"
    """
    return shlex.join(["veilset", *map(str, words)])


def _pace(seconds: float, done: int, total: int) -> str:
    """The time taken and the time left; nothing is foretold from less than a second, or from no work at all."""
    if seconds < 1:
        return ""
    left = f", about {duration(seconds / done * (total - done))} left" if 0 < done < total else ""
    return f", {duration(seconds)}{left}"


def _work(message: str) -> str:
    """What a message is about: the part before a colon; the rest (an epoch, say) changes as the work goes on."""
    return message.partition(":")[0]


def result(value: Mapping[str, Any], *, quiet: bool = False) -> None:
    """The one machine-readable line of a command: for programs, and for people who see no messages."""
    if sys.stdout.isatty() and sys.stderr.isatty() and not quiet:
        return
    sys.stdout.write(json.dumps(value) + "\n")


def show_error(error: VeilsetError) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"{type(error).__name__}: {error}", style="red", markup=False)
