"""The cost benchmark counts what a pass multiplies, and its lines say what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cost
import pytest


def test_operations_are_those_of_the_convolutions() -> None:
    # 28 x 28 halves to 14 and 7: 1 -> 4 channels, then twice 4 -> 4, of 3 x 3 weights, for 2 networks.
    expected = 2 * 2 * 9 * (1 * 4 * 28**2 + 4 * 4 * 14**2 + 4 * 4 * 7**2)
    assert cost.Case(networks=2, width=4).operations == expected


def test_a_line_names_its_case_and_stays_below_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "cases", lambda config: [cost.Case(side=8, classes=2, networks=1, width=2)])
    monkeypatch.setattr(cost, "STEPS", 3)
    path = tmp_path / "results.jsonl"
    words = ["cost.py", "--number", "20", "--device", "cpu", "--results", str(path), "--commit", "test"]
    monkeypatch.setattr(sys, "argv", words)
    cost.main()
    image, step = map(json.loads, path.read_text().splitlines())
    assert (image["metric"], step["metric"]) == ("microseconds/image", "milliseconds/step")
    assert image["mean"] > 0
    assert image["settings"]["side"] == 8
    assert 0 < image["settings"]["share_of_arithmetic"] < 1
