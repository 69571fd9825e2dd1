"""GS-WGAN: a generator taught by many critics, each trained on its own shard of the private images.

Paper: Chen, Orekondy and Fritz, "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially Private Generators"
(2020). Its accounting is refuted: all rows of a step come from one critic, and critics keep their state.
Unit of privacy: one record, or one user, all of whose images are in one shard.
Released, critics together (the default), once a step: what all critics want changed in one batch of generated images.
Each critic's wish for the whole batch, in a fixed basis of low frequencies, is one row of length 1; the sum of the rows
is released with Gaussian noise.
Why the bound holds: a keyed hash of its own id decides on a unit's shard, so adding or removing it changes one shard,
and so one critic: its row turns from any unit vector into any other, which moves the sum by at most 2. A critic is a
function of its own shard, of its own random stream and of the generator, which is made of released values. Steps
compose: mu^2 adds, also where a step depends on those before.
With a sketch first: what `sketch` releases too, before the first step, at the price it has there; mu^2 adds. The
generator that critics then teach is made of released values, as before.
Released, critics in turn (the paper), once a step: what one critic wants changed in each of B generated images, clipped
to C / B, with noise of deviation 2 s C / B. All B rows may turn at once, which moves them by 2 C / sqrt(B): a step is
one release of multiplier s / sqrt(B), borne by the units of its shard. The critic's number counts as known to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veilset.engines.shard_teaching import ShardTaught
from veilset.engines.teaching_settings import TeachingSettings
from veilset.methods.base import Synthesizer, register


@dataclass(frozen=True, kw_only=True)
class GsWganConfig(TeachingSettings):
    """Settings of GS-WGAN."""


@register
class GsWgan(ShardTaught, Synthesizer):
    """A noisy sum over critics in every step; or, as published, the noisy wishes of one critic."""

    name: ClassVar[str] = "gs-wgan"
    summary: ClassVar[str] = "a generator taught by many critics, each on its own shard, through noisy sums"
    paper: ClassVar[str] = "Chen et al. 2020"
    Config: ClassVar[type] = GsWganConfig
