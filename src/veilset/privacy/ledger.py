"""An append-only account of what was released. A charge is on disk before its noise is drawn, so a crash over-counts.

Nothing in a ledger depends on the private data: no time stamps, no counts, no paths. It may be published as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from veilset.errors import BudgetExceeded, LedgerError, PlanMismatch
from veilset.files import sync_folder
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import Composed, Event, Repeated, from_json, from_steps, steps, to_json, whole_rounds
from veilset.privacy.noise import FORKS

BLOCK, RESERVE_BLOCK, BLOCKS = 500, 50, 500
"""Most steps charged ahead at once, by plan and by reserve; blocks of a plan, so that a crash costs little of it."""
GENESIS = "0" * 64


class ChainedFile:
    """JSON lines, each holding the hash of the line before it; appended, fsynced and locked by one process."""

    def __init__(self, path: Path, *, create: bool, wait_seconds: float = 0.0) -> None:
        self.path, self._file = path, -1
        self.head = GENESIS
        """Hash of the last line."""
        self.torn = False
        """Whether a half-written last line was dropped: it was not yet on disk, so nothing had followed from it."""
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if create else 0)
        try:
            self._file = os.open(path, flags, 0o600)
            self._lock(wait_seconds)
            self.entries = [] if create else self._load()
            sync_folder(path.parent)
        except BlockingIOError as error:
            self.unlock()
            raise LedgerError("a ledger no other process is using", f"{path.name} is locked", "Wait for it.") from error
        except OSError as error:
            self.unlock()
            raise LedgerError("a ledger file that can be written", f"{error}", "Nothing was released.") from error
        except LedgerError:
            self.unlock()
            raise

    def _lock(self, wait_seconds: float) -> None:
        until = time.monotonic() + wait_seconds
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.05)

    def _load(self) -> list[dict[str, Any]]:
        text = self.path.read_bytes()
        whole, newline, rest = text.rpartition(b"\n")
        if rest:
            os.ftruncate(self._file, len(whole + newline))
            self.torn = True
        lines = whole.decode(errors="replace").split("\n") if whole else []
        entries = read_chain(lines)
        self.head = json.loads(lines[-1])["hash"] if lines else GENESIS
        return entries

    def append(self, entry: dict[str, Any]) -> None:
        """Returns only after the line is on disk. After a failure the file is let go: its end is then unknown."""
        head = _hash(self.head, entry)
        line = json.dumps({"previous": self.head, "entry": entry, "hash": head}, sort_keys=True)
        data = line.encode() + b"\n"
        try:
            if os.write(self._file, data) != len(data):
                raise OSError("the disk took only part of the line")
            os.fsync(self._file)
        except OSError as error:
            self.unlock()
            raise LedgerError(
                "room to write the ledger", f"{error}", "Free some space and resume; nothing was released."
            ) from error
        self.head = head
        self.entries.append(entry)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def unlock(self) -> None:
        handle, self._file = self._file, -1  # a closed number may be given to another file: never use it again
        with contextlib.suppress(OSError):
            os.close(handle)


def read_chain(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The entries of a chain, after checking that no line was changed, removed or inserted."""
    entries: list[dict[str, Any]] = []
    head = GENESIS
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
            previous, entry, own = value["previous"], value["entry"], value["hash"]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError("a ledger line", f"line {number} is not one: {error}", "Restore the file.") from error
        head, expected = _hash(head, entry), head
        if previous != expected or own != head:
            raise LedgerError("an unbroken chain", f"line {number} does not follow the one before", "Restore the file.")
        entries.append(entry)
    return entries


def _hash(previous: str, entry: Any) -> str:
    return hashlib.sha256(f"{previous} {json.dumps(entry, sort_keys=True)}".encode()).hexdigest()


class LedgerRecord:
    """What a ledger says, read from its lines alone: anyone can do this with a published ledger."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        try:
            terms = entries[0]["open"]
            self.planned = from_json(terms["planned"])
            self.reserve = from_json(terms["reserve"])
            self.adjacency = Adjacency(terms["adjacency"])
            self.unit = Unit(terms["unit"])
            self.delta = float(terms["delta"])
            self.not_private: str | None = terms["not_private"]
            self._segments: list[Counter[Event]] = [Counter()]
            for entry in entries:
                if "resume" in entry:
                    self._segments.append(Counter())
                elif "charge" in entry:
                    self._segments[-1].update(steps(from_json(entry["charge"])))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise LedgerError("a complete ledger", f"{error!r}", "Restore the file.") from error
        self.closed = "close" in entries[-1]
        allowed = whole_rounds(steps(self.planned) + steps(self.reserve))
        if any(count > allowed[event] for event, count in self.charged.items()):
            raise LedgerError("charges within plan and reserve", "more", "Do not trust this ledger.")

    @property
    def private(self) -> bool:
        return self.not_private is None

    @property
    def resumed(self) -> int:
        return len(self._segments) - 1

    @property
    def charged(self) -> Counter[Event]:
        """A round that a crash cut short counts as a whole one, since the next stretch may touch its shards again."""
        return sum(map(whole_rounds, self._segments[:-1]), Counter()) + self._segments[-1]

    @property
    def spent(self) -> Event:
        """All charges, in one part for each stretch between crashes: a shard schedule may begin anew after each."""
        return Composed(tuple(from_steps(segment) for segment in self._segments if segment))


class PrivacyLedger(LedgerRecord):
    """A ledger being written.

    Guarantee: `charge` returns only when the charge is on disk; it refuses what plan and reserve do not cover; the
      charges of a run never decrease. So at any moment, also after `kill -9`, releases made <= releases charged.
    """

    def __init__(self, file: ChainedFile) -> None:
        super().__init__(file.entries)
        self._file, self.lines, self.unlock = file, file.lines, file.unlock
        self._prepaid: Counter[Event] = Counter()
        self._released: Counter[Event] = Counter()
        self._process = os.getpid(), len(FORKS)
        self._lock = threading.Lock()

    @classmethod
    def open_new(
        cls, path: Path, *, planned: Event, reserve: Event, adjacency: Adjacency, unit: Unit, delta: float,
        not_private: str | None = None,
    ) -> PrivacyLedger:  # fmt: skip
        file = ChainedFile(path, create=True)
        terms = {"planned": to_json(planned), "reserve": to_json(reserve), "delta": delta}
        file.append({"open": {**terms, "adjacency": adjacency, "unit": unit, "not_private": not_private}})
        return cls(file)

    @classmethod
    def resume(cls, path: Path) -> PrivacyLedger:
        """Continues after a crash. Steps charged ahead and not known to have been released stay charged."""
        ledger = cls(ChainedFile(path, create=False))
        if not ledger.closed:
            ledger._file.append({"resume": ledger.resumed + 1})
            ledger._segments.append(Counter())
        return ledger

    @property
    def head(self) -> str:
        """Hash of the last line. A copy of the run folder that is resumed too arrives at the same one."""
        return self._file.head

    def charge(self, event: Event) -> None:
        """Pays for one release of `event`, ahead in blocks. Call it before drawing the noise."""
        if self.closed:
            raise PlanMismatch("no release after the ledger was closed", "one more", "Plan a new run.")
        if (os.getpid(), len(FORKS)) != self._process:  # a fork would spend the same prepaid steps a second time
            raise LedgerError("the process that opened the ledger", "a fork of it", "Release in one process only.")
        with self._lock:
            if self._prepaid[event] <= 0:
                self._charge_block(event)
            self._prepaid[event] -= 1
            self._released[event] += 1

    def _charge_block(self, event: Event) -> None:
        planned_left = steps(self.planned)[event] - self.charged[event]
        reserve_left = planned_left + steps(self.reserve)[event]
        block = max(1, min(BLOCK, steps(self.planned)[event] // BLOCKS))
        count = min(block, planned_left) if planned_left > 0 else min(RESERVE_BLOCK, reserve_left)
        if count <= 0 or (planned_left <= 0 and not self.resumed):
            raise BudgetExceeded(
                f"at most {steps(self.planned)[event]} releases of {event}, {steps(self.reserve)[event]} in reserve",
                "one more was asked for",
                "Nothing was released. Plan a new run; what was charged stays charged.",
            )
        self._file.append({"charge": to_json(event if count == 1 else Repeated(count, event))})
        self._prepaid[event] += count
        self._segments[-1][event] += count

    def close(self) -> None:
        """Ends the account. An undisturbed run must have released exactly its plan."""
        if self.closed:
            return
        if not self.resumed and +self._released != steps(self.planned):
            raise PlanMismatch(f"{steps(self.planned)}", f"{+self._released}", "Report this as a bug in the method.")
        self._file.append({"close": {}})
        self.closed = True
