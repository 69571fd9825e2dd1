"""Exact measurements on private images leave a note that later ones do not overwrite, written before they begin.

Noisy scores may be bought only by somebody who has not looked. The scores themselves are no proof of that: the next
evaluation replaces them, and a file can be deleted. So the run's vault and the budget of the images each keep a note;
through the budget other runs know too. Without one, a copy of the run folder and other runs know nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable

from veilset.data.spec import Source
from veilset.errors import PrivacyError
from veilset.files import sync_folder
from veilset.report.vault import read_scores
from veilset.reserved_plans import budget_of
from veilset.run_folder import RunFolder
from veilset.score_plan import PURCHASES, RESERVED

LOOKS = "exact-scores.jsonl"
"""Append-only: a line for each exact evaluation on private images."""


def note_look(folder: RunFolder, sources: Iterable[Source]) -> None:
    """Notes that exact scores on images of these sources are about to be measured; benchmarks are nobody's secret.

    Raises: ConfigError where data with a budget is declared a public benchmark.
    """
    looked = [(source, budget_of(source)) for source in sources]
    private = [(source, budget) for source, budget in looked if source.benchmark is None]
    if not private:
        return
    for _, budget in private:
        if budget is not None:
            budget.note("look", str(folder.path.resolve()))
    _append(folder, {"time": round(time.time(), 3), "images": [source.path for source, _ in private]})


def _append(folder: RunFolder, entry: dict[str, object]) -> None:
    """On disk when this returns: what is measured next may be seen by then."""
    handle = os.open(folder.vault / LOOKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "ab") as file:
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder.vault)


def refuse_after_a_look(folder: RunFolder, test: Source) -> None:
    """Raises: PrivacyError where this run has exact scores on private images, or any run has some on these."""
    noted = (folder.vault / LOOKS).exists() or any(score.touched_private_data for score in read_scores(folder.vault))
    budget = budget_of(test)
    if noted or (budget is not None and budget.noted("look")):
        reserved = (folder.vault / PURCHASES / RESERVED).is_file()
        raise PrivacyError(
            "noisy scores that are bought before exact ones are seen",
            "exact scores of this run on private images" if noted else "exact scores of another run on this test set",
            "What to publish would be chosen by looking. Buy first, measure afterwards; here it is too late. Take "
            "another run, and test images on which nothing was measured."
            + (" What was reserved stays charged." if reserved else ""),
        )
