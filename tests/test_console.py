"""What people see: lines when piped, nothing with --quiet, one JSON line on stdout."""

from __future__ import annotations

import json

import pytest

from veilset.console import Show, result, show_error
from veilset.errors import ConfigError


def test_piped_progress_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Show(quiet=False) as show:
        show.progress("reading", 1, 4)
        show.progress("reading", 2, 4)
        show.progress("reading", 4, 4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("reading: 1/4")
    assert lines[-1].startswith("reading: 4/4")
    assert len(lines) == 2  # not one line a step


def test_changing_details_of_the_same_work_keep_its_clock(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("veilset.console.time.monotonic", lambda: next(clock))
    show = Show(quiet=False)
    show.progress("cnn: epoch 1", 1, 2)
    show.progress("cnn: epoch 2", 2, 2)
    assert capsys.readouterr().err.splitlines()[-1] == "cnn: epoch 2: 2/2, 10 s"


def test_no_time_is_foretold_before_any_has_passed_or_when_all_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 100.2, 106.0, 112.0])
    monkeypatch.setattr("veilset.console.time.monotonic", lambda: next(clock))
    show = Show(quiet=False)
    show.progress("teaching", 0, 20000)
    show.progress("reading", 1, 4)
    show.progress("reading", 2, 4)
    show.progress("reading", 4, 4)
    assert capsys.readouterr().err.splitlines() == [
        "teaching: 0/20000",
        "reading: 1/4",
        "reading: 2/4, 6 s, about 6 s left",
        "reading: 4/4, 12 s",
    ]


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Show(quiet=True) as show:
        show.say("a")
        show.warn("b")
        show.progress("c", 1, 1)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Show(quiet=False) as show:
        for done in range(1, 4):
            show.progress("training", done, 3)
    assert "3/3" in capsys.readouterr().err


def test_the_result_is_one_json_line_and_errors_have_three_parts(capsys: pytest.CaptureFixture[str]) -> None:
    result({"a": [1, 2]})
    show_error(ConfigError("x", "y", "Do z."))
    output = capsys.readouterr()
    assert json.loads(output.out) == {"a": [1, 2]}
    assert output.err.splitlines() == ["ConfigError: expected x", "  found y", "  Do z."]


@pytest.mark.parametrize(
    ("terminals", "quiet", "written"),
    [("out err", False, False), ("out err", True, True), ("out", False, True), ("err", False, True), ("", False, True)],
)
def test_whoever_reads_the_messages_on_a_terminal_is_spared_the_json(
    terminals: str, quiet: bool, written: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in terminals.split():
        monkeypatch.setattr(f"sys.std{name}.isatty", lambda: True)
    result({"a": 1}, quiet=quiet)
    assert capsys.readouterr().out == ('{"a": 1}\n' if written else "")
