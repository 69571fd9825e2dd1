"""Writes are whole or absent; reads fail with our own errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from veilset.errors import RunError
from veilset.files import (
    append_line,
    check_makeable,
    read_json,
    refuse_occupied,
    require_empty,
    require_new_file,
    write_atomically,
)


def test_a_write_replaces_the_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_written_file_has_the_mode_asked_for(tmp_path: Path, mode: int) -> None:
    write_atomically(tmp_path / "a", b"x", mode=mode)
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode & ~_umask()


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


@pytest.mark.parametrize("failing", ["fsync", "fdopen"])
def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full_disk)
    with pytest.raises(RunError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_into_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        write_atomically(tmp_path / "no" / "a", b"x")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"3", b"null", b"\xff\xfe", b'{"a": ', b"[" * 100_000, b'{"a":' * 100_000],
    ids=["empty", "cut", "list", "number", "null", "not text", "half", "deep list", "deep object"],
)
def test_what_is_no_json_object_is_our_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(RunError, match=r"a thing at .*a\.json"):
        read_json(tmp_path / "a.json", "a thing")


def test_a_file_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="found no such file"):
        read_json(tmp_path / "a.json", "a thing")


def test_a_missing_file_a_folder_and_a_huge_file_are_our_errors(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        read_json(tmp_path / "a.json", "a thing")
    with pytest.raises(RunError):
        read_json(tmp_path, "a thing")
    (tmp_path / "big.json").write_text('{"a": "' + "x" * 100 + '"}')
    assert read_json(tmp_path / "big.json", "a thing")
    with pytest.raises(RunError, match="bytes"):
        read_json(tmp_path / "big.json", "a thing", limit=50)


def test_require_empty_makes_a_folder_and_accepts_an_empty_one(tmp_path: Path) -> None:
    require_empty(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()
    require_empty(tmp_path / "new" / "deep")


def test_require_empty_refuses_what_lies_there_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".hidden").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("full", "file"):
        with pytest.raises(RunError, match="new or empty"):
            require_empty(tmp_path / name)
    with pytest.raises(RunError):
        require_empty(tmp_path / "file" / "below")
    assert (tmp_path / "full" / ".hidden").read_text() == "x"


def test_a_folder_that_cannot_be_made_is_refused_beforehand_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    check_makeable(tmp_path / "new" / "deep")
    with pytest.raises(RunError, match="file is no folder"):
        check_makeable(tmp_path / "file" / "below")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RunError, match="may not be written to"):
        check_makeable(tmp_path / "new" / "deep")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_exists_or_cannot_be_made_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("there", "dangling"):
        with pytest.raises(RunError, match="exists"):
            require_new_file(tmp_path / name)
    for name in ("no/a", "there/a", "a" * 300):
        with pytest.raises(RunError, match="to create"):
            require_new_file(tmp_path / name)
    require_new_file(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_looked_into_is_refused_like_one_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(RunError, match="Permission denied"):
        refuse_occupied(tmp_path)


def test_a_line_is_added_to_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_line(path, {"event": "first"})
    append_line(path, {"event": "second", "number": 2})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"event": "first"},
        {"event": "second", "number": 2},
    ]
