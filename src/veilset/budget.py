"""One budget per data set, over all runs.

The data set is known by an id kept beside it, not by its path or a hash of its bytes: adding a photo does not start a
new budget. The account itself lies in the owner's vault (`$VEILSET_HOME`, by default `~/.veilset`). A plan reserves, a
finished fit settles for what its ledger says; what is never settled stays charged as reserved.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, Unpack

from veilset.budget_prices import BudgetTerms, charges_in
from veilset.data.budget_markers import covering_marker, marker_of
from veilset.data.manifest import is_manifest
from veilset.errors import BudgetExceeded, ConfigError, LedgerError, MixedAdjacency
from veilset.files import read_json, write_atomically
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import shown
from veilset.privacy.events import Event, steps, to_json
from veilset.privacy.gaussian import check_target
from veilset.privacy.ledger import ChainedFile
from veilset.privacy.noise import NoiseSource

WAIT_SECONDS = 10.0
"""How long one command waits while another writes the same account."""


Note = Literal["look", "unproven"]
"""A run that measured exact scores on these images; one that learned from them, and whose epsilon nobody can prove."""


@dataclass(frozen=True)
class BudgetStatus:
    """Where an account stands. All epsilons compose every run so far, at the account's delta, but the unproven ones."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    unit: Unit
    epsilon_charged: float
    runs_settled: int
    runs_unsettled: int
    runs_unproven: int


class ChargeTerms(TypedDict):
    """What a plan's cost means: the same noise protects users less than images, so a reservation is for these alone."""

    adjacency: Adjacency
    unit: Unit
    delta: NotRequired[float]
    rows_per_user: NotRequired[int | None]


class DatasetBudget:
    """The account of one data set."""

    def __init__(self, account: Path) -> None:
        self._account = account
        try:
            terms = self._entries()[0]["open"]
            self.epsilon, self.delta = float(terms["epsilon"]), float(terms["delta"])
            self.adjacency, self.unit = Adjacency(terms["adjacency"]), Unit(terms["unit"])
            self._terms = BudgetTerms(self.epsilon, self.delta, self.adjacency)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"an account at {account}", f"{error!r}", "Restore it from a backup.") from error

    @classmethod
    def create(cls, data: Path, *, epsilon: float, delta: float, adjacency: Adjacency, unit: Unit) -> DatasetBudget:
        check_target(epsilon, delta)
        marker = marker_of(data)
        if is_manifest(data):  # the same images can be in other lists, and be read as a folder
            raise ConfigError(
                "the folder of the images", f"a list of them, {data}", "Give the folder a budget; its lists share it."
            )
        if data.is_file() and data.suffix.lower() != ".npz":  # it is read with others, and nobody would look for it
            raise ConfigError(
                "a folder of images or an .npz file", f"a part of one, {data}", f"Give {data.parent} the budget."
            )
        if (known := covering_marker(data)) is not None:  # a second one would give its images a fresh account
            raise ConfigError("a data set without a budget", f"{known} exists", "`veilset budget show` prints it.")
        identity = secrets.token_hex(16)
        folder = _home() / identity
        folder.mkdir(parents=True, mode=0o700)
        write_atomically(folder / "shard.key", NoiseSource().key_bytes(), mode=0o600)
        file = ChainedFile(folder / "budget.jsonl", create=True)
        file.append({"open": {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "unit": unit}})
        file.unlock()
        marker.parent.mkdir(exist_ok=True)
        write_atomically(marker, json.dumps({"dataset": identity}).encode())
        return cls(folder / "budget.jsonl")

    @classmethod
    def find(cls, data: Path) -> DatasetBudget | None:
        """The account that covers the images at `data`, or None if they have no budget.

        A budget covers everything below its folder, also where a manifest lists it. A folder that merely contains
        budgeted data is refused, and so is a manifest of images that do not all have the same budget.
        """
        marker = covering_marker(data)
        if marker is None:
            return None
        identity = str(read_json(marker, "a data set id").get("dataset"))
        account = _home() / identity / "budget.jsonl"
        if not (identity.isalnum() and account.is_file()):
            raise ConfigError(
                f"the account of this data set in {_home()}",
                "it is not there",
                "Set VEILSET_HOME to the vault where the budget was made, or copy that vault here.",
            )
        return cls(account)

    @property
    def identity(self) -> str:
        return self._account.parent.name

    @property
    def shard_key(self) -> bytes:
        return (self._account.parent / "shard.key").read_bytes()

    def reserve(self, planned: Event, **terms: Unpack[ChargeTerms]) -> str:
        """Charges a plan in full before anything is spent; returns the name to settle it by.

        Raises: BudgetExceeded if all runs together would cost more than the budget; nothing is charged then.
        """
        if (terms["adjacency"], terms["unit"]) != (self.adjacency, self.unit):
            raise MixedAdjacency(
                f"a plan for {self.adjacency} of one {self.unit}, like the budget",
                f"{terms['adjacency']} of one {terms['unit']}",
                "Use the budget's adjacency and unit; their epsilons cannot be added to others.",
            )
        with self._opened() as file:
            before = self._terms.price(charges_in(file.entries).values())
            after = self._terms.price([*charges_in(file.entries).values(), planned])
            if after <= self.epsilon:
                name = secrets.token_hex(8)
                file.append({"reserve": name, "of": to_json(planned), "terms": dict(terms)})
                return name
        # What fits takes a dozen prices to find, on samples seconds: others may write the account meanwhile.
        left = self._terms.left(charges_in(file.entries).values())
        raise BudgetExceeded(
            f"at most epsilon {self.epsilon:.4g} at delta {self.delta:g} over all runs on this data",
            f"{shown(before)} already charged, {shown(after)} with this plan",
            f"Nothing was charged. Plan about epsilon {left:.3g} at most.",
        )

    def begin(self, name: str, planned: Event, **terms: Unpack[ChargeTerms]) -> None:
        """Marks a reservation as used by a run. A plan file can be copied or edited: each is good for one run."""
        with self._opened() as file:
            self._check_waiting(file.entries, name, planned, terms)
            file.append({"begin": name})

    def check_waiting(self, name: str, planned: Event, **terms: Unpack[ChargeTerms]) -> None:
        """Raises: BudgetExceeded for what `begin` would refuse; nothing is marked."""
        self._check_waiting(self._entries(), name, planned, terms)

    @staticmethod
    def _check_waiting(entries: list[dict[str, Any]], name: str, planned: Event, terms: ChargeTerms) -> None:
        asked = {"reserve": name, "of": to_json(planned), "terms": terms}
        used = any(name in (entry.get("begin"), entry.get("settle")) for entry in entries)
        if used or asked not in entries:
            raise BudgetExceeded(
                "a plan whose cost is reserved in this data set's budget, for one run",
                "it was run before" if used else "no such reservation of this cost, on these terms",
                "Nothing was released. Make a new plan, or continue the run with --resume.",
            )

    def go_on(self, name: str, head: str) -> None:
        """Notes that a run is resumed where its ledger stands at `head`.

        A copy of the run folder arrives at the same head: resuming both would be two releases for one charge.
        """
        with self._opened() as file:
            finished = any(name in (entry.get("finish"), entry.get("settle")) for entry in file.entries)
            if finished or head in _resumed(file.entries, name):
                raise BudgetExceeded(
                    "a run that is resumed for the first time from where it stands",
                    "a copy of it is finished" if finished else "a copy of it was resumed before",
                    "Nothing was released. Continue the other copy, or plan a new run.",
                )
            file.append({"resume": name, "head": head})

    def finish(self, name: str, head: str | None) -> None:
        """Notes that a run will write its release; from then on no copy of it can be resumed.

        Args:
            head: where it was resumed last, as in `go_on`; None for a run that never was. A copy of a run in progress
                can be resumed beside it, and then goes on alone.

        Raises: BudgetExceeded where another copy was resumed later: both would be two releases for one charge.
        """
        with self._opened() as file:
            if [None, *_resumed(file.entries, name)][-1] != head:
                raise BudgetExceeded(
                    "one run for each reservation in this data set's budget",
                    "a copy of this run, which was resumed after it",
                    "Nothing was released here. Continue the copy; delete this run, or keep its vault to yourself.",
                )
            if not any(entry.get("finish") == name for entry in file.entries):
                file.append({"finish": name})

    def settle(self, name: str, spent: Event, head: str | None = None) -> None:
        """Replaces a reservation by what a closed ledger says was spent, once for each ledger.

        Args:
            head: hash of the ledger's last line; None where there is none. What ledgers of other heads say adds up:
                noise was drawn for each of them.
        """
        with self._opened() as file:
            if not any(entry.get("settle") == name and entry.get("head") == head for entry in file.entries):
                file.append({"settle": name, "of": to_json(spent), "head": head})

    def note(self, what: Note, run: str) -> None:
        """Notes what no epsilon counts but others must know of; a look once for each run, a run whenever it begins."""
        with self._opened() as file:
            if what == "unproven" or not any(entry.get(what) == run for entry in file.entries):
                file.append({what: run})

    def noted(self, what: Note) -> tuple[str, ...]:
        """The runs of which that was noted."""
        return tuple(str(entry[what]) for entry in self._entries() if what in entry)

    def status(self) -> BudgetStatus:
        entries = self._entries()
        charged = charges_in(entries)
        runs = {name for name, event in charged.items() if steps(event)}  # others were given back
        settled = runs & {entry["settle"] for entry in entries if "settle" in entry}
        return BudgetStatus(
            self.epsilon, self.delta, self.adjacency, self.unit, self._terms.price(charged.values()), len(settled),
            runs_unsettled=len(runs - settled), runs_unproven=sum("unproven" in entry for entry in entries),
        )  # fmt: skip

    def epsilon_left(self) -> float:
        """The most that one further run may have, if its releases are plain Gaussians; on samples, about that.

        Epsilons do not add up: two runs of 1 leave more of 3 than 1. So it takes a dozen prices, on samples seconds.
        """
        return self._terms.left(charges_in(self._entries()).values())

    @contextlib.contextmanager
    def _opened(self) -> Iterator[ChainedFile]:
        """The account, locked while it is read and written."""
        file = ChainedFile(self._account, create=False, wait_seconds=WAIT_SECONDS)
        try:
            yield file
        finally:
            file.unlock()

    def _entries(self) -> list[dict[str, Any]]:
        with self._opened() as file:
            return file.entries


def _resumed(entries: list[dict[str, Any]], name: str) -> list[str]:
    """Where the copies of a run stood when they were resumed, in order."""
    return [str(entry["head"]) for entry in entries if entry.get("resume") == name]


def _home() -> Path:
    return Path(os.environ.get("VEILSET_HOME") or Path.home() / ".veilset")
