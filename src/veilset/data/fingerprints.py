"""Keyed hashes of images and of user ids: enough to see that two collections share one, and of no use without the key.

Their place is the owner's vault. Whoever has hashes and key can test whether an image he holds is among them, which is
what they are for; so neither is ever released.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor

from veilset.data.names import name_bytes
from veilset.data.options import ImageProgress
from veilset.data.spec import Images

BATCH = 500
KEY_BYTES = 32
HASH_BYTES = 8
"""64 bits: among 60,000 training and 10,000 test images the chance of one accidental match is 3e-11."""
_RECORD = np.dtype([("label", "<i8"), ("readable", "?"), ("pixels", "<u8")])


def fingerprints(images: Images, key: bytes, progress: ImageProgress = lambda done, total: None) -> np.ndarray:
    """The hashes of all readable images, sorted and each once, as uint64: 8 bytes an image, and no order of records.

    Pixels alone are hashed, after decoding and resizing: another file format, name or label is still the same image.
    These 8 bytes an image (twice that while they are sorted) are all that a pass keeps.
    """
    return _single(_hashes(images, key, progress))


def record_fingerprint(
    images: Images, key: bytes, progress: ImageProgress = lambda done, total: None
) -> tuple[np.ndarray, np.ndarray]:
    """One hash of all records in their order, with their labels, ids and users; and, of the same pass, `fingerprints`.

    The former tells whether anything at all is different, the latter which images are.
    """
    whole = hashlib.blake2b(key=key, person=b"veilset-records")
    hashes = _hashes(images, key, progress, whole.update)
    for names in (images.id_names(), images.user_names()):
        whole.update(b"without" if names is None else b"with")
        for name in names or ():
            whole.update(_name_digest(name, key))
    return np.frombuffer(whole.digest(), dtype="<u8"), _single(hashes)


def all_fingerprints(images: Images, key: bytes, progress: ImageProgress) -> list[np.ndarray]:
    """Both of `record_fingerprint`, and behind them, where there are users, `user_fingerprints`."""
    users = images.user_names()
    both = record_fingerprint(images, key, progress)
    return [*both, *([] if users is None else [user_fingerprints(users, key)])]


def count_known(images: Images, known: np.ndarray, key: bytes) -> int:
    """How many of the readable images are among those whose fingerprints are `known`."""
    return int(np.isin(_hashes(images, key), known).sum())


def _hashes(
    images: Images,
    key: bytes,
    progress: ImageProgress = lambda done, total: None,
    each: Callable[[bytes], object] = lambda rows: None,
) -> np.ndarray:
    """The hashes of all readable images in their order; `each` is told of every record, readable or not."""
    hashes = np.zeros(len(images), dtype="<u8")
    done = found = 0
    for pixels, labels, valid in images.batches(BATCH):
        readable = valid.numpy()
        rows = np.zeros(len(readable), dtype=_RECORD)
        rows["label"], rows["readable"] = labels.numpy(), readable
        whole = b"".join(digest(image, key, HASH_BYTES) for image in pixels.numpy()[readable])
        known = np.frombuffer(whole, dtype="<u8")
        rows["pixels"][readable] = hashes[found : found + len(known)] = known
        each(rows.tobytes())
        done, found = done + len(rows), found + len(known)
        progress(done, len(images))
    return hashes[:found]


def _single(hashes: np.ndarray) -> np.ndarray:
    """Each of them once, sorted."""
    hashes.sort()
    first = np.ones(len(hashes), dtype=np.bool_)
    first[1:] = hashes[1:] != hashes[:-1]
    return hashes[first]


def user_fingerprints(users: Iterable[str], key: bytes) -> np.ndarray:
    """The hashes of all user ids, sorted and each once: a person's other photographs have other pixels, but one id.

    As for images, 8 bytes a record are all that a pass keeps.
    """
    return np.unique(np.fromiter((int.from_bytes(_name_digest(user, key), "little") for user in users), dtype="<u8"))


def _name_digest(name: str, key: bytes) -> bytes:
    return hashlib.blake2b(name_bytes(name), key=key, digest_size=HASH_BYTES).digest()


def digest(image: np.ndarray, key: bytes, size: int) -> bytes:
    """`size` bytes that any other picture would almost surely not have."""
    return hashlib.blake2b(image.tobytes(), key=key, digest_size=size).digest()


def image_digests(pixels: Tensor) -> list[bytes]:
    """16 bytes for every image, for comparing within one process: far less memory than the images themselves."""
    return [digest(row, b"", 16) for row in pixels.cpu().numpy()]
