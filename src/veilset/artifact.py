"""What may leave the building: reading and writing of release folders. No pickle anywhere.

A release holds the files of `RELEASED` and nothing else. Writing goes through a gate: only tensors the method's public
architecture declares, none that belongs to a sealed (vault side) network. Reading checks hashes, then names, types,
shapes and sizes, and allocates nothing before they match.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor, nn

from veilset.errors import ArtifactError, OtherTensors, VaultLeak
from veilset.files import read_json, write_atomically
from veilset.privacy.claim import VOID, Claim
from veilset.privacy.ledger import LedgerRecord, read_chain
from veilset.privacy.sides import is_sealed, sealed_twin

FORMAT = 1
RELEASED = (
    "config.json", "model.safetensors", "sketch.safetensors", "privacy.json", "README.md", "samples.png", "report.html",
    "scores.json",
)  # fmt: skip
"""Every file a release may hold, beside the manifest that hashes them. The scores are noisy ones."""
MANIFEST, MODEL = "manifest.json", "model.safetensors"
PUBLIC = "public benchmark data"
"""How the stamp of a claim about images that are nobody's secret begins."""
CLASSIFIER = "classifier"
"""The kind of a release whose model tells classes apart and makes no images."""
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "I64": torch.int64,
    "I8": torch.int8,
    "I16": torch.int16,
}
Shapes = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Type and shape of every tensor of a file, by name."""
LedgerParts = tuple[tuple[tuple[str, ...], ...], ...]
"""Parts, in each its ledgers in order, of each its lines."""
MAX_LEDGERS = 10_000
_MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class Privacy:
    """The content of privacy.json: the claim, and the ledgers it was priced from.

    A run has one ledger. Sketches can be continued (further ledgers about the same people) and merged (parts of
    disjoint people, each with its own ledgers).
    """

    claim: Claim
    parts: LedgerParts

    @classmethod
    def of_run(cls, claim: Claim, lines: Iterable[str]) -> Privacy:
        return cls(claim, ((tuple(lines),),))

    @property
    def ledger_lines(self) -> tuple[str, ...]:
        """Lines of the only ledger. Raises: ArtifactError where there are others, which would go unpriced."""
        if len(self.parts) != 1 or len(self.parts[0]) != 1:
            raise ArtifactError("the ledger of one run", "several ledgers", "Only sketches are continued or merged.")
        return self.parts[0][0]

    @property
    def record(self) -> LedgerRecord:
        return LedgerRecord(read_chain(self.ledger_lines))

    @property
    def records(self) -> tuple[tuple[LedgerRecord, ...], ...]:
        return tuple(tuple(LedgerRecord(read_chain(lines)) for lines in part) for part in self.parts)


def combined(
    parts: LedgerParts,
    claims: Sequence[Claim],
    *,
    assumptions: Sequence[str] = (),
    further: Sequence[str] | None = None,
) -> Privacy:
    """The claim about several ledgers, priced from them; assumptions and stamps of all that is combined stay, save that
    images are public: one part that is not stamped so makes the whole private.

    Args:
        further: stamps of a part that has no claim of its own yet.
    """
    records = tuple(tuple(LedgerRecord(read_chain(lines)) for lines in part) for part in parts)
    stamped = [*(claim.stamps for claim in claims), *([] if further is None else [further])]
    public = all(any(stamp.startswith(PUBLIC) for stamp in stamps) for stamps in stamped)
    left_out = VOID if public else (VOID, PUBLIC)
    kept = [stamp for stamps in stamped for stamp in stamps if not stamp.startswith(left_out)]
    claim = Claim.from_parts(
        records,
        assumptions=tuple(dict.fromkeys([*(text for one in claims for text in one.assumptions), *assumptions])),
        published=None,
        stamps=tuple(dict.fromkeys(kept)),
    )
    return Privacy(claim, parts)


def model_bytes(model: nn.Module) -> bytes:
    """The gate: the tensors of an open-side model as safetensors bytes.

    Raises: VaultLeak if the model, or any tensor in it, belongs to a network that was sealed as private.
    """
    if is_sealed(model):
        raise VaultLeak("a model trained on released values only", "a sealed network", "Release the generator instead.")
    return tensor_bytes(model.state_dict())


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The same gate for single tensors."""
    for name, tensor in tensors.items():
        if sealed_twin(tensor):
            raise VaultLeak(
                "tensors of the open side", f"'{name}' is a tensor of a sealed network", "Do not release it."
            )
    return safetensors_save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def check_tensors(model: nn.Module, data: bytes) -> None:
    """Compares every name, type and shape of safetensors bytes with those of `model`, which may be on "meta"."""
    check_shapes({name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in model.state_dict().items()}, data)


def check_shapes(expected: Shapes, data: bytes) -> None:
    """Compares every name, type and shape of safetensors bytes with the expected ones, from the header alone."""
    found = declared_shapes(data)
    if found != expected:
        wrong = sorted(set(expected.items()) ^ set(found.items()), key=lambda item: item[0])[:3]
        raise OtherTensors(
            "the tensors of the declared method", f"differences at {wrong}", "The file is not of this release."
        )


def load_into(model: nn.Module, data: bytes) -> None:
    """Fills `model` from safetensors bytes after checking them against it."""
    check_tensors(model, data)
    model.load_state_dict(_loaded(data))


def load_module(build: Callable[[], nn.Module], data: bytes) -> nn.Module:
    """What `build` makes, filled from safetensors bytes of a stranger."""
    with torch.device("meta"):  # shapes only: a forged configuration must not make us allocate
        check_tensors(build(), data)
    module = build()
    load_into(module, data)
    return module


def load_tensors(expected: Shapes, data: bytes) -> dict[str, Tensor]:
    """The tensors of safetensors bytes after checking that they are the expected ones."""
    check_shapes(expected, data)
    return _loaded(data)


def _loaded(data: bytes) -> dict[str, Tensor]:
    try:
        tensors = safetensors_load(data)
    except SafetensorError as error:
        raise ArtifactError("a safetensors file", f"{error}", "Copy the release again.") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ArtifactError("finite numbers", f"'{name}' holds NaN or infinity", "Make the release again.")
    return tensors


def declared_shapes(data: bytes) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Names, types and shapes from the header alone; refuses a header that disagrees with the size of the file."""
    try:
        length = int.from_bytes(data[:8], "little")
        if not 2 <= length <= min(_MAX_HEADER, len(data) - 8):
            raise ValueError(f"header of {length} bytes in a file of {len(data)}")
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        tensors = {name: (_TYPES[entry["dtype"]], tuple(entry["shape"])) for name, entry in header.items()}
        size = sum(math.prod(shape) * kind.itemsize for kind, shape in tensors.values())
        if size != len(data) - 8 - length:
            raise ValueError(f"tensors of {size} bytes in a body of {len(data) - 8 - length}")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtifactError("a safetensors file", f"{error!r}", "Copy the release again.") from error
    return tensors


def write_release(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes all files and, last, the manifest that makes the release complete."""
    unknown = sorted(set(files) - set(RELEASED))
    if unknown:
        raise VaultLeak(f"only the files {RELEASED}", f"{unknown}", "Write it to the vault instead.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomically(folder / name, data)
    update_manifest(folder)


def update_manifest(folder: Path) -> None:
    """Hashes the files of a release anew, after one of them (a report, noisy scores) was replaced."""
    hashes = {name: _sha256((folder / name).read_bytes()) for name in RELEASED if (folder / name).exists()}
    write_atomically(folder / MANIFEST, json.dumps({"format": FORMAT, "sha256": hashes}, indent=1).encode())


def forget(folder: Path, name: str) -> None:
    """Takes one file out of folder and manifest, half-written or whole. All other hashes stay, so that other changes
    are still noticed."""
    manifest = read_json(folder / MANIFEST, "a finished release")
    if isinstance(manifest.get("sha256"), dict):
        manifest["sha256"].pop(name, None)
    for path in (folder / name, *folder.glob(f".{name}.*")):
        path.unlink(missing_ok=True)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def read_release(folder: Path) -> dict[str, bytes]:
    """All files of a release after checking that they are the ones its manifest names, unchanged."""
    if os.path.isdir(folder / "vault"):  # a run folder, as it is before there is a release in it
        todo = "Give the command that began it again, with --resume."
        raise ArtifactError("a finished run", f"{folder}, which is not", todo)
    manifest = read_json(folder / MANIFEST, "a finished release")
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("sha256"), dict):
        raise ArtifactError(
            f"release format {FORMAT}", f"{manifest.get('format')!r}", "Use the version of Veilset that wrote it."
        )
    present = {path.name for path in folder.iterdir()}
    strangers = sorted(present - set(RELEASED) - {MANIFEST})
    if strangers or any(not (folder / name).is_file() or (folder / name).is_symlink() for name in present):
        raise ArtifactError(f"only the files {RELEASED}", f"{strangers or 'a link'}", "Remove what was added.")
    if set(manifest["sha256"]) != present - {MANIFEST}:
        missing = sorted(set(manifest["sha256"]) ^ (present - {MANIFEST}))
        raise ArtifactError("the files the manifest names", f"a difference: {missing}", "Copy the release again.")
    files = {name: (folder / name).read_bytes() for name in manifest["sha256"]}
    for name, data in files.items():
        if _sha256(data) != manifest["sha256"][name]:
            raise ArtifactError("unchanged files", f"{name} does not match its hash", "Copy the release again.")
    content = MODEL if MODEL in files else "sketch.safetensors"
    for name in ("config.json", content, "privacy.json"):
        if name not in files:
            raise ArtifactError(f"a release with {name}", "it is missing", "Copy the release again.")
    return files


def privacy_bytes(privacy: Privacy) -> bytes:
    ordinary = [len(part) for part in privacy.parts] == [1]
    ledgers = {"ledger": privacy.ledger_lines} if ordinary else {"parts": privacy.parts}
    return json.dumps({"claim": privacy.claim.to_json(), **ledgers}, indent=1).encode()


def read_privacy(data: bytes) -> Privacy:
    """The claim and ledgers of a release; the ledger chains are checked here, the price by `verify`."""
    value = parse_json(data, "privacy.json")
    try:
        privacy = Privacy(Claim.from_json(value["claim"]), _ledgers(value))
        closed = all(record.closed for part in privacy.records for record in part)
        str(privacy.claim)  # numbers that are none fail here and not where they are shown
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtifactError("claim and ledger in privacy.json", f"{error!r}", "Copy the release again.") from error
    if not closed:
        raise ArtifactError("a closed ledger", "its last line is missing", "A release without one proves nothing.")
    return privacy


def _ledgers(value: dict[str, Any]) -> LedgerParts:
    """One ledger, or parts of ledgers; a file with both could show one and price the other."""
    if ("ledger" in value) == ("parts" in value):
        raise ValueError("either a ledger or parts")
    listed = value["parts"] if "parts" in value else [[value["ledger"]]]
    parts = tuple(tuple(tuple(str(line) for line in lines) for lines in part) for part in listed)
    ledgers = sum(len(part) for part in parts)
    if not (all(parts) and 1 <= ledgers <= MAX_LEDGERS) or ("parts" in value and ledgers == 1):
        raise ValueError(f"{len(parts)} parts with {ledgers} ledgers")
    return parts


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"JSON in {name}", f"{error}", "Copy the release again.") from error
    return value


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
