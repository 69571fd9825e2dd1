"""Where all privacy noise and all secret draws come from, and from nowhere else.

The key is 256 bits from the operating system, made when the source is made and kept in memory only: it cannot be
printed, copied, pickled or saved, and a forked or resumed process gets a new one. Whoever knew the key could subtract
the noise, so `--seed` never reaches this file.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from typing import NoReturn

import torch
from torch import Tensor

from veilset.privacy.chacha import keystream_words

FORKS: list[None] = []
"""One for each fork that led to this process: its number alone may have been that of an ancestor, which has ended."""
os.register_at_fork(after_in_child=lambda: FORKS.append(None))


class NoiseSource:
    """A stream of secret random numbers keyed from operating-system entropy.

    Guarantee: no two draws of one source share a nonce, and no two sources share a key, so no noise is ever used
      twice: neither across processes (a fork re-keys itself) nor across a crash and resume (a new process, a new key).
    """

    reproducible = False
    """True only for `SeededNoise`: ledger, claim and artifact are then stamped as carrying no privacy."""

    def __init__(self) -> None:
        self._rekey()

    def _rekey(self) -> None:
        self.__key = self._new_key()
        self.__draws = itertools.count()  # atomic, so that two threads never share a nonce
        self.__process = os.getpid(), len(FORKS)

    def _new_key(self) -> bytes:
        return os.urandom(32)

    def _words(self, count: int, device: torch.device) -> Tensor:
        if (os.getpid(), len(FORKS)) != self.__process:
            self._rekey()
        return keystream_words(self.__key, next(self.__draws).to_bytes(12, "little"), count, device)

    def uniform(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        """`count` float64 values on the grid of 2^-53 in (0, 1]."""
        words = self._words(2 * count, torch.device(device)).reshape(count, 2)
        bits = ((words[:, 0] & ((1 << 21) - 1)) << 32) | words[:, 1]
        return (bits + 1).to(torch.float64) * 2.0**-53

    def normal(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        """`count` standard normals as float64, by the Box-Muller transform.

        The radius is made from 106 bits, so that it is as dense in the tail as everywhere else: float64 keeps 53
        significant bits of however small a number. From 53 bits alone radii beyond 7 or so would be few and known, and
        an output that fits none of them would rule a data set out with certainty, which no Gaussian does.
        """
        pairs = (count + 1) // 2
        coarse, fine, turn = self.uniform(3 * pairs, device).reshape(3, pairs)
        first = (coarse - 2.0**-53) + fine * 2.0**-53
        radius, angle = (-2 * first.log()).sqrt(), 2 * math.pi * turn
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]

    def key_bytes(self, count: int = 32) -> bytes:
        """Fresh secret bytes, e.g. for the key that assigns records to shards."""
        words = self._words(-(-count // 4), torch.device("cpu"))
        return b"".join(int(word).to_bytes(4, "little") for word in words)[:count]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<secret>)"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a noise source can neither be copied nor saved: noise must never be drawn twice")

    __copy__ = __deepcopy__ = __reduce__ = __reduce_ex__ = __getstate__ = _refuse


class SeededNoise(NoiseSource):
    """Reproducible noise for tests. It voids the claim, and everything made with it says so."""

    reproducible = True

    def __init__(self, seed: int) -> None:
        self._seed = seed
        super().__init__()

    def _new_key(self) -> bytes:
        return hashlib.sha256(f"veilset test noise {self._seed}".encode()).digest()


class NoNoise(NoiseSource):
    """Zero noise for `--accounting none` and for sensitivity searches: NOT PRIVATE, and stamped so."""

    reproducible = True

    def normal(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(count, dtype=torch.float64, device=device)
