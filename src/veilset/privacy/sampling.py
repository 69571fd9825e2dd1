"""Secret draws of records. A draw yields the indices AND the wrapper that prices what is done with them.

Draws come from the secret stream: amplification by sampling holds only against somebody who cannot predict the draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.errors import ConfigError, UnsupportedEvent
from veilset.privacy.events import Event, PoissonSampled, Schedule, ShardTouched
from veilset.privacy.noise import NoiseSource


@dataclass(frozen=True)
class Draw:
    """Indices of one draw, and how a release on them is priced.

    `price(event, absence)` wraps the event; absence is how far leaving a unit out moves the release, in sensitivities.
    A draw feeds one release: two of them would be Sampled(Composed), which costs more than two independent draws.
    """

    indices: Tensor
    price: Callable[[Event, float], Event]

    @classmethod
    def once(cls, indices: Tensor, price: Callable[[Event, float], Event]) -> Draw:
        unused = [price]

        def price_once(event: Event, absence: float) -> Event:
            if not unused:
                raise UnsupportedEvent("one release for each draw", "a second one", "Release both as one, or redraw.")
            return unused.pop()(event, absence)

        return cls(indices, price_once)


def poisson_draw(num_records: int, rate: float, noise: NoiseSource) -> Draw:
    """Every record independently with probability `rate`; the batch may be empty and is then still a release.

    Guarantee: the rate is public (from a declared size), the realised batch size is not: divide by the expected one.
    """
    if not 0 < rate <= 1:
        raise ConfigError("a sampling rate in (0, 1]", f"{rate}", "Use expected batch size / declared size.")
    indices = (noise.uniform(num_records) <= rate).nonzero().flatten()
    return Draw.once(indices, lambda event, absence: PoissonSampled(rate, event, absence))


def shard_draw(step: int, num_shards: int, schedule: Schedule, noise: NoiseSource) -> Draw:
    """The shard of one step. Its index counts as revealed, so no amplification is claimed for hiding it."""
    shard = step % num_shards
    if schedule != "round-robin":  # a 53-bit uniform in (0, 1]: no index is likelier by more than num_shards * 2^-53
        shard = min(int(noise.uniform(1).item() * num_shards), num_shards - 1)
    return Draw.once(torch.tensor([shard]), lambda event, _: ShardTouched(num_shards, schedule, event))
