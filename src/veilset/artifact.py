"""What may leave the building: reading and writing of release folders. No pickle anywhere.

A release holds the files of `RELEASED` and nothing else. Writing goes through a gate: only tensors the method's public
architecture declares, none that belongs to a sealed (vault side) network. Reading checks hashes, then names, types,
shapes and sizes, and allocates nothing before they match.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import nn

from veilset.errors import ArtifactError, VaultLeak
from veilset.files import read_json, write_atomically
from veilset.privacy.claim import Claim
from veilset.privacy.ledger import LedgerRecord, read_chain
from veilset.privacy.sides import is_sealed, sealed_twin

FORMAT = 1
RELEASED = (
    "config.json", "model.safetensors", "privacy.json", "README.md", "samples.png", "report.html", "scores.json",
)  # fmt: skip
"""Every file a release may hold, beside the manifest that hashes them. The scores are noisy ones."""
MANIFEST = "manifest.json"
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "I64": torch.int64}
_MAX_HEADER = 1 << 20
_MAX_JSON = 1 << 26


@dataclass(frozen=True)
class Privacy:
    """The content of privacy.json: the claim, and the ledger lines it was priced from."""

    claim: Claim
    ledger_lines: tuple[str, ...]

    @property
    def record(self) -> LedgerRecord:
        return LedgerRecord(read_chain(self.ledger_lines))


def model_bytes(model: nn.Module) -> bytes:
    """The gate: the tensors of an open-side model as safetensors bytes.

    Raises: VaultLeak if the model, or any tensor in it, belongs to a network that was sealed as private.
    """
    if is_sealed(model):
        raise VaultLeak("a model trained on released values only", "a sealed network", "Release the generator instead.")
    for name, tensor in model.state_dict().items():
        if sealed_twin(tensor):
            raise VaultLeak(
                "tensors of the open side", f"'{name}' is a tensor of a sealed network", "Do not release it."
            )
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    return safetensors_save(tensors)


def check_tensors(model: nn.Module, data: bytes) -> None:
    """Compares every name, type and shape of safetensors bytes with those of `model`, which may be on "meta"."""
    expected = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in model.state_dict().items()}
    found = _declared_tensors(data)
    if found != expected:
        wrong = sorted(set(expected.items()) ^ set(found.items()), key=lambda item: item[0])[:3]
        raise ArtifactError(
            "the tensors of the declared method", f"differences at {wrong}", "The file is not this model's."
        )


def load_into(model: nn.Module, data: bytes) -> None:
    """Fills `model` from safetensors bytes after checking them against it."""
    check_tensors(model, data)
    try:
        tensors = safetensors_load(data)
    except SafetensorError as error:
        raise ArtifactError("a safetensors file", f"{error}", "Copy the release again.") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ArtifactError("finite weights", f"'{name}' holds NaN or infinity", "Train again.")
    model.load_state_dict(tensors)


def _declared_tensors(data: bytes) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
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
    manifest = read_json(folder / MANIFEST, "a finished release", limit=_MAX_JSON)
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("sha256"), dict):
        raise ArtifactError(f"release format {FORMAT}", f"{manifest.get('format')!r}", "Update Veilset.")
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
    for name in ("config.json", "model.safetensors", "privacy.json"):
        if name not in files:
            raise ArtifactError(f"a release with {name}", "it is missing", "Copy the release again.")
    return files


def privacy_bytes(privacy: Privacy) -> bytes:
    value = {"claim": privacy.claim.to_json(), "ledger": list(privacy.ledger_lines)}
    return json.dumps(value, indent=1).encode()


def read_privacy(data: bytes) -> Privacy:
    """The claim and ledger of a release; the ledger chain is checked here, the price by `verify`."""
    value = parse_json(data, "privacy.json")
    try:
        privacy = Privacy(Claim.from_json(value["claim"]), tuple(str(line) for line in value["ledger"]))
        closed = privacy.record.closed
        str(privacy.claim)  # numbers that are none fail here and not where they are shown
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtifactError("claim and ledger in privacy.json", f"{error!r}", "Copy the release again.") from error
    if not closed:
        raise ArtifactError("a closed ledger", "its last line is missing", "A release without one proves nothing.")
    return privacy


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
