"""Images that somebody declared public, from which networks may learn without noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from veilset.budget import DatasetBudget
from veilset.data.fingerprints import KEY_BYTES, fingerprints
from veilset.data.load import load
from veilset.data.options import Fit
from veilset.data.spec import Images, ImageSet
from veilset.errors import ConfigError
from veilset.privacy.noise import NoiseSource


def public_images(name: str, private: Images) -> ImageSet:
    """The images that were declared public, in the shape of the private ones.

    Raises: ConfigError, before anything is released, for images that have a budget or are private ones.
    """
    spec = private.spec
    # As the private ones were read: else copies of them would have other pixels.
    fit: Fit = "stretch" if private.source.fit == "stretch" else "crop"
    public = load(name, size=(spec.height, spec.width), fit=fit, color=spec.color)
    fault = _fault(public, private)
    if fault is not None:
        raise ConfigError(
            "public images", fault, "Give images that anybody may see: a network learns from them without noise."
        )
    return public.in_memory()


def _fault(public: Images, private: Images) -> str | None:
    paths = [None if source.path is None else Path(source.path).resolve() for source in (public.source, private.source)]
    if paths[0] is not None and paths[0] == paths[1]:
        return "the private ones"
    if paths[0] is not None and public.source.benchmark is None and DatasetBudget.find(paths[0]) is not None:
        return "images with a privacy budget"
    key = NoiseSource().key_bytes(KEY_BYTES)
    shared = np.intersect1d(fingerprints(public, key), fingerprints(private, key))
    return "some of the private ones among them" if len(shared) else None
