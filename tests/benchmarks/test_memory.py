"""The memory benchmark: its images are what it says, and a fit is measured in a process of its own."""

from __future__ import annotations

from pathlib import Path

import memory
import pytest
import torch

import veilset


def test_the_folder_and_the_archive_hold_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PIECE", 16)
    folder, archive = (veilset.load(make(tmp_path, 40)) for make in (memory.make_folder, memory.make_npz))
    order = torch.argsort(archive.labels, stable=True)
    assert torch.equal(folder.pixels, archive.pixels[order])
    assert torch.equal(folder.labels, archive.labels[order])


def test_the_peak_of_a_whole_fit_is_measured(tmp_path: Path) -> None:
    found = memory.measured(memory.make_npz(tmp_path, 40), load=False)
    assert found["claim"]["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert found["megabytes"] > 50
