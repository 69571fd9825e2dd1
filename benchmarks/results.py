"""One line of `results.jsonl` per figure: everything needed to read it, and the command that makes it again.

The command belongs to the commit in the same line: check that out to repeat an old figure exactly as it was made.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results.jsonl"
FIELDS = (
    "method", "dataset", "accounting", "epsilon_target", "epsilon_proven", "epsilon_published", "delta", "adjacency",
    "unit", "protocol", "settings", "metric", "mean", "sd", "n", "seeds", "seconds", "device", "commit", "command",
)  # fmt: skip
"""Every line has these; one with a published epsilon also has `published_status`."""


def read(path: Path) -> list[dict[str, Any]]:
    """All lines. A last line that a kill has torn is left out."""
    if not path.is_file():
        return []
    texts = path.read_text().splitlines()
    lines = []
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(json.loads(text))
        except ValueError:
            if number != len(texts):
                raise
    return lines


def append(
    path: Path,
    *,
    method: str,
    dataset: str,
    accounting: str,
    claim: dict[str, Any] | None,
    epsilon_target: float | None,
    protocol: str,
    settings: dict[str, Any],
    metric: str,
    values: Sequence[float],
    seeds: Sequence[int],
    seconds: float,
    device: str,
    commit: str | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Adds one figure: mean and sample standard deviation of `values`, one value a seed."""
    line = {
        "method": method, "dataset": dataset, "accounting": accounting, "epsilon_target": epsilon_target,
        **_claim_fields(claim), "protocol": protocol, "settings": settings, "metric": metric,
        "mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values), "seeds": list(seeds), "seconds": round(seconds, 2), "device": device,
        "commit": commit or current_commit(), "command": command or typed_command(sys.argv),
    }  # fmt: skip
    if claim and claim["published"]:
        line["published_status"] = claim["published"]["status"]
    _append_line(path, json.dumps(line))
    spread = f"+- {line['sd']} (n = {line['n']}, {line['seconds']} s)"
    print(f"{dataset} {method} {metric}: {line['mean']:.4f} {spread}", flush=True)
    return line


def _claim_fields(claim: dict[str, Any] | None) -> dict[str, Any]:
    published = (claim or {}).get("published")
    return {
        "epsilon_proven": claim and claim["epsilon"],
        "epsilon_published": published and published["epsilon"],
        "delta": claim and claim["delta"],
        "adjacency": claim and str(claim["adjacency"]),
        "unit": claim and str(claim["unit"]),
    }


def _append_line(path: Path, text: str) -> None:
    """On a line of its own, also after a line that a kill has torn."""
    torn = path.is_file() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a") as file:
        file.write(("\n" if torn else "") + text + "\n")


def typed_command(words: Sequence[str]) -> str:
    """What was typed, without where this machine keeps its files."""
    kept = list(words)
    for option in ("--results", "--commit"):
        if option in kept:
            del kept[kept.index(option) : kept.index(option) + 2]
    return "python " + " ".join(kept)


def current_commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
