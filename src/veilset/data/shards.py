"""Record ids and the split into disjoint shards.

A record's shard is a keyed hash of its id, so it does not depend on which other records exist: adding or removing one
record changes one shard only. That is what the sensitivity of every sharded method rests on. The key keeps the shard
of a known id secret; it comes from the caller, stays in the vault and is never released.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from veilset.data.names import name_bytes
from veilset.data.spec import ImageSet
from veilset.errors import ConfigError
from veilset.privacy.bounds import Unit

# Distinct uses of one key must not collide; BLAKE2b takes up to 16 bytes for this.
_ID_PURPOSE = b"veilset-id"
_SHARD_PURPOSE = b"veilset-shard"


def assign_shards(images: ImageSet, num_shards: int, key: bytes, unit: Unit) -> Tensor:
    """The shard of every record, int64 from 0 to ``num_shards - 1``.

    Args:
        images: the private collection; null records get a shard like any other.
        num_shards: public number of shards.
        key: 16 to 64 secret bytes.
        unit: RECORD hashes the record's id, USER the user's, so that all images of a person share a shard.

    Raises:
        ConfigError: the unit is USER and there is no user column, or an argument is out of range.
    """
    _check_key(key)
    if isinstance(num_shards, bool) or not isinstance(num_shards, int) or not 1 <= num_shards < 2**31:
        raise ConfigError("a positive number of shards", f"{num_shards!r}", "Choose num_shards of at least 1.")
    names = _unit_names(images, key, unit)
    # 128 bits modulo a number below 2**31: the bias is below 2**-97.
    shards = [int.from_bytes(_keyed_hash(key, _SHARD_PURPOSE, name_bytes(name))) % num_shards for name in names]
    return torch.tensor(shards, dtype=torch.int64)


def record_ids(images: ImageSet, key: bytes) -> tuple[str, ...]:
    """The ids the collection came with, else a keyed hash of each record's pixels and label.

    Row numbers would not do: removing one record would rename all that follow.
    """
    if images.ids is not None:
        return images.ids
    _check_key(key)
    pixels, labels = images.pixels.cpu().contiguous().numpy(), images.labels.tolist()
    return tuple(
        _keyed_hash(key, _ID_PURPOSE, label.to_bytes(8, "little") + image.tobytes()).hex()
        for image, label in zip(pixels, labels, strict=True)
    )


def _unit_names(images: ImageSet, key: bytes, unit: Unit) -> tuple[str, ...]:
    if unit == Unit.RECORD:
        return record_ids(images, key)
    if unit != Unit.USER:
        raise ConfigError('unit="record" or unit="user"', f"{unit!r}", "Choose one of the two.")
    if images.users is None:
        raise ConfigError(
            "a user for every image, to protect users",
            "images without a user column",
            "Pass users=... or a manifest with a user column, or protect records.",
        )
    return images.users


def _check_key(key: bytes) -> None:
    if not isinstance(key, bytes) or not 16 <= len(key) <= 64:
        found = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise ConfigError("a shard key of 16 to 64 bytes", found, "Draw a fresh key; do not derive it from the data.")


def _keyed_hash(key: bytes, purpose: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=16, key=key, person=purpose).digest()
