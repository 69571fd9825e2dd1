"""The critics' benchmark counts what a step multiplies, and its line says what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import critics
import pytest
import torch

from veilset.data.spec import ImageSpec
from veilset.nets.critics import Critics, conv_critics, dense_critics

SPEC = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b"))


def test_operations_are_those_of_the_products_of_a_step() -> None:
    # 8 x 8 becomes 4 x 4 of 3 channels by 25 weights each; the head has 48 numbers, once for all and once by class.
    first = 16 * 3 * 25
    whole = first + 2 * 48
    assert critics.operations(conv_critics(SPEC, 3), 5) == 2 * 5 * (10 * whole - 2 * first)


@pytest.mark.parametrize("net", [conv_critics(SPEC, 2), dense_critics(SPEC, 2)])
def test_the_loop_trains_critics_with_as_many_weights(net: Critics) -> None:
    plain = critics.PlainCritic(net)
    assert sum(weight.numel() for weight in plain.parameters()) == net.num_weights
    assert plain(torch.zeros(3, *SPEC.shape), torch.zeros(3, dtype=torch.int64)).shape == (3,)


def test_a_line_names_its_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    words = ["critics.py", "--critics", "2", "--widths", "2", "--batch", "4", "--side", "8", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [*words, "--results", str(path), "--commit", "test"])
    critics.main()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["metric"], line["accounting"]) == ("milliseconds/critic step", "cost")
    assert line["settings"]["critics"] == 2
    assert line["mean"] > 0
    assert 0 < line["settings"]["share_of_arithmetic"] < 1
