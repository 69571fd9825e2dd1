"""A released sketch: noisy sums that anyone may synthesise from, with the ledgers of all that was measured.

Such a release lists what it is made of: for every part and every ledger in it the ledger's last hash and a hash of
the noisy sums it paid for. So a ledger cannot be dropped, exchanged or moved in privacy.json alone, and the same
measurement cannot be merged twice as if it were about other people. Beside them stands the hash of the whole file:
networks, prototypes and sums of merged parts are in no ledger and in no hash of one part's sums.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from veilset.artifact import Privacy, parse_json, privacy_bytes, read_privacy, read_release
from veilset.card import model_card
from veilset.data.spec import ImageSpec
from veilset.errors import ArtifactError
from veilset.methods.base import PublicFacts, layout_in
from veilset.model import release_folder
from veilset.privacy.claim import Claim
from veilset.privacy.events import Composed, Gaussian
from veilset.privacy.ledger import LedgerRecord
from veilset.sketch_card import sketch_card
from veilset.sketch_file import FILE, Layout, Round, read_rounds, read_tensors, row_bound, sketch_bytes
from veilset.version import __version__, read_as_ours

METHOD = "sketch"
KIND = "sketch"
MERGED = (
    "the merged parts are about different people: nobody is in two of them, no image is repeated in another part, and "
    "no part was measured from images of an earlier one",
    "where an image is replaced by another, both are of the same part",
)
"""Assumptions of parallel composition; without them the losses of the parts add up."""
CONTINUED = (
    "the networks of a later round were made from public information and from releases whose cost for these people is "
    "counted here, never from the images themselves",
)
"""Assumption of a sketch that was measured in several runs."""
Receipt = dict[str, str]
"""The last hash of a ledger, and a hash of the sums it paid for; both are public."""


@dataclass(frozen=True)
class SketchRelease:
    """What `veilset sketch` and `fit --method sketch` release and `veilset synthesize` starts from."""

    folder: Path
    layout: Layout
    facts: PublicFacts
    privacy: Privacy
    data: bytes
    """The file of tensors, already checked against the layout."""
    parts: tuple[tuple[Receipt, ...], ...]

    method = METHOD

    @property
    def claim(self) -> Claim:
        return self.privacy.claim

    @property
    def spec(self) -> ImageSpec:
        return self.facts.spec

    @property
    def tensors(self) -> dict[str, Tensor]:
        return read_tensors(self.layout, self.spec, self.data)

    @property
    def sums(self) -> list[Tensor]:
        return sums_in(self.tensors)

    @property
    def rounds(self) -> list[Round]:
        return read_rounds(self.layout, self.spec, self.data)

    @property
    def noise_multipliers(self) -> list[float]:
        """Of the noise in the sums of each round: that of merged parts adds up."""
        return [math.hypot(*column) for column in zip(*_multipliers(self.privacy), strict=True)]

    @property
    def noises(self) -> list[float]:
        """Standard deviation of the noise in the sums of each round."""
        sensitivity = self.facts.sensitivity(row_bound(self.layout.total_weight))
        return [multiplier * sensitivity for multiplier in self.noise_multipliers]

    def described(self) -> dict[str, Any]:
        """The entry `sketch` of config.json."""
        return _described(self.layout, self.parts, self.data)


def open_sketch(path: Path) -> SketchRelease:
    """The sketch in a release, an export or a run folder; also the one a fitted model was made from.

    Raises: ArtifactError for anything that does not fit together. The price of its ledgers is checked by `verify`.
    """
    folder = release_folder(path)
    files = read_release(folder)
    if FILE not in files:
        raise ArtifactError(f"a release with {FILE}", f"none in {folder}", "Make one with `veilset sketch`.")
    return read_sketch(folder, files)


def read_sketch(folder: Path, files: dict[str, bytes]) -> SketchRelease:
    config, privacy = parse_json(files["config.json"], "config.json"), read_privacy(files["privacy.json"])
    with read_as_ours("a sketch", config):
        layout = layout_in(config)
        spec = ImageSpec.from_json(config["spec"])
        facts = PublicFacts(
            spec=spec, declared_size=config["declared_size"], adjacency=privacy.claim.adjacency,
            unit=privacy.claim.unit, rows_per_user=config["rows_per_user"],
        )  # fmt: skip
        if layout is None or not (type(facts.declared_size) is int and facts.declared_size >= 1):
            raise ValueError("no layout or no declared size")
        paid = receipts(privacy, sums_in(read_tensors(layout, spec, files[FILE])))
        listed = _listed(config["sketch"], files[FILE]) if "sketch" in config else paid
    _check_listed(listed, paid)
    return SketchRelease(folder, layout, facts, privacy, files[FILE], listed)


def sums_in(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The sums of all rounds in order."""
    return [tensors[f"round.{number}.sums"] for number in range(sum(name.endswith(".sums") for name in tensors))]


def receipts(privacy: Privacy, sums: Sequence[Tensor]) -> tuple[tuple[Receipt, ...], ...]:
    """What each ledger paid for. The sums of merged parts are not known one by one, so theirs are hashed together.

    Raises: ArtifactError where a part has not paid for every round.
    """
    parts = []
    for lines_of, records, paid in zip(privacy.parts, privacy.records, _multipliers(privacy), strict=True):
        if len(paid) != len(sums):
            raise ArtifactError(
                f"{len(sums)} rounds, as many as its ledgers paid for", f"{len(paid)}", "Do not trust this release."
            )
        part, first = [], 0
        for lines, record in zip(lines_of, records, strict=True):
            last = first + len(_gaussians(record))
            part.append({"ledger": str(json.loads(lines[-1])["hash"]), "sums": _hash(sums[first:last])})
            first = last
        parts.append(tuple(part))
    return tuple(parts)


def sketch_files(
    facts: PublicFacts,
    layout: Layout,
    parts: Sequence[Sequence[Receipt]],
    tensors: Mapping[str, Tensor],
    privacy: Privacy,
) -> dict[str, bytes]:
    """The files of a released sketch; config.json has declared facts and hashes of what is released anyway."""
    data = sketch_bytes(layout, facts.spec, tensors)
    config = {
        "veilset": __version__,
        "kind": KIND,
        "method": METHOD,
        "spec": facts.spec.to_json(),
        "declared_size": facts.declared_size,
        "rows_per_user": facts.rows_per_user,
        "accounting": "none" if privacy.claim.epsilon is None else "proven",
        "sketch": _described(layout, parts, data),
    }
    return {
        "config.json": json.dumps(config, indent=1).encode(),
        FILE: data,
        "privacy.json": privacy_bytes(privacy),
        "README.md": sketch_card(config, privacy.claim).encode(),
    }


def differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str]:
    """What of `wanted` is not so, and what was `found` instead, in words; empty where all of it is."""
    names = [name for name, value in wanted.items() if found[name] != value]
    expected, instead = (", ".join(f"{name} {values[name]}" for name in names) for values in (wanted, found))
    return expected, instead


def card_of(config: dict[str, Any], claim: Claim) -> str:
    return sketch_card(config, claim) if config.get("kind") == KIND else model_card(config, claim)


def _described(layout: Layout, parts: Sequence[Sequence[Receipt]], data: bytes) -> dict[str, Any]:
    return {**layout.to_json(), "parts": [list(part) for part in parts], "sha256": hashlib.sha256(data).hexdigest()}


def _listed(value: Any, data: bytes) -> tuple[tuple[Receipt, ...], ...]:
    if value["sha256"] != hashlib.sha256(data).hexdigest():
        raise ArtifactError(f"the {FILE} that config.json names", "another", "Do not trust this release.")
    return tuple(
        tuple({"ledger": str(one["ledger"]), "sums": str(one["sums"])} for one in part) for part in value["parts"]
    )


def _check_listed(listed: tuple[tuple[Receipt, ...], ...], paid: tuple[tuple[Receipt, ...], ...]) -> None:
    heads = [[[one["ledger"] for one in part] for part in parts] for parts in (listed, paid)]
    if heads[0] != heads[1] or (len(listed) == 1 and listed != paid):
        raise ArtifactError(
            "the ledgers and sums config.json lists", "others, or in another order", "Do not trust this release."
        )


def _multipliers(privacy: Privacy) -> list[list[float]]:
    """Of every part, the noise multiplier of each round."""
    return [[event.noise_multiplier for record in part for event in _gaussians(record)] for part in privacy.records]


def _gaussians(record: LedgerRecord) -> list[Gaussian]:
    """The releases of a ledger in their order: a sketch has no others, and no reserve."""
    events = record.planned.events if isinstance(record.planned, Composed) else (record.planned,)
    plain = [event for event in events if isinstance(event, Gaussian)]
    if len(plain) != len(events) or record.charged != _counted(plain):
        raise ArtifactError("one Gaussian release for each round", f"{record.planned}", "Do not trust this release.")
    return plain


def _counted(events: Sequence[Gaussian]) -> dict[Any, int]:
    return {event: list(events).count(event) for event in events}


def _hash(sums: Sequence[Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in sums:
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()
