"""The line about a preset's time says how long each of its classifiers took, and what the machine was worth."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import judging
import pytest

import veilset
from benchmarks.toys import tiny
from veilset.evaluate.presets import Preset


def test_every_classifier_of_the_preset_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = {split: tiny("toys", split) for split in ("train", "test")}
    preset = Preset(description="two", classifiers=("gaussian-nb", "lda"))
    monkeypatch.setattr(judging, "get_preset", {"two": preset}.__getitem__)
    monkeypatch.setattr(judging, "reference_convolution", lambda device: 0.5)
    monkeypatch.setattr(veilset, "load", lambda name, split="train": images[split])
    path = tmp_path / "results.jsonl"
    words = ["--preset", "two", "--device", "cpu", "--results", str(path), "--commit", "test"]
    monkeypatch.setattr(sys, "argv", ["judging.py", *words])
    judging.main()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line["metric"] == "seconds/two"
    assert set(line["settings"]["each"]) == {"gaussian-nb", "lda"}
    assert line["mean"] >= sum(line["settings"]["each"].values()) - 0.2
    assert line["settings"]["reference_convolution_seconds"] == 0.5
