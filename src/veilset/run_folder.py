"""The run folder: `release/` may be shared, `vault/` (mode 0700) may not."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file as safetensors_load_file
from safetensors.torch import save as safetensors_save
from torch import Tensor

from veilset.artifact import MANIFEST
from veilset.budget import DatasetBudget
from veilset.data.fingerprints import HASH_BYTES, KEY_BYTES, all_fingerprints, count_known, user_fingerprints
from veilset.data.options import FITS
from veilset.data.spec import Images, ImageSet, Source
from veilset.errors import RunError
from veilset.files import append_line, read_json, require_empty, write_atomically
from veilset.methods.base import Progress
from veilset.methods.plan import Plan
from veilset.privacy.noise import NoiseSource

IMAGES = "images.json"
"""Which images the run is about, and how they were read."""
READING = ("size", "fit", "color", "split", "class_names")
"""Options of the command line by which images are read."""
RECORDS = "training-records.hash"
"""A key of this run's own, then one keyed hash of all records in their order."""
FINGERPRINTS = "training-images.hashes"
"""The key, then keyed hashes of the images it was fitted on."""
USER_FINGERPRINTS = "training-users.hashes"
"""The same for their user ids, where they have any."""
SHARD_KEY = "shard.key"
HISTORY = "history.jsonl"
LOG = "log.jsonl"
EXACT_SCORES = "scores.json"
"""Scores without noise, unlike those of the same name in a release."""
RELEASED = "released.sha256"
"""Of the file that work on released values started from."""
RELEASED_VALUES = "released values alone, by `veilset synthesize --resume`"
"""In place of images, where a run works without any."""
KIND = "kind.json"
"""What the run makes, where that is not a model."""


class RunFolder:
    """Paths of one run, its log and its checkpoints. Everything but `release/` stays with the owner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.release = path / "release"
        self.vault = path / "vault"
        self.ledger_path = self.vault / "ledger.jsonl"
        self.plan_path = self.vault / "plan.json"

    @classmethod
    def create(cls, path: Path, plan: Plan, images: Images, budget: DatasetBudget | None) -> RunFolder:
        folder = cls(path)
        folder._make()
        # Which images the run is about is noted first, so that a resume cannot go on with others at their expense.
        note = json.dumps({**_identity(images.source, budget), **how_read(images)}).encode()
        write_atomically(folder.vault / IMAGES, note, mode=0o600)
        write_atomically(folder.plan_path, plan.dumps(), mode=0o600)
        return folder

    @classmethod
    def create_open(cls, path: Path, plan: Plan, source: RunFolder, released: bytes) -> RunFolder:
        """A folder for work on `released` values alone. Where the owner does it, it knows the training images too."""
        folder = cls(path)
        if folder.plan_path.is_file() and not folder.finished:
            raise RunError("a new or empty output folder", f"{path}, with a run that is not finished",
                           "Go on with it by --resume, or choose another path.")  # fmt: skip
        folder._make()
        for name in (FINGERPRINTS, USER_FINGERPRINTS):
            if (source.vault / name).is_file():
                write_atomically(folder.vault / name, (source.vault / name).read_bytes(), mode=0o600)
        if source.fit is not None:
            note = json.dumps({"images": RELEASED_VALUES, "fit": source.fit}).encode()
            write_atomically(folder.vault / IMAGES, note, mode=0o600)
        write_atomically(folder.vault / RELEASED, hashlib.sha256(released).hexdigest().encode())
        write_atomically(folder.plan_path, plan.dumps(), mode=0o600)
        return folder

    @classmethod
    def reopen(cls, path: Path, plan: Plan, released: bytes, *, finished_too: bool) -> RunFolder:
        """The folder of work on released values that was interrupted, or has more to be done in it."""
        folder = cls.open(path)
        if folder.finished and not finished_too:
            raise RunError("an interrupted run", f"{path}, which is finished", "Choose another folder for a new one.")
        note = folder.vault / RELEASED
        if (note.read_text() if note.is_file() else None) != hashlib.sha256(released).hexdigest():
            raise RunError("the sketch this run was started with", "another", "Give the same one.")
        begun, wanted = Plan.load(folder.plan_path).to_json(), plan.to_json()
        if others := [name for name in wanted if begun[name] != wanted[name]]:
            raise RunError(
                "the options, seed and version of Veilset this run was started with",
                f"other values for {', '.join(others)}; it was started by Veilset {begun['veilset'] or 'unnamed'}",
                "Give the same ones, or start a new run: nothing was charged.",
            )
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        folder = cls(path)
        if not folder.plan_path.is_file():
            found = "no vault/plan.json in it" if path.exists() else "no such folder"
            todo = "Check the path. `veilset fit` writes such folders; a run is begun without --resume."
            raise RunError(f"a run folder at {path}", found, todo)
        return folder

    def _make(self) -> None:
        require_empty(self.path)
        (self.vault / "checkpoints").mkdir(parents=True, mode=0o700)
        self.vault.chmod(0o700)  # parents are made with the mode of the system

    @property
    def kind(self) -> str:
        """What the run makes: a model or, where that was noted at its start, something else."""
        note = self.vault / KIND
        return str(read_json(note, "the note of what this run makes").get("kind")) if note.is_file() else "model"

    def note_kind(self, kind: str) -> None:
        """Says what the run makes, so that a resume needs nothing but its folder."""
        write_atomically(self.vault / KIND, json.dumps({"kind": kind}).encode(), mode=0o600)

    @property
    def finished(self) -> bool:
        return (self.release / MANIFEST).is_file()

    def log(self, **entry: Any) -> None:
        """One line of the owner's log. It holds times and counts, so it stays in the vault."""
        log_in(self.vault, entry)

    def logging(self, progress: Progress) -> Progress:
        """`progress` that also leaves a line in the log now and then."""
        last: dict[str, Any] = {"time": 0.0, "message": ""}

        def both(message: str, done: int, total: int) -> None:
            progress(message, done, total)
            if message != last["message"] or time.monotonic() - last["time"] > 5 or done == total:
                last.update(time=time.monotonic(), message=message)
                self.log(event="progress", doing=message, done=done, total=total)

        return both

    def record(self, name: str, step: int, value: float) -> None:
        """One value of the owner's history, such as a loss: it may depend on private images, so it stays here.

        A resumed run repeats the steps since its last checkpoint; the later value of a step counts.
        """
        append_line(self.vault / HISTORY, {"name": name, "step": step, "value": value})

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        write_atomically(self._checkpoint(name), safetensors_save(plain), mode=0o600)

    def load(self, name: str) -> dict[str, Tensor] | None:
        path = self._checkpoint(name)
        try:
            return safetensors_load_file(path) if path.is_file() else None
        except (SafetensorError, OSError) as error:
            raise RunError(f"a checkpoint at {path}", f"{error}", "Restore it, or start a new run.") from error

    def forget(self, name: str) -> None:
        self._checkpoint(name).unlink(missing_ok=True)

    def _checkpoint(self, name: str) -> Path:
        return self.vault / "checkpoints" / f"{name}.safetensors"

    def check_same_images(self, source: Source, budget: DatasetBudget | None) -> None:
        known, found = self._note().get("images"), _identity(source, budget)["images"]
        if known != found:
            raise RunError(
                f"the images this run was started on: {known}", f"{found}",
                "Resume it with the same ones; what was declared public needs --benchmark again.",
            )  # fmt: skip

    @property
    def fit(self) -> str | None:
        """How the training images were brought to one size; None where nothing was asked for or noted."""
        fit = self._note().get("fit") if (self.vault / IMAGES).is_file() else None
        return str(fit) if fit in FITS else None

    @property
    def reading(self) -> dict[str, Any]:
        """The options that its images were read with."""
        note = self._note()
        return {name: note[name] for name in READING if name in note}

    @property
    def data_set(self) -> str | None:
        """How the training images are known: by their budget, else by their place; None where nothing was noted."""
        return self._note().get("images") if (self.vault / IMAGES).is_file() else None

    def _note(self) -> dict[str, Any]:
        return read_json(self.vault / IMAGES, "the note of this run's images")

    def note_training_images(self, images: Images, progress: Progress) -> None:
        """Keeps keyed hashes of the images; a pass of its own, and once, also if the run is resumed."""
        told, kept = images.warnings, self._hashes(RECORDS)
        names = [RECORDS, FINGERPRINTS, *([] if images.user_names() is None else [USER_FINGERPRINTS])]
        if all((self.vault / name).is_file() for name in names):
            return
        key = NoiseSource().key_bytes(KEY_BYTES) if kept is None else kept[0]
        for name, hashes in zip(names, _hashed(images, key, progress), strict=True):
            write_atomically(self.vault / name, b"".join([key, hashes.data]), mode=0o600)
        if new := [warning for warning in images.warnings if warning not in told]:
            self.log(event="read", warnings=new)  # images on disk turn out to be damaged when they are first read

    def check_unchanged(self, images: Images, progress: Progress) -> None:
        """Compares the records with the hash of those the run began with, which must be all that it ever uses.

        Raises: RunError where one was added, removed or moved since, or has another picture, label, id or user.
        """
        kept = self._hashes(RECORDS)
        if kept is None and ((self.vault / FINGERPRINTS).is_file() or self._charged):  # both come after it
            todo = "Restore it from a backup, or begin a new run; an earlier version of Veilset kept none."
            raise RunError(f"a hash of this run's records in vault/{RECORDS}", "none", todo)
        if kept is None:
            return  # stopped before it had looked at any
        whole, now, *_ = _hashed(images, kept[0], progress)
        if np.array_equal(whole, kept[1]):
            return
        begun = self._hashes(FINGERPRINTS) or (b"", now)
        added, removed = (len(np.setdiff1d(*pair, assume_unique=True)) for pair in ((now, begun[1]), (begun[1], now)))
        raise RunError(
            "the records this run was begun with: images, labels, ids and users in their order",
            f"others; of the images {added:,} added, {removed:,} removed since",
            "Put the collection back as it was, or begin a new run; what was charged stays charged.",
        )

    @property
    def _charged(self) -> bool:
        """Whether anything may have been released; the chain itself is checked when the ledger is resumed."""
        return self.ledger_path.is_file() and b'{"charge": ' in self.ledger_path.read_bytes()

    def count_training_images(self, images: Images) -> int | None:
        """How many of `images` this run was fitted on, pixel by pixel; None for a run that kept no hashes of them."""
        kept = self._hashes(FINGERPRINTS)
        return None if kept is None else count_known(images, kept[1], kept[0])

    def count_training_users(self, images: ImageSet) -> int | None:
        """How many of the people in `images` this run was fitted on, by user id; None where one side has no ids."""
        kept = self._hashes(USER_FINGERPRINTS)
        if kept is None or images.users is None:
            return None
        return int(np.isin(user_fingerprints(images.users, kept[0]), kept[1]).sum())

    def _hashes(self, name: str) -> tuple[bytes, np.ndarray] | None:
        """A key and what it hashed; None for a run that kept nothing of the kind."""
        path = self.vault / name
        if not path.is_file():
            return None
        data = path.read_bytes()
        if len(data) < KEY_BYTES or (len(data) - KEY_BYTES) % HASH_BYTES:
            raise RunError(f"hashes of the training images in {path}", "a damaged file", "Restore it from a backup.")
        return data[:KEY_BYTES], np.frombuffer(data, dtype="<u8", offset=KEY_BYTES)

    def shard_key(self, budget: DatasetBudget | None, noise: NoiseSource) -> bytes:
        """The data set's key where it has a budget, else one of this run's own; the same after a resume."""
        if budget is not None:
            return budget.shard_key
        path = self.vault / SHARD_KEY
        if not path.is_file():
            write_atomically(path, noise.key_bytes(), mode=0o600)
        return path.read_bytes()

    def check_shard_key(self, budget: DatasetBudget | None) -> None:
        """Raises: RunError where it was lost after a release: with another, a record would move a second critic."""
        if budget is None and self._charged and not (self.vault / SHARD_KEY).is_file():
            todo = "Restore it from a backup, or begin a new run; what was charged stays charged."
            raise RunError(f"the key of this run's shards in vault/{SHARD_KEY}", "none", todo)


def log_in(vault: Path, entry: Mapping[str, Any]) -> None:
    append_line(vault / LOG, {"time": round(time.time(), 3), **entry})


def how_read(images: Images) -> dict[str, Any]:
    """The options that would read the same images again from their source."""
    spec, source = images.spec, images.source
    values = (f"{spec.height}x{spec.width}", source.fit, spec.color, source.split, list(spec.class_names))
    return dict(zip(READING, values, strict=True))


def _hashed(images: Images, key: bytes, progress: Progress) -> list[np.ndarray]:
    return all_fingerprints(images, key, lambda done, total: progress("hashing the images", done, total))


def _identity(source: Source, budget: DatasetBudget | None) -> dict[str, str | None]:
    """A data set is known by its budget's id; without one only its place can be compared."""
    if budget is not None:
        return {"images": f"the data set with budget {budget.identity}"}
    return {"images": source.benchmark or (source.path and str(Path(source.path).resolve()))}
