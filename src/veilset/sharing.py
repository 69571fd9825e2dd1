"""The way out: checking a release as anyone can, and exporting it from a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from veilset.artifact import read_release, write_release
from veilset.errors import ArtifactError
from veilset.files import require_empty
from veilset.model import from_pretrained, release_folder
from veilset.privacy.accounting import price, renyi_epsilon


def verify(path: Path) -> dict[str, Any]:
    """What anyone can check about a release: hashes, ledger chain, model, and epsilon priced anew by two accountants.

    Raises: ArtifactError or LedgerError for anything that does not hold.
    """
    model = from_pretrained(path)
    claim, record = model.claim, model.privacy.record
    stated = (claim.delta, claim.adjacency, claim.unit)
    if stated != (record.delta, record.adjacency, record.unit) or (claim.epsilon is None) != (not record.private):
        raise ArtifactError("a claim about its own ledger", f"{claim}", "Do not trust this release.")
    result: dict[str, Any] = {"method": model.method, "claim": str(claim), "files": "unchanged", "ledger": "unbroken"}
    if claim.epsilon is None:
        return {**result, "verdict": claim.stamps[0] if claim.stamps else "NOT PRIVATE"}
    exact = price(record.spent, record.delta, record.adjacency)
    second = renyi_epsilon(record.spent, record.delta, record.adjacency)
    for name, priced, claimed in (("epsilon", exact.epsilon, claim.epsilon), ("mu", exact.mu, claim.mu)):
        if (priced is None) != (claimed is None) or not (priced or 0.0) <= (claimed or 0.0) * (1 + 1e-6) + 1e-9:
            raise ArtifactError(
                f"{name} of at least {priced}, as its ledger is priced",
                f"a claim of {claimed}",
                "Do not trust this release.",
            )
    if second is not None and second < exact.epsilon * (1 - 1e-3):
        raise ArtifactError(
            f"two accountants that agree ({exact.accountant}: {exact.epsilon:.6g})",
            f"Renyi accounting below it: {second:.6g}",
            "Do not rely on either; report this as a bug.",
        )
    verdict = "the stated epsilon follows from the ledger"
    return {
        **result,
        "epsilon": exact.epsilon,
        "accountant": exact.accountant,
        "epsilon_renyi": second,
        "verdict": verdict,
    }


def export(path: Path, out: Path) -> dict[str, Any]:
    """Copies what may be shared, after checking it: the only documented way out of a run folder."""
    checked = verify(path)
    model = from_pretrained(path)
    if model.claim.epsilon is None:
        raise ArtifactError("a release with a privacy claim", f"{model.claim.stamps[0]}", "Fit with an epsilon first.")
    files = read_release(release_folder(path))
    require_empty(out)
    write_release(out, files)
    return checked
