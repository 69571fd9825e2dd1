"""Norm bounds that hold exactly, and sums that keep them.

`Bounded` is made only here, and releases accept nothing else. Rows are bounded one at a time, by operations that
look at no other row. Sums are taken on a fixed-point grid in 64-bit integers, so they depend neither on the order of
the records nor on the batch they were read in, and one record moves them by exactly its own row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from veilset.errors import ConfigError, NotBounded

GRID = 2.0**-20
"""Spacing of the fixed-point grid, as a share of the row bound: far below any noise that makes a row private."""
SLACK = 1 - 2.0**-20
"""Rows are shrunk by this, 16 * 2^-24, which covers rounding: in float32 a sum of squares in `_row_sums` is too small
by up to log2(d) + 1 times 2^-24 (log2 rounded up), its root by half, and two products add 2^-24 each: d up to 2^26."""


class Adjacency(StrEnum):
    """Which data sets count as neighbours. Printed beside every epsilon; mixing them is an error."""

    ADD_REMOVE = "add-remove"
    REPLACE = "replace"


class Unit(StrEnum):
    """What is added, removed or replaced: one record, or all records of one user."""

    RECORD = "record"
    USER = "user"


_MADE_HERE = object()
Pick = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Bounded:
    """Rows whose L2 norms are at most `bound`, as integers in units of `bound * GRID`."""

    grid_rows: Tensor
    bound: float
    nonnegative: bool
    _token: object

    def __post_init__(self) -> None:
        if self._token is not _MADE_HERE:
            raise NotBounded("rows bounded by privacy.bounds", "hand-made ones", "Use clip_rows or normalise_rows.")

    def __len__(self) -> int:
        return int(self.grid_rows.shape[0])

    @property
    def grid_step(self) -> float:
        return self.bound * GRID


def clip_rows(rows: Tensor, bound: float, *, nonnegative: bool = False, dtype: torch.dtype = torch.float64) -> Bounded:
    """Scales every row with a norm above `bound` down to it.

    Guarantee: each returned row has L2 norm at most `bound`, checked in exact integer arithmetic; a row with any
      non-finite entry becomes the zero row; no row's result depends on another row.
    Args:
        rows: (n, ...) real values; one row per record (or per shard).
        nonnegative: clamps entries at 0 first, which lowers the replace sensitivity of a sum from 2 to sqrt(2) bounds.
        dtype: to work in; float32 takes half the memory of long rows, and the guarantee is the same.
    """
    return _scaled_to(rows, bound, nonnegative, torch.minimum, dtype)


def normalise_rows(rows: Tensor, bound: float = 1.0, *, nonnegative: bool = False) -> Bounded:
    """Scales every non-zero row to norm `bound`; same guarantee as `clip_rows`."""
    return _scaled_to(rows, bound, nonnegative, lambda _, longest: longest, torch.float64)


def _scaled_to(rows: Tensor, bound: float, nonnegative: bool, pick: Pick, dtype: torch.dtype) -> Bounded:
    if not 1e-100 <= bound <= 1e100:
        raise ConfigError("a norm bound between 1e-100 and 1e100", f"{bound}", "Set the clip norm.")
    flat = rows.detach().to(dtype).flatten(1)
    largest = _largest(flat)
    if nonnegative or not bool(torch.isfinite(largest).all()):
        flat = torch.where(torch.isfinite(largest), flat.clamp(min=0) if nonnegative else flat, 0)
        largest = _largest(flat)
    # Rows are first divided by their largest entry, so that huge or tiny ones neither overflow nor vanish.
    shape = flat / torch.where(largest > 0, largest, 1)
    norms = _row_sums(shape.square()).double().sqrt().clamp(min=1.0)
    steps = pick(largest.double(), bound / norms) / (bound * GRID) * SLACK
    return _on_grid(shape.mul_(steps.to(dtype)).reshape(rows.shape), bound, nonnegative)


def _largest(rows: Tensor) -> Tensor:
    """(n, d) -> (n, 1), not finite where any entry is not."""
    return rows.abs().amax(dim=1, keepdim=True) if rows.shape[1] else rows.new_zeros(len(rows), 1)


def _row_sums(values: Tensor) -> Tensor:
    """(n, d) -> (n, 1), folded in place: unlike `sum`, whose rounding may depend on the number and layout of rows."""
    while (width := values.shape[1]) > 1:
        half = 1 << ((width - 1).bit_length() - 1)  # the largest power of two below the width
        values[:, : width - half] += values[:, half:]
        values = values[:, :half]
    return values


def _on_grid(steps: Tensor, bound: float, nonnegative: bool) -> Bounded:
    """Truncates towards zero, which never lengthens a row; squares up to 2^40 add exactly in float64, in any order."""
    grid_rows = steps.to(torch.int32)
    lengths = grid_rows.flatten(1).double().norm(dim=1)
    if not bool((lengths <= 1 / GRID).all()):
        raise NotBounded(f"rows of norm at most {bound}", "a longer row after scaling", "Report this as a bug.")
    return Bounded(grid_rows, bound, nonnegative, _MADE_HERE)


def with_total(rows: Bounded, weight: float, places: Tensor | None = None, num_places: int = 1) -> Bounded:
    """Appends to every non-zero row the value `weight`, alone or at its place among zeros: a record count of sums.

    Guarantee: the new bound is sqrt(bound^2 + weight^2). Summed with noise, such coordinates are private totals:
      nothing has to be divided by an exact record count, which is private under add/remove.
    """
    if not 0 < weight <= 1e100:
        raise ConfigError("a total weight above 0", f"{weight}", "Leave the total out instead.")
    bound = math.hypot(rows.bound, weight)
    values = rows.grid_rows.flatten(1).to(torch.float64) * rows.grid_step
    marks = values.new_ones(1, 1) if places is None else torch.eye(num_places).to(values)[places]
    present = (rows.grid_rows.flatten(1) != 0).any(dim=1, keepdim=True) * marks * weight
    return _on_grid(torch.cat([values, present], dim=1) / (bound * GRID) * SLACK, bound, rows.nonnegative)


class GroupedSum:
    """Exact running sum of bounded rows, each added to one group (its label): the shape of a streaming release.

    Guarantee: adding or removing one unit of at most `rows_per_unit` rows moves the sum by at most `bound` in L2 norm
      over all groups together; replacing one moves it by at most 2 bounds, or sqrt(2) bounds where rows are
      non-negative. At record level a unit is one row; at user level `rows_per_unit` is the declared cap of images
      per user, and whoever adds rows drops those beyond it.
    """

    def __init__(
        self, num_groups: int, *, rows_per_unit: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        if rows_per_unit is not None and not (isinstance(rows_per_unit, int) and rows_per_unit >= 1):
            raise ConfigError("a whole cap of at least 1 row per unit", f"{rows_per_unit}", "Declare the cap.")
        self.num_groups, self.rows_per_unit, self._device = num_groups, rows_per_unit, device
        self.grid_total: Tensor | None = None
        self._row_bound, self._nonnegative = 0.0, False

    @property
    def bound(self) -> float:
        return self._row_bound * (self.rows_per_unit or 1)

    def sensitivity(self, adjacency: Adjacency) -> float:
        return sum_sensitivity(self.bound, adjacency, nonnegative=self._nonnegative)

    def absence(self, adjacency: Adjacency) -> float:
        """How far leaving one unit out moves the sum, in sensitivities: the same number whatever the bound."""
        return 1.0 / sum_sensitivity(1.0, adjacency, nonnegative=self._nonnegative)

    @property
    def grid_step(self) -> float:
        return self._row_bound * GRID

    def add(self, rows: Bounded, groups: Tensor) -> None:
        if self.grid_total is None:
            self._row_bound, self._nonnegative = rows.bound, rows.nonnegative
            shape = (self.num_groups, *rows.grid_rows.shape[1:])
            self.grid_total = torch.zeros(shape, dtype=torch.int64, device=self._device)
        if (rows.bound, rows.nonnegative) != (self._row_bound, self._nonnegative):
            raise NotBounded(f"rows of bound {self._row_bound}", f"{rows.bound}", "Bound all rows of a sum alike.")
        if self.num_groups == 1 and len(rows) < 2**11:  # entries up to 2^20: their sums fit 32 bits
            self.grid_total += rows.grid_rows.to(self._device).sum(dim=0, dtype=torch.int32)
        else:
            self.grid_total.index_add_(0, groups.to(self._device), rows.grid_rows.to(self._device, torch.int64))


def sum_rows(rows: Bounded, rows_per_unit: int | None = None) -> GroupedSum:
    """The plain sum of all rows, as one group."""
    total = GroupedSum(1, rows_per_unit=rows_per_unit, device=rows.grid_rows.device)
    total.add(rows, torch.zeros(len(rows), dtype=torch.int64))
    return total


def sum_shards(rows: Bounded) -> GroupedSum:
    """The sum of one row for each shard: whatever a black box answers about its own shard and released values.

    Guarantee: a unit lies in one shard, whose row it may turn from any vector of the ball into any other: adding or
      removing it counts as two rows, one that goes and one that comes. Replacing it may move it to another shard: four.
    """
    return sum_rows(rows, rows_per_unit=2)


def sum_sensitivity(bound: float, adjacency: Adjacency, *, nonnegative: bool = False) -> float:
    """How far one unit can move a sum of rows of norm `bound` (privacy model, section on neighbours)."""
    if adjacency is Adjacency.ADD_REMOVE:
        return bound
    # Two vectors of the same ball; if both are non-negative their angle is at most 90 degrees.
    return bound * (math.sqrt(2.0) if nonnegative else 2.0)
