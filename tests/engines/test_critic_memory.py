"""Critics that a device has no room for are refused with numbers, before any is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plain_critics import spec_of

from veilset.engines import critic_memory
from veilset.errors import ConfigError
from veilset.nets.critics import conv_critics


def test_critics_that_do_not_fit_on_the_device_are_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critic_memory, "memory_of", lambda device: 10**9)
    spec = spec_of(28, 28, 1, classes=10)
    with pytest.raises(ConfigError, match=r"1\.0 GB of the cpu.*\n.*1,000 of 12\.9 MB each.* 12\.9 GB"):
        critic_memory.spare_bytes(conv_critics(spec), 1000, 32, torch.device("cpu"))
    spare = critic_memory.spare_bytes(conv_critics(spec), 10, 32, torch.device("cpu"))
    assert spare == 10**9 - 10 * critic_memory.bytes_kept(conv_critics(spec))


def test_a_program_in_a_container_has_the_memory_of_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = critic_memory.memory_of(torch.device("cpu"))
    (tmp_path / "limit").write_text("1000000\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(critic_memory, "CGROUP_LIMITS", (tmp_path / "none", tmp_path / "missing"))
    assert critic_memory.memory_of(torch.device("cpu")) >= machine
    monkeypatch.setattr(critic_memory, "CGROUP_LIMITS", (tmp_path / "none", tmp_path / "limit"))
    assert critic_memory.memory_of(torch.device("cpu")) == 10**6
