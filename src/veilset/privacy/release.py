"""The door: the only functions from private values to shareable ones. Bound, charge the ledger, add noise, return."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.errors import NotBounded
from veilset.privacy.bounds import Bounded, GroupedSum, Unit
from veilset.privacy.events import NOTHING, Event, Gaussian
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.sampling import Draw


@dataclass(frozen=True)
class Door:
    """Joins a ledger and a noise source; every release of a run goes through its run's door."""

    ledger: PrivacyLedger
    noise: NoiseSource

    def __post_init__(self) -> None:
        if self.noise.reproducible and self.ledger.private:
            raise NotBounded(
                "noise from operating-system entropy for a run that claims privacy",
                f"{type(self.noise).__name__}",
                "Open the ledger with a reason why it is not private, or use NoiseSource().",
            )

    def release_sum(self, total: GroupedSum, noise_multiplier: float, *, draw: Draw | None = None) -> Tensor:
        """Adds noise once to a sum over units and returns it as float64.

        Guarantee: one Gaussian release with this noise multiplier for the ledger's adjacency and unit, inside `draw`
          where one is given. The ledger is charged, on disk, before any noise is drawn; where it raises, none is.
        Why the noise is rounded: sum and result are integers on the same grid, so the result equals the rounding of
          (sum + Gaussian), which is post-processing; low bits of floats cannot leak. The float64 Gaussian is finer than
          the grid everywhere, also in its tail (`NoiseSource.normal`, `_check_room`).
        """
        if not isinstance(total, GroupedSum) or total.grid_total is None:
            raise NotBounded("a GroupedSum of bounded rows", f"{type(total).__name__}", "Bound the rows first.")
        if self.ledger.unit is Unit.USER and total.rows_per_unit is None:
            raise NotBounded("a sum with a cap of rows per user", "none", "Set GroupedSum(rows_per_unit=...).")
        event, noise_std = Gaussian(noise_multiplier), noise_multiplier * total.sensitivity(self.ledger.adjacency)
        _check_room(total.grid_total, noise_std / total.grid_step)
        self._charge(event, draw, absence=total.absence(self.ledger.adjacency))
        return self._noisy(total.grid_total, total.grid_step, noise_std)

    def release_rows(self, rows: Bounded, noise_multiplier: float, *, draw: Draw | None = None) -> Tensor:
        """Adds noise to every row of one black box's answer (a critic's gradients for a public batch of fakes).

        Guarantee: as `release_sum` with the joint sensitivity of all rows: each of them may turn from any vector of
          its ball to any other, whatever the adjacency, so the rows together move by at most 2 bounds * sqrt(rows).
          The noise on each row is noise_multiplier * 2 bounds * sqrt(rows): callers who count per-row multipliers
          divide by sqrt(rows) first.
        Reference: GS-WGAN (Chen et al. 2020), section 4, with all rows of a step priced as one release.
        """
        if not isinstance(rows, Bounded):
            raise NotBounded("Bounded rows", f"{type(rows).__name__}", "Use clip_rows or normalise_rows.")
        noise_std = noise_multiplier * 2.0 * rows.bound * math.sqrt(max(len(rows), 1))
        _check_room(rows.grid_rows, noise_std / rows.grid_step)
        self._charge(Gaussian(noise_multiplier), draw, absence=1.0)
        return self._noisy(rows.grid_rows, rows.grid_step, noise_std)

    def _charge(self, event: Event, draw: Draw | None, *, absence: float) -> None:
        if draw is None:
            self.ledger.charge(event)
        elif (cost := draw.price(event, absence)) != NOTHING:  # else charged with an earlier one on the same draw
            self.ledger.charge(cost)
            draw.paid()

    def _noisy(self, grid_values: Tensor, grid_step: float, noise_std: float) -> Tensor:
        noise = self.noise.normal(grid_values.numel(), grid_values.device).reshape(grid_values.shape)
        noisy = grid_values + (noise * (noise_std / grid_step)).round().to(torch.int64)
        return noisy.to(torch.float64) * grid_step


def _check_room(grid_values: Tensor, grid_std: float) -> None:
    """Refuses what 64-bit integers cannot hold: noise that saturates is a constant, and would release the exact sum."""
    largest = int(grid_values.abs().max()) if grid_values.numel() else 0
    # Up to 2^45 grid units of noise, neighbouring float64 Gaussians are less than a grid unit apart.
    if not (grid_std <= 2.0**45 and 0 <= largest <= 2**60):
        raise NotBounded(
            "values and noise that fit 64-bit sums",
            f"noise of 2^{math.log2(grid_std):.0f} grid units, values up to 2^{math.log2(max(largest, 1)):.0f}",
            "Use a larger epsilon or a smaller cap of images per user; nothing was released.",
        )
