"""Keyed hashes of images and of user ids: enough to see that two collections share one, and of no use without the key.

Their place is the owner's vault. Whoever has hashes and key can test whether an image he holds is among them, which is
what they are for; so neither is ever released.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from veilset.data.options import Progress
from veilset.data.spec import Images

BATCH = 500
KEY_BYTES = 32
HASH_BYTES = 8
"""64 bits: among 60,000 training and 10,000 test images the chance of one accidental match is 3e-11."""


def fingerprints(images: Images, key: bytes, progress: Progress = lambda done, total: None) -> np.ndarray:
    """The hashes of all readable images, sorted and each once, as uint64: 8 bytes an image, and no order of records.

    Pixels alone are hashed, after decoding and resizing: another file format, name or label is still the same image.
    These 8 bytes an image (twice that while they are sorted) are all that a pass keeps.
    """
    hashes = _hashes(images, key, progress)
    hashes.sort()
    first = np.ones(len(hashes), dtype=np.bool_)
    first[1:] = hashes[1:] != hashes[:-1]
    return hashes[first]


def count_known(images: Images, known: np.ndarray, key: bytes) -> int:
    """How many of the readable images are among those whose fingerprints are `known`."""
    return int(np.isin(_hashes(images, key), known).sum())


def _hashes(images: Images, key: bytes, progress: Progress = lambda done, total: None) -> np.ndarray:
    hashes = np.zeros(len(images), dtype="<u8")
    done = found = 0
    for pixels, _, valid in images.batches(BATCH):
        readable = pixels.numpy()[valid.numpy()]
        whole = b"".join(digest(image, key, HASH_BYTES) for image in readable)
        hashes[found : found + len(readable)] = np.frombuffer(whole, dtype="<u8")
        done, found = done + len(valid), found + len(readable)
        progress(done, len(images))
    return hashes[:found]


def user_fingerprints(users: Iterable[str], key: bytes) -> np.ndarray:
    """The hashes of all user ids, sorted and each once: a person's other photographs have other pixels, but one id.

    As for images, 8 bytes a record are all that a pass keeps.
    """
    digests = (hashlib.blake2b(user.encode(), key=key, digest_size=HASH_BYTES).digest() for user in users)
    return np.unique(np.fromiter((int.from_bytes(digest, "little") for digest in digests), dtype="<u8"))


def digest(image: np.ndarray, key: bytes, size: int) -> bytes:
    """`size` bytes that any other picture would almost surely not have."""
    return hashlib.blake2b(image.tobytes(), key=key, digest_size=size).digest()


def image_digests(pixels: Tensor) -> list[bytes]:
    """16 bytes for every image, for comparing within one process: far less memory than the images themselves."""
    return [digest(row, b"", 16) for row in pixels.cpu().numpy()]
