"""Features of real images, kept in the owner's vault: they are computed once and never leave it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor

from veilset.errors import RunError
from veilset.evaluate.extractors import Extractor
from veilset.files import one_at_a_time, write_atomically

logger = logging.getLogger(__name__)

CHUNK = 2048
"""Images between two reports of progress."""
LOCK = ".cache.lock"
Tick = Callable[[int], None]
"""Called with the number of images just done."""


def extract(pixels: Tensor, extractor: Extractor, tick: Tick) -> Tensor:
    """Features of all images. Real and synthetic ones come through here, so that both are treated alike."""
    found = []
    for chunk in pixels.split(CHUNK):
        found.append(extractor.features(chunk))
        tick(len(chunk))
    return torch.cat(found)


def extract_cached(pixels: Tensor, extractor: Extractor, tick: Tick, folder: Path | None) -> Tensor:
    """As `extract`, from the vault where these very images went through this very extractor before."""
    if folder is None:
        return extract(pixels, extractor, tick)
    path = folder / f"features-{cache_key(pixels, extractor.hash)}.safetensors"
    with alone_in(folder):
        known = _read(path, (len(pixels), extractor.dim))
        if known is not None:
            tick(len(pixels))
            return known
        features = extract(pixels, extractor, tick)
        write_private(path, safetensors_save({"features": features.contiguous()}))
        return features


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Evaluations side by side wait until the first has filled a cache: they need the same, and would write it, too."""
    _make_private(folder)
    with one_at_a_time(folder / LOCK):
        yield


def cache_key(pixels: Tensor, *facts: str) -> str:
    """Names the contents without showing them; any other byte, order, shape or fact gives another key."""
    digest = hashlib.sha256(json.dumps([list(pixels.shape), *facts]).encode())
    digest.update(pixels.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:32]


def write_private(path: Path, data: bytes) -> None:
    """A file only the owner can read, in a folder only the owner can enter."""
    _make_private(path.parent)
    write_atomically(path, data, mode=0o600)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RunError(f"to create {folder}", f"{error.strerror or error}", "Choose another folder.") from error


def _read(path: Path, shape: tuple[int, int]) -> Tensor | None:
    try:
        # The size first: a broken file must not be able to fill the memory.
        if path.stat().st_size > 4 * math.prod(shape) + (1 << 16):
            raise ValueError("too large")
        features = safetensors_load(path.read_bytes())["features"]
        if features.dtype != torch.float32 or tuple(features.shape) != shape or not bool(features.isfinite().all()):
            raise ValueError("not these features")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        logger.warning("cached features in %s are unusable (%s): computing them again", path, error)
        return None
    return features
