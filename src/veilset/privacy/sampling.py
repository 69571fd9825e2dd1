"""Secret draws of records. A draw yields the indices AND the wrapper that prices what is done with them.
Draws come from the secret stream: amplification by sampling holds only against somebody who cannot predict the draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.errors import ConfigError, UnsupportedEvent
from veilset.privacy.events import NOTHING, Composed, Event, PoissonSampled, Schedule, ShardTouched
from veilset.privacy.noise import NoiseSource


@dataclass(frozen=True)
class Draw:
    """Indices of one draw, and how a release on them is priced: `price(event, absence)`, where absence is how far
    leaving a unit out moves the release, in sensitivities. Others on this draw are free after `paid()` alone."""

    indices: Tensor
    price: Callable[[Event, float], Event]
    paid: Callable[[], None] = lambda: None

    @classmethod
    def once(cls, indices: Tensor, price: Callable[[Event, float], Event], feeds: tuple[Event, ...] = ()) -> Draw:
        """A draw for one release; with `feeds`, for exactly these in this order, all of them priced with the first.

        Guarantee: two releases on a draw are Sampled(Composed), which costs more than two independent draws. They are
          charged as that before the first of them is made, and what was not foreseen is refused.
        """
        waiting, absences, paid = list(feeds or (None,)), set[float](), list[bool]()

        def price_next(event: Event, absence: float) -> Event:
            first = not absences
            absences.add(absence)
            if not waiting or waiting.pop(0) not in (None, event) or len(absences) > 1 or not (first or paid):
                raise UnsupportedEvent("the releases foreseen for a draw", f"{event}", "Foresee it, or redraw.")
            return price(Composed(feeds) if feeds else event, absence) if first else NOTHING

        return cls(indices, price_next, lambda: paid.append(True))


def poisson_draw(
    num_records: int, rate: float, noise: NoiseSource, feeds: tuple[Event, ...] = (), device: torch.device | str = "cpu"
) -> Draw:
    """Every record independently with probability `rate`; the batch may be empty and is then still a release.

    Guarantee: the rate is public (from a declared size), the realised batch size is not: divide by the expected one.
    """
    if not 0 < rate <= 1:
        raise ConfigError("a sampling rate in (0, 1]", f"{rate}", "Use expected batch size / declared size.")
    indices = (noise.uniform(num_records, device) <= rate).nonzero().flatten()
    return Draw.once(indices, lambda event, absence: PoissonSampled(rate, event, absence), feeds)


def shard_draw(step: int, num_shards: int, schedule: Schedule, noise: NoiseSource) -> Draw:
    """The shard of one step. Its index counts as revealed, so no amplification is claimed for hiding it."""
    shard = step % num_shards
    if schedule != "round-robin":  # a 53-bit uniform in (0, 1]: no index is likelier by more than num_shards * 2^-53
        shard = min(int(noise.uniform(1).item() * num_shards), num_shards - 1)
    return Draw.once(torch.tensor([shard]), lambda event, _: ShardTouched(num_shards, schedule, event))
