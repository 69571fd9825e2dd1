"""Reading, describing, splitting and writing labelled image collections."""

from veilset.data.declared import suggest_declared_size
from veilset.data.known import KNOWN
from veilset.data.lazy import LazyImages
from veilset.data.load import inspect, load, stream
from veilset.data.shards import assign_shards, record_ids
from veilset.data.spec import Images, ImageSet, ImageSpec, Source, to_bytes, to_unit_range
from veilset.data.write import check_apart, check_writable, is_archive, write_folder, write_images, write_npz

KNOWN_NAMES = tuple(KNOWN)
"""Names of public data sets that `load` accepts in place of a path."""

__all__ = [
    "KNOWN_NAMES",
    "ImageSet",
    "ImageSpec",
    "Images",
    "LazyImages",
    "Source",
    "assign_shards",
    "check_apart",
    "check_writable",
    "inspect",
    "is_archive",
    "load",
    "record_ids",
    "stream",
    "suggest_declared_size",
    "to_bytes",
    "to_unit_range",
    "write_folder",
    "write_images",
    "write_npz",
]
