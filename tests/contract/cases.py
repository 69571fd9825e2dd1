"""What the contract suite runs every method on: tiny settings, tiny collections, and how to run them.

A new method needs one entry in `TINY`; everything else of the suite then applies to it unasked.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import veilset
from veilset.artifact import update_manifest
from veilset.data.spec import ImageSet, ImageSpec, Source
from veilset.methods.plan import Plan
from veilset.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated, ShardTouched

METHODS = tuple(veilset.all_methods())

SHARD_TAUGHT: dict[str, Any] = {
    "shards": 5,
    "steps": 4,
    "images_per_step": 3,
    "critic_width": 4,
    "critic_batch": 2,
    "critic_steps": 1,
    "warm_up": 1,
    "latent_size": 2,
    "channels": 8,
}
TINY: dict[str, dict[str, Any]] = {
    "dp-merf": {
        "frequencies": 8,
        "latent_size": 2,
        "hidden_size": 8,
        "map_channels": 8,
        "steps": 5,
        "images_per_step": 6,
    },
    "dpac": {**SHARD_TAUGHT, "classifier_start": 0.25, "fake_steps": 1, "real_steps": 2},
    "dpaf": {
        "layout": "C1-C1-x",
        "width": 16,
        "dense_width": 16,
        "classifier_steps": 2,
        "steps": 4,
        "asymmetry": 2,
        "expected_batch": 5,
        "latent_size": 2,
        "channels": 8,
    },
    "gs-wgan": SHARD_TAUGHT,
    "ndpdc": {"images_per_class": 4, "steps": 4, "group": 2, "width": 16},
    "psg": {
        "images_per_class": 4,
        "runs": 2,
        "rounds": 2,
        "steps": 1,
        "epochs": 2,
        "width": 16,
        "expected_batch": 5,
    },
    "sketch": {
        "networks": 2,
        "width": 4,
        "kinds": 2,
        "trained_networks": 2,
        "network_steps": 2,
        "latent_size": 2,
        "channels": 8,
        "first_steps": 2,
        "steps": 3,
        "images_per_class": 2,
        "networks_per_step": 1,
        "training_images": 30,
    },
}
"""Settings under which a fit of a method takes well under a second."""

QUICKEST: dict[str, dict[str, Any]] = {
    "dp-merf": {"steps": 1},
    "dpac": {},
    "dpaf": {"expected_batch": 40},
    "gs-wgan": {},
    "ndpdc": {"steps": 2, "group": 15},
    "psg": {"rounds": 1, "expected_batch": 50},
    "sketch": {"steps": 1, "first_steps": 1, "network_steps": 1},
}
"""On top of `TINY` for the sensitivity search, which runs hundreds of fits and looks at releases only."""


def make_images(
    counts: Iterable[int] = (7, 5, 3),
    *,
    height: int = 8,
    width: int = 8,
    channels: int = 1,
    seed: int = 0,
    null_rows: Iterable[int] = (),
    per_user: int | None = None,
    source: Source | None = None,
) -> ImageSet:
    """`counts[k]` random images of class k, in shuffled order."""
    counts = tuple(counts)
    draws = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=draws)]
    spec = ImageSpec(
        height=height, width=width, channels=channels, class_names=tuple(f"kind {k}" for k in range(len(counts)))
    )
    pixels = torch.randint(0, 256, (len(labels), *spec.shape), generator=draws, dtype=torch.uint8)
    valid = torch.ones(len(labels), dtype=torch.bool)
    valid[list(null_rows)] = False
    users = None if per_user is None else tuple(f"person {row // per_user}" for row in range(len(labels)))
    return ImageSet(
        spec=spec, pixels=pixels, labels=labels, valid=valid, users=users, source=source or Source(), ids=None
    )


def tiny_plan(images: ImageSet, method: str, **options: Any) -> Plan:
    settings = {"epsilon": 5.0, "declared_size": 20, **TINY[method], **options}
    return veilset.plan(images.spec, method=method, **settings)


def num_releases(counts: Counter[Event]) -> int:
    """How often noise is drawn for charges: one draw may feed several releases, which are charged together."""

    def within(event: Event) -> int:
        match event:
            case Gaussian():
                return 1
            case Composed(events):
                return sum(map(within, events))
            case Repeated(count, inner):
                return count * within(inner)
            case PoissonSampled(_, inner) | ShardTouched(_, _, inner):
                return within(inner)

    return sum(count * within(event) for event, count in counts.items())


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """A hash of names and bytes, to compare weights across processes."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def rewrite_json(path: Path, **changes: Any) -> None:
    """Changes fields of a JSON file of a release and repairs the manifest, as a forger would."""
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps(value))
    update_manifest(path.parent)


def rewrite_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    update_manifest(path.parent)
