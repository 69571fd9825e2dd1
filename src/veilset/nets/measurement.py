"""What one round measures of an image: the features of all networks and the tones by place, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from veilset.nets.feature_bank import Bank, FeatureBank
from veilset.nets.kinds import Kinds
from veilset.nets.mixed_features import MixedBank
from veilset.nets.tone_bank import ToneBank

PROTOTYPES = "kinds.prototypes"
"""Name of the tensor of kinds."""


class Measurement(nn.Module):
    """Networks and tones as one row of length at most 1, of whose square the tones have a fixed share.

    Args:
        kinds: where rows are to be summed by kinds of a class, and not by classes.
    """

    def __init__(
        self, networks: FeatureBank | MixedBank, tones: ToneBank, tone_share: float, kinds: Kinds | None = None
    ) -> None:
        super().__init__()
        self.networks, self.tones, self.tone_share, self.kinds = networks, tones, tone_share, kinds

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], channels: int, tone_share: float) -> Measurement:
        """With mixed features, from what `state_dict` gives; other names are ignored."""
        kinds = Kinds(tensors[PROTOTYPES]) if PROTOTYPES in tensors else None
        prefix = "networks.networks.weight_"
        weights = [tensors[f"{prefix}{block}"] for block in range(sum(name.startswith(prefix) for name in tensors))]
        networks = FeatureBank(weights, tensors["networks.networks.centre"])
        return cls(MixedBank(networks, tensors["networks.centre"]), ToneBank(channels), tone_share, kinds)

    @property
    def parts(self) -> list[tuple[Bank, float]]:
        """The banks, each with its share of the squared length of a row."""
        return [(self.networks, 1 - self.tone_share), (self.tones, self.tone_share)]

    @property
    def kinds_per_class(self) -> int:
        return 1 if self.kinds is None else self.kinds.per_class

    @property
    def numbers(self) -> int:
        """Length of a row."""
        return sum(bank.count * bank.length for bank, _ in self.parts)

    def rows(self, images: Tensor) -> Tensor:
        """(n, channels, height, width) in [0, 1] -> (n, numbers) float64; a row depends on its own image alone."""
        return torch.cat([bank.exact(images).flatten(1) * scale(bank, share) for bank, share in self.parts], dim=1)

    def means(self, sums: Tensor, counts: Tensor) -> list[Tensor]:
        """Sums of rows over `counts` images as mean unit vectors of each bank, (groups, count, length)."""
        sizes = [bank.count * bank.length for bank, _ in self.parts]
        pieces = sums[:, : self.numbers].split(sizes, dim=1)
        return [
            (piece / counts / scale(bank, share)).reshape(len(sums), bank.count, bank.length)
            for piece, (bank, share) in zip(pieces, self.parts, strict=True)
        ]


def scale(bank: Bank, share: float) -> float:
    """Length of one unit vector of a bank within a row of length 1."""
    return math.sqrt(share / bank.count)
