"""Releases whose hashes are right and whose story is not: what anyone can see without trusting who wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract.cases import make_images, tiny_plan

from veilset.artifact import update_manifest
from veilset.card import model_card
from veilset.errors import ArtifactError
from veilset.methods.base import get_method
from veilset.privacy.claim import Claim
from veilset.privacy.ledger import GENESIS, LedgerRecord, _hash, read_chain
from veilset.run import execute
from veilset.sharing import verify

Entry = dict[str, Any]


def rewritten(release: Path, change: Callable[[Entry], Entry | None], **config: Any) -> None:
    """The release with another ledger, hashed anew, and with claim, card and manifest made from that."""
    lines, head = [], GENESIS
    for line in json.loads((release / "privacy.json").read_bytes())["ledger"]:
        entry = change(json.loads(line)["entry"])
        if entry is not None:
            after = _hash(head, entry)
            lines.append(json.dumps({"previous": head, "entry": entry, "hash": after}, sort_keys=True))
            head = after
    settings = {**json.loads((release / "config.json").read_bytes()), **config}
    assumptions = get_method(settings["method"]).assumptions
    claim = Claim.from_parts([[LedgerRecord(read_chain(lines))]], assumptions=assumptions, published=None, stamps=())
    (release / "privacy.json").write_text(json.dumps({"claim": claim.to_json(), "ledger": lines}))
    (release / "config.json").write_text(json.dumps(settings))
    (release / "README.md").write_text(model_card(settings, claim))
    update_manifest(release)


def test_a_ledger_without_some_releases_of_its_plan_is_not_believed(tmp_path: Path) -> None:
    images = make_images()
    execute(images, tiny_plan(images, "dpaf"), tmp_path / "run")
    rewritten(tmp_path / "run" / "release", lambda entry: None if "charge" in entry else entry)
    with pytest.raises(ArtifactError, match="all releases of its plan"):
        verify(tmp_path / "run")


@pytest.mark.parametrize("pair", [(0.001, 0.01), (1e-9, 0.2)], ids=str)
def test_a_claim_of_less_at_a_larger_delta_than_its_ledger_costs_is_not_believed(
    tmp_path: Path, pair: tuple[float, float]
) -> None:
    images = make_images()
    execute(images, tiny_plan(images, "psg", epsilon=20.0), tmp_path / "run")
    path = tmp_path / "run" / "release" / "privacy.json"
    value = json.loads(path.read_bytes())
    assert len(value["claim"]["further"]) > 1
    verify(tmp_path / "run")
    value["claim"]["further"][-1] = pair
    path.write_text(json.dumps(value))
    config = json.loads((path.parent / "config.json").read_bytes())
    (path.parent / "README.md").write_text(model_card(config, Claim.from_json(value["claim"])))
    update_manifest(path.parent)
    with pytest.raises(ArtifactError, match=f"epsilon at delta {pair[1]:g} of at least"):
        verify(tmp_path / "run")


@pytest.mark.parametrize("version", [{}, {"veilset": "0.0.1"}], ids=["this version", "another version"])
def test_no_version_proves_an_epsilon_for_settings_without_a_proof(version: dict[str, str], tmp_path: Path) -> None:
    def as_if_private(entry: Entry) -> Entry:
        return {"open": {**entry["open"], "not_private": None}} if "open" in entry else entry

    images = make_images()
    execute(images, tiny_plan(images, "dpaf", accounting="published"), tmp_path / "run", allow_published=True)
    rewritten(tmp_path / "run" / "release", as_if_private, **version)
    with pytest.raises(ArtifactError, match="without a proof"):
        verify(tmp_path / "run")
