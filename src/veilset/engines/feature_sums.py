"""Streaming sums of per-record features: one pass over the images, memory independent of their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from veilset.data.spec import Batch, Images, to_unit_range
from veilset.errors import ConfigError
from veilset.privacy.bounds import Bounded, GroupedSum, Unit

BATCH = 500


def sum_by_label(
    images: Images,
    rows_of: Callable[[Tensor], Bounded],
    *,
    unit: Unit,
    rows_per_user: int | None,
    device: torch.device,
    progress: Callable[[int, int], None],
    batch: int = BATCH,
    kinds: int = 1,
    group_of: Callable[[Bounded, Tensor], Tensor] = lambda rows, labels: labels,
) -> GroupedSum:
    """Adds every record's bounded row to the sum of its label or, with several `kinds` of a class, of its group.

    Batches have a fixed shape (the last is padded with null records), so that a record's row cannot depend on how
    many others there are through the choice of a numerical kernel. Null records, and those beyond a user's cap, become
    NaN images: `rows_of` bounds them to the zero row like every other unusable value. Of the records a batch or a few
    are in memory, and at user level one byte each.

    Args:
        group_of: the groups of rows with these labels, each from its own row and label alone.
    """
    kept = None if unit is Unit.RECORD else first_rows_of_each_user(images, rows_per_user)
    total = GroupedSum(images.spec.num_classes * kinds, rows_per_unit=rows_per_user, device=device)
    done = 0
    for pixels, labels, valid in _some_batches(images, batch):
        if kept is not None:
            valid = valid & kept[done : done + len(valid)]
        done += len(labels)
        values, classes = _padded(pixels, labels, valid, batch, device)
        rows = rows_of(values)
        total.add(rows, group_of(rows, classes))
        progress(done, len(images))
    return total


def _some_batches(images: Images, size: int) -> Iterator[Batch]:
    """An empty collection has one batch without records: its sum is zero, of the usual shape."""
    if len(images) == 0:
        empty = torch.zeros(0, dtype=torch.int64)
        yield torch.zeros((0, *images.spec.shape), dtype=torch.uint8), empty, empty.bool()
    yield from images.batches(size)


def _padded(pixels: Tensor, labels: Tensor, valid: Tensor, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    values = torch.full((size, *pixels.shape[1:]), torch.nan, device=device)
    values[: len(pixels)] = to_unit_range(pixels.to(device))
    values[: len(pixels)][~valid.to(device)] = torch.nan
    return values, torch.cat([labels, labels.new_zeros(size - len(labels))]).to(device)


def first_rows_of_each_user(images: Images, cap: int | None) -> Tensor:
    """True for at most `cap` images of each user; whether a row stays depends on its own user's rows alone.

    Users are numbers here, so that counting takes 4 bytes a user and 1 byte a record.
    """
    users = images.user_numbers()
    if users is None or not cap or cap < 1:
        raise ConfigError(
            "a user column and a declared cap of images per user for user-level privacy",
            "none" if users is None else f"cap {cap}",
            "Give a manifest with a user column and --images-per-user.",
        )
    seen = np.zeros(int(users.max(initial=-1)) + 1, dtype=np.int32)
    kept = np.zeros(len(users), dtype=np.bool_)
    for row, user in enumerate(users):
        kept[row] = seen[user] < cap
        seen[user] += 1
    return torch.from_numpy(kept)
