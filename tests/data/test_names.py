"""Names as bytes, also those of files that no text encoding knows."""

from __future__ import annotations

from veilset.data.names import name_bytes, name_of

NAMES = ["plain.png", "café.png", "caf\udce9.png", "\U0001f431.png", ""]


def test_every_name_survives_and_no_two_become_one() -> None:
    assert [name_of(name_bytes(name)) for name in NAMES] == NAMES
    assert len({name_bytes(name) for name in NAMES}) == len(NAMES)


def test_bytes_sort_as_names_do() -> None:
    assert [name_of(data) for data in sorted(map(name_bytes, NAMES))] == sorted(NAMES)
