"""The command line, called as the entry point calls it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from veilset.cli import app

Cli = Callable[..., tuple[int, str, str]]
"""Words to (exit code, stdout, stderr)."""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["veilset", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            app.main()
        output = capsys.readouterr()
        return int(stop.value.code or 0), output.out, output.err

    return call
