"""Labels, class names and the id and user columns, whatever type they arrive in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veilset.data.untrusted import untrusted
from veilset.errors import DataError, OtherClass

MAX_CLASSES = 10_000
"""A label above this is a mistake (a year, an id), not a class; it would ask for that many class names."""

_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def resolve_labels(labels: Any, class_names: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers the labels and names the classes.

    Whole-number labels are indices: without ``class_names`` the classes are called "0" to the largest label. Other
    strings are names: without ``class_names`` the classes are the distinct strings, sorted. Strings that look like
    whole numbers are names if ``class_names`` lists them, else indices.
    """
    values = _flat(labels)
    if values.dtype.kind == "U":
        return _from_names([str(value) for value in values], class_names)
    if values.dtype.kind not in "iub":
        raise DataError(
            "whole-number or text labels",
            f"labels of type {values.dtype}",
            "Convert them, for example with labels.astype('int64').",
        )
    return _from_indices(values, class_names)


def _flat(labels: Any) -> np.ndarray:
    with untrusted("one label per image", "the labels", "Pass a list, an array or a tensor."):
        values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.size == 0:
        raise DataError(
            "one label per image, in one dimension",
            f"labels of shape {values.shape}",
            "For one-hot rows use labels.argmax(1); for a single class use zeros.",
        )
    return values


def _from_indices(values: np.ndarray, class_names: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    low, high = int(values.min()), int(values.max())
    limit = len(class_names) if class_names else MAX_CLASSES
    if low < 0 or high >= limit:
        raise OtherClass(
            f"labels from 0 to {limit - 1}",
            f"labels from {low} to {high}",
            "Renumber the labels, or pass the full list of classes: --class-names (in Python class_names).",
        )
    names = class_names or tuple(str(index) for index in range(high + 1))
    return torch.from_numpy(values.astype(np.int64)), names


def _from_names(values: list[str], class_names: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    known = set(class_names or ())
    unknown = next((value for value in values if value not in known), None)
    if unknown is not None and all(_WHOLE_NUMBER.fullmatch(value) for value in values):
        return _from_indices(np.array([int(value) for value in values]), class_names)
    if class_names and unknown is not None:
        todo = "Correct the label, or list it in --class-names (in Python class_names)."
        raise OtherClass(f"labels out of: {', '.join(class_names)}", f"{unknown!r}", todo)
    names = class_names or tuple(sorted(set(values)))
    if len(names) > MAX_CLASSES:
        raise DataError(f"at most {MAX_CLASSES} classes", f"{len(names)}", "Check that the label is not an id.")
    index = {name: position for position, name in enumerate(names)}
    return torch.tensor([index[value] for value in values], dtype=torch.int64), names


def text_column(values: Any, name: str) -> tuple[str, ...] | None:
    """An id or user column as strings; numbers are written out, anything else is refused."""
    if values is None:
        return None
    with untrusted(f"{name} as a list of strings or whole numbers", name, "Pass one entry per image."):
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise DataError(
            f"{name} as a list of strings or whole numbers",
            f"type {array.dtype}, shape {array.shape}",
            "Pass one entry per image.",
        )
    return tuple(str(value) for value in array)


def check_lengths(records: int, columns: Sequence[tuple[str, Any]]) -> None:
    """Every column present must have one entry per image."""
    for name, column in columns:
        if column is not None and len(column) != records:
            raise DataError(f"{records} {name}, one per image", f"{len(column)}", f"Check where {name} come from.")


def repeated_ids(ids: tuple[str, ...] | None) -> tuple[str, ...]:
    """A warning if ids repeat. They are sound for sharding (equal ids share a shard) but hint at a user column."""
    return () if ids is None else repeated_ids_warning(sum(count > 1 for count in Counter(ids).values()))


def repeated_ids_warning(repeated: int) -> tuple[str, ...]:
    if not repeated:
        return ()
    return (f"{repeated} ids name several images; if an id names a person, pass the column as users instead",)


def number_users(users: Iterable[Any]) -> np.ndarray:
    """The users as numbers from 0, in the order of their first record: 4 bytes a record, whatever their names.

    While they are numbered, every user's name is held once.
    """
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(user, len(numbers)) for user in users), dtype=np.int32)
