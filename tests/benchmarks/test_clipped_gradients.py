"""The benchmark of clipped gradients times the same work on both sides."""

from __future__ import annotations

import sys
from pathlib import Path

import clipped_gradients
import pytest
import results
import torch

from veilset.data.spec import to_unit_range
from veilset.engines.per_sample_gradients import PerSampleGradients


def test_the_stand_in_for_opacus_sums_the_same_clipped_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipped_gradients, "NOISE", 0.0)
    images, device = clipped_gradients.some_images(3), torch.device("cpu")
    found = clipped_gradients.hooked_step(images, device)()
    network = clipped_gradients.network_on(device)
    rows = PerSampleGradients(network)(to_unit_range(images.pixels), images.labels)
    clipped = rows * (clipped_gradients.CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    assert sorted(value.numel() for value in found) == sorted(value.numel() for value in network.parameters())
    length = torch.stack([value.norm() for value in found]).norm()
    assert float(length) == pytest.approx(float(clipped.sum(dim=0).norm()), rel=1e-4)


def test_it_prints_and_records_milliseconds_and_a_ratio(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "results.jsonl"
    words = ["clipped_gradients.py", "--batch", "2", "--attempts", "1", "--device", "cpu", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--results", str(file)])
    clipped_gradients.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 images")
    assert "ms  veilset" in lines[2]
    assert "times as fast as" in lines[-2]
    (line,) = results.read(file)
    shown = line["settings"]
    assert shown["times_as_fast"] == pytest.approx(shown[f"milliseconds, {shown['beside']}"] / line["mean"], rel=0.05)
