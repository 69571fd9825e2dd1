"""Writes the two reports of a run: `release/report.html` may be shared, `vault/report.html` may not.

The public page is made from the files of the release (noisy scores among them, where they were bought) and from scores
on public test sets, nothing else: the function that makes it is never handed the vault.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from veilset.artifact import MANIFEST, forget, parse_json, read_release, update_manifest
from veilset.errors import ArtifactError, RunError
from veilset.evaluate.scores import Score
from veilset.files import write_atomically
from veilset.model import from_pretrained
from veilset.report.content import page_content
from veilset.report.pages import render
from veilset.report.vault import owner_content, read_scores
from veilset.run_folder import RunFolder
from veilset.score_release import NOISY_SCORES, read_noisy_scores
from veilset.sharing import verify

REPORT = "report.html"
PAGE = "page.html"


def write_reports(run: RunFolder) -> tuple[Path, Path | None]:
    """Writes the public page and, where the run has its vault, the owner's page; returns their paths.

    The release is checked first: hashing it anew for the report must not bless files that somebody changed.

    Raises: RunError without a finished run, ArtifactError or LedgerError for a release that does not verify.
    """
    _require_finished(run)
    checked = _verified(run)
    in_vault = run.vault.is_dir()
    scores = read_scores(run.vault) if in_vault else []
    public = render(PAGE, _release_content(run, [score for score in scores if not score.touched_private_data], checked))
    owner = None
    if in_vault:
        content = _release_content(run, scores, checked)
        owner = render(PAGE, {**content, "owner": asdict(owner_content(run, scores))})
    # Both pages are complete before either is written: an error leaves the reports as they were.
    write_atomically(run.release / REPORT, public)
    update_manifest(run.release)
    if owner is None:
        return run.release / REPORT, None
    write_atomically(run.vault / REPORT, owner, mode=0o600)
    return run.release / REPORT, run.vault / REPORT


def _require_finished(run: RunFolder) -> None:
    if run.finished:
        return
    if (run.path / MANIFEST).is_file():
        raise RunError(
            "a run folder, from which reports are made",
            f"{run.path} is an exported release, which carries the report it was exported with",
            f"Open its {REPORT}, or run `veilset report` on the run folder and export again.",
        )
    if not os.path.exists(run.path):
        raise RunError(f"a finished run at {run.path}", "no such folder", "Check the path.")
    todo = "Give the command that began it again, with --resume."
    raise RunError(f"a finished run at {run.path}", "no release in it", todo)


def _verified(run: RunFolder) -> dict[str, Any]:
    """What `verify` says; a half-written report, left by a crash of this very step, is taken out first."""
    try:
        return verify(run.path)
    except ArtifactError:
        forget(run.release, REPORT)
        return verify(run.path)


def _release_content(run: RunFolder, scores: list[Score], checked: dict[str, Any]) -> dict[str, Any]:
    files = read_release(run.release)
    model = from_pretrained(run.release)
    return page_content(
        config=parse_json(files["config.json"], "config.json"),
        spec=model.spec,
        claim=model.claim,
        records=[record for part in model.privacy.records for record in part],
        picture=files.get("samples.png"),
        scores=scores,
        noisy=read_noisy_scores(files[NOISY_SCORES]) if NOISY_SCORES in files else [],
        renyi=checked.get("epsilon_renyi"),
    )
