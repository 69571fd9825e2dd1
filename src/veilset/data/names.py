"""Names of files, records and users as bytes."""

from __future__ import annotations


def name_bytes(name: str) -> bytes:
    """File names may hold bytes that are not UTF-8: different names still differ, and sort as Python sorts text."""
    return name.encode("utf-8", "surrogatepass")


def name_of(data: bytes) -> str:
    """The name that `name_bytes` made these bytes of."""
    return data.decode("utf-8", "surrogatepass")
