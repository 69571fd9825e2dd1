"""Streaming sums of per-record features: one pass over the images, memory independent of their number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from veilset.data.spec import ImageSet, to_unit_range
from veilset.errors import ConfigError
from veilset.privacy.bounds import Bounded, GroupedSum, Unit

BATCH = 500


def sum_by_label(
    images: ImageSet,
    rows_of: Callable[[Tensor], Bounded],
    *,
    unit: Unit,
    rows_per_user: int | None,
    device: torch.device,
    progress: Callable[[int, int], None],
    batch: int = BATCH,
) -> GroupedSum:
    """Adds every record's bounded row to the sum of its label.

    Batches have a fixed shape (the last is padded with null records), so that a record's row cannot depend on how
    many others there are through the choice of a numerical kernel. Null records become NaN images: `rows_of` bounds
    them to the zero row like every other unusable value.
    """
    kept = images if unit is Unit.RECORD else images.subset(first_rows_of_each_user(images, rows_per_user))
    total = GroupedSum(images.spec.num_classes, rows_per_unit=rows_per_user, device=device)
    for start in range(0, max(len(kept), 1), batch):
        pixels, labels, valid = _padded_batch(kept, start, batch, device)
        pixels[~valid] = torch.nan
        total.add(rows_of(pixels), labels)
        progress(min(start + batch, len(kept)), len(kept))
    return total


def _padded_batch(images: ImageSet, start: int, batch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    rows = slice(start, start + batch)
    missing = batch - len(images.labels[rows])
    pixels, labels, valid = to_unit_range(images.pixels[rows].to(device)), images.labels[rows], images.valid[rows]
    return (
        torch.cat([pixels, pixels.new_zeros(missing, *images.spec.shape)]),
        torch.cat([labels, labels.new_zeros(missing)]).to(device),
        torch.cat([valid, valid.new_zeros(missing)]).to(device),
    )


def first_rows_of_each_user(images: ImageSet, cap: int | None) -> Tensor:
    """Row numbers with at most `cap` images of each user; whether a row stays depends on its own user's rows alone."""
    if images.users is None or not cap or cap < 1:
        raise ConfigError(
            "a user column and a declared cap of images per user for user-level privacy",
            "none" if images.users is None else f"cap {cap}",
            "Give a manifest with a user column and --images-per-user.",
        )
    seen: dict[str, int] = {}
    rows = []
    for row, user in enumerate(images.users):
        seen[user] = seen.get(user, 0) + 1
        if seen[user] <= cap:
            rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)
