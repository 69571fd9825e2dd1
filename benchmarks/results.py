"""One line of `results.jsonl` per figure: everything needed to read it, and the command that makes it again."""

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
) -> dict[str, Any]:
    """Adds one figure: mean and sample standard deviation of `values`, one value a seed."""
    published = (claim or {}).get("published")
    line = {
        "method": method,
        "dataset": dataset,
        "accounting": accounting,
        "epsilon_target": epsilon_target,
        "epsilon_proven": claim and claim["epsilon"],
        "epsilon_published": published and published["epsilon"],
        "delta": claim and claim["delta"],
        "adjacency": claim and str(claim["adjacency"]),
        "unit": claim and str(claim["unit"]),
        "protocol": protocol,
        "settings": settings,
        "metric": metric,
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
        "seeds": list(seeds),
        "seconds": round(seconds, 2),
        "device": device,
        "commit": commit or current_commit(),
        "command": command(sys.argv),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(
        f"{dataset} {method} {metric}: {line['mean']:.4f} +- {line['sd']} (n = {line['n']}, {line['seconds']} s)",
        flush=True,
    )
    return line


def command(words: Sequence[str]) -> str:
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
