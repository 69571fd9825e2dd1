"""Scores of a run on real test images: computed by the owner, kept in the vault."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from veilset.data.spec import ImageSet
from veilset.evaluate import Score, fidelity, gen2real, run_preset
from veilset.files import write_atomically
from veilset.methods.base import Progress
from veilset.model import from_pretrained
from veilset.run_folder import RunFolder

SCORES = "scores.json"


def score_run(
    folder: RunFolder,
    test: ImageSet,
    *,
    number: int,
    classifiers: Sequence[str],
    seeds: Sequence[int],
    device: torch.device,
    progress: Progress,
    preset: str | None = None,
    fidelity_metrics: Sequence[str] = (),
) -> list[Score]:
    """Samples `number` images and scores them: gen2real by the named classifiers or preset, and fidelity metrics."""
    synthetic = from_pretrained(folder.path).sample(number, device=device, progress=progress)
    if preset is None:
        scores = gen2real(synthetic, test, classifiers=classifiers, seeds=seeds, device=device, progress=progress)
    else:
        scores = run_preset(preset, synthetic, test, seeds=seeds, device=device, progress=progress)
    if fidelity_metrics:
        cache = folder.vault / "features"
        scores += fidelity(synthetic, test, metrics=fidelity_metrics, device=device, cache=cache, progress=progress)
    value = json.dumps([score.to_json() for score in scores], indent=1).encode()
    write_atomically(folder.vault / SCORES, value, mode=0o600)
    return scores
