"""Veilset: from a sensitive, labelled image collection to a synthetic one that may be shared."""

from veilset.api import continual, fit, plan
from veilset.data import ImageSet, ImageSpec, load, stream
from veilset.errors import VeilsetError
from veilset.methods.base import all_methods
from veilset.model import Model, from_pretrained
from veilset.privacy.claim import Claim
from veilset.version import __version__

__all__ = [
    "Claim",
    "ImageSet",
    "ImageSpec",
    "Model",
    "VeilsetError",
    "__version__",
    "all_methods",
    "continual",
    "fit",
    "from_pretrained",
    "load",
    "plan",
    "stream",
]
