"""Veilset: from a sensitive, labelled image collection to a synthetic one that may be shared."""

__version__ = "0.1.0"

from veilset.api import continual, fit, plan
from veilset.data import ImageSet, ImageSpec, load, stream
from veilset.errors import VeilsetError
from veilset.methods.base import all_methods
from veilset.model import Model, from_pretrained
from veilset.privacy.claim import Claim

__all__ = [
    "Claim",
    "ImageSet",
    "ImageSpec",
    "Model",
    "VeilsetError",
    "all_methods",
    "continual",
    "fit",
    "from_pretrained",
    "load",
    "plan",
    "stream",
]
