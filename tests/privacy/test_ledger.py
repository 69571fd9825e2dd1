import errno
import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from account_checks import (
    check_chain,
    check_every_release_is_counted,
    check_fork_cannot_spend_twice,
    check_plan_is_the_limit,
    check_resume_keeps_charges,
    check_synced_before_return,
)
from checks import ADD, DELTA, REPLACE, open_ledger

from veilset.errors import BudgetExceeded, LedgerError, PlanMismatch
from veilset.privacy import ledger as ledger_module
from veilset.privacy.accounting import price, renyi_epsilon
from veilset.privacy.bounds import Unit, clip_rows, sum_rows
from veilset.privacy.events import Composed, Gaussian, PoissonSampled, Repeated, ShardTouched
from veilset.privacy.ledger import ChainedFile, LedgerRecord, PrivacyLedger, read_chain
from veilset.privacy.noise import NoiseSource
from veilset.privacy.release import Door

EVENT = Gaussian(1.0)


def read(path: Path) -> LedgerRecord:
    return LedgerRecord(read_chain(path.read_text().splitlines()))


# --- chain -----------------------------------------------------------------------------------------------------------


def test_changed_removed_and_inserted_lines_are_noticed(tmp_path: Path) -> None:
    check_chain(tmp_path)


def test_no_changed_byte_alters_what_a_ledger_says(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = open_ledger(path, Repeated(2000, EVENT))
    for _ in range(5):
        book.charge(EVENT)
    text = path.read_bytes()
    entries = read_chain(text.decode().splitlines())
    for place in range(len(text) - 1):
        changed = text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :]
        try:
            found = read_chain(changed.decode(errors="replace").split("\n")[:-1])
        except LedgerError:
            continue
        assert found == entries, f"byte {place}"


def test_a_ledger_cut_at_a_line_is_not_a_closed_one(tmp_path: Path) -> None:
    # The chain cannot tell a cut from a crash; whoever reads a finished ledger therefore asks whether it is closed.
    path = tmp_path / "ledger.jsonl"
    book = open_ledger(path, EVENT)
    book.charge(EVENT)
    book.close()
    lines = path.read_text().splitlines()
    assert LedgerRecord(read_chain(lines)).closed
    assert not LedgerRecord(read_chain(lines[:-1])).closed
    with pytest.raises(LedgerError):
        LedgerRecord(read_chain([]))


def test_a_torn_last_line_is_dropped_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = open_ledger(path, Repeated(2, EVENT))
    book.charge(EVENT)
    book.unlock()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"entry": {"charge": {"cou')
    again = PrivacyLedger.resume(path)
    assert again._file.torn
    again.charge(EVENT)
    assert read(path).charged == Counter({EVENT: 2})
    assert path.read_bytes().startswith(whole)


def test_a_forged_chain_cannot_charge_more_than_plan_and_reserve(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = open_ledger(path, EVENT)
    book.charge(EVENT)
    book._file.append({"charge": {"event": "gaussian", "noise_multiplier": 1.0}})
    with pytest.raises(LedgerError):
        read(path)


def test_a_ledger_holds_nothing_but_the_plan_and_the_charges(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = open_ledger(path, EVENT)
    book.charge(EVENT)
    book.close()
    first, second, third = (json.loads(line)["entry"] for line in path.read_text().splitlines())
    assert set(first["open"]) == {"planned", "reserve", "delta", "adjacency", "unit", "not_private"}
    assert set(second) == {"charge"}
    assert third == {"close": {}}
    assert path.stat().st_mode & 0o077 == 0


# --- charging --------------------------------------------------------------------------------------------------------


def test_a_charge_is_synced_before_it_returns(tmp_path: Path) -> None:
    check_synced_before_return(tmp_path)


def test_charges_add_up_to_the_releases(tmp_path: Path) -> None:
    check_every_release_is_counted(tmp_path)


def test_nothing_beyond_the_plan_is_charged(tmp_path: Path) -> None:
    check_plan_is_the_limit(tmp_path)


def test_a_resumed_run_keeps_its_charges_and_lives_on_its_reserve(tmp_path: Path) -> None:
    check_resume_keeps_charges(tmp_path)


def test_a_fork_cannot_spend_what_its_parent_prepaid(tmp_path: Path) -> None:
    check_fork_cannot_spend_twice(tmp_path)


def test_a_fork_with_the_number_of_its_parent_cannot_spend_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    check_fork_cannot_spend_twice(tmp_path)


@pytest.mark.parametrize(("planned", "block"), [(7, 1), (600, 1), (2001, 4), (10**6, 500)])
def test_a_release_is_charged_with_few_others_in_proportion_to_the_plan(
    planned: int, block: int, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    book = open_ledger(path, Composed((Repeated(planned, EVENT), Gaussian(2.0))))
    for released in range(1, min(planned, 3 * block) + 1):
        book.charge(EVENT)
        assert read(path).charged[EVENT] == -(-released // block) * block
    book.charge(Gaussian(2.0))
    assert read(path).charged[Gaussian(2.0)] == 1, "what is released once is charged once"


def test_the_last_block_is_no_more_than_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "BLOCKS", 2)
    path = tmp_path / "ledger.jsonl"
    book, seen = open_ledger(path, Repeated(41, EVENT)), set()
    for _ in range(41):
        book.charge(EVENT)
        seen.add(read(path).charged[EVENT])
    assert sorted(seen) == [20, 40, 41]


def test_plan_equals_spent_when_a_run_ends(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    planned = Composed((Repeated(3, EVENT), Gaussian(2.0)))
    book = open_ledger(path, planned)
    for event in (EVENT, Gaussian(2.0), EVENT, EVENT):
        book.charge(event)
    book.close()
    book.close()
    record = read(path)
    assert record.closed
    assert price(record.spent, DELTA, ADD) == price(planned, DELTA, ADD)


def test_a_run_that_released_less_than_its_plan_cannot_close(tmp_path: Path) -> None:
    book = open_ledger(tmp_path / "ledger.jsonl", Repeated(3, EVENT))
    book.charge(EVENT)
    with pytest.raises(PlanMismatch):
        book.close()


def test_nothing_is_released_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = open_ledger(path, EVENT, reserve=Repeated(9, EVENT))
    book.charge(EVENT)
    book.close()
    with pytest.raises(PlanMismatch):
        book.charge(EVENT)
    book.unlock()
    again = PrivacyLedger.resume(path)
    with pytest.raises(PlanMismatch):
        again.charge(EVENT)
    assert read(path).resumed == 0


def test_a_composition_is_charged_step_by_step_only(tmp_path: Path) -> None:
    book = open_ledger(tmp_path / "ledger.jsonl", Repeated(3, EVENT))
    with pytest.raises(BudgetExceeded):
        book.charge(Repeated(3, EVENT))


def test_terms_are_read_back_as_they_were_opened(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    open_ledger(path, EVENT, adjacency=REPLACE, unit=Unit.USER, delta=1e-7, not_private="a test, with \u2028 in it")
    record = read(path)
    assert (record.adjacency, record.unit, record.delta) == (REPLACE, Unit.USER, 1e-7)
    assert record.not_private == "a test, with \u2028 in it"
    assert not record.private


# --- files that fail -------------------------------------------------------------------------------------------------


def test_a_ledger_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    open_ledger(path, EVENT)
    with pytest.raises(LedgerError):
        open_ledger(path, EVENT)


def test_a_missing_ledger_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(LedgerError):
        PrivacyLedger.resume(tmp_path / "none.jsonl")


def test_a_broken_ledger_is_let_go_so_that_it_can_be_restored(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    open_ledger(path, EVENT).unlock()
    good = path.read_text()
    path.write_text(good.replace("1.0", "2.0"))
    with pytest.raises(LedgerError, match="unbroken chain"):
        PrivacyLedger.resume(path)
    path.write_text(good)
    PrivacyLedger.resume(path).charge(EVENT)


@pytest.mark.parametrize("failure", ["full disk", "short write", "failed fsync"])
def test_when_the_disk_fails_nothing_is_charged_and_nothing_more_is_written(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    book = open_ledger(path, Repeated(3, EVENT), reserve=Repeated(3, EVENT))
    real_write = os.write

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if failure == "full disk":
            patch.setattr(os, "write", full)
        elif failure == "short write":
            patch.setattr(os, "write", lambda handle, data: real_write(handle, data[:-5]))
        else:
            patch.setattr(os, "fsync", full)
        door = Door(book, NoiseSource())
        with pytest.raises(LedgerError):
            door.release_sum(sum_rows(clip_rows(torch.ones(1, 2), 1.0)), 1.0)
    with pytest.raises(LedgerError):
        book.charge(EVENT)
    again = PrivacyLedger.resume(path)
    again.charge(EVENT)
    assert read(path).charged[EVENT] >= 1


def test_a_released_lock_is_not_released_twice(tmp_path: Path) -> None:
    file = ChainedFile(tmp_path / "ledger.jsonl", create=True)
    file.unlock()
    other = os.open(tmp_path, os.O_RDONLY)  # takes the number that has just become free
    file.unlock()
    os.fstat(other)
    with pytest.raises(LedgerError):
        file.append({})
    os.close(other)


def test_a_ledger_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    open_ledger(path, EVENT).unlock()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        held = PrivacyLedger.resume(path)
        os.write(writer, b"held")
        time.sleep(60)
        os._exit(len(held.lines()))
    try:
        assert os.read(reader, 4) == b"held"
        with pytest.raises(LedgerError, match="locked"):
            PrivacyLedger.resume(path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    PrivacyLedger.resume(path)


def test_two_accountants_reprice_a_ledger_from_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    draw = PoissonSampled(0.01, Gaussian(1.0))
    planned = Composed((Repeated(700, draw), Gaussian(5.0)))
    book = open_ledger(path, planned)
    for _ in range(700):
        book.charge(draw)
    book.charge(Gaussian(5.0))
    book.close()
    spent = read(path).spent
    assert price(spent, DELTA, ADD).epsilon == price(planned, DELTA, ADD).epsilon
    assert renyi_epsilon(spent, DELTA, ADD) >= price(spent, DELTA, ADD).epsilon


def test_threads_never_release_more_than_is_charged(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "threads.jsonl", Repeated(300, EVENT))
    refused = []

    def release_many() -> None:
        for _ in range(100):
            try:
                ledger.charge(EVENT)
            except BudgetExceeded:
                refused.append(1)

    threads = [threading.Thread(target=release_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 500
    assert ledger.charged == Counter({EVENT: 300})


def test_what_is_spent_keeps_the_stretches_between_crashes_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "BLOCKS", 1)
    path = tmp_path / "stretches.jsonl"
    step = ShardTouched(10, "round-robin", Gaussian(1.0))
    ledger = open_ledger(path, Repeated(500, step), reserve=Repeated(60, step))
    ledger.charge(step)
    ledger.unlock()
    again = PrivacyLedger.resume(path)
    again.charge(step)
    assert again.spent == Composed((Composed((Repeated(500, step),)), Composed((Repeated(50, step),))))
