"""A1, the noise-free sensitivity search: can one record move a release further than its declared bound?

Both worlds run the real `fit` with the same coins and without noise, and every value handed to the door is kept. World
B is shown the public outputs of world A, step by step, so each release is compared given the same transcript: that is
exactly what adaptive composition needs, and it lets a critic's hidden state drift apart as far as it can. The search
finds wrong bounds, normalisation by a batch or by the data, hidden heads trained on the data, and shards that shift.

Methods that draw records at random are searched with neighbours that keep every other record's place, because the coins
belong to places: a record that is absent is a null record there, of another class. And with coins that draw everybody,
where a record may really be absent and later ones move up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veilset.data.spec import ImageSet, ImageSpec
from veilset.methods.base import FitContext, PublicFacts
from veilset.privacy.bounds import Adjacency, Bounded, GroupedSum
from veilset.privacy.events import NOTHING, Event, Gaussian, PoissonSampled, ShardTouched, steps
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import SeededNoise
from veilset.privacy.release import Door
from veilset.privacy.sampling import Draw

TOLERANCE = 1e-6
NOISE_MULTIPLIER = 1.0


class SameCoins(SeededNoise):
    """Reproducible draws, no noise."""

    def normal(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(count, dtype=torch.float64, device=device)


class Everybody(SameCoins):
    """Every record is drawn every time, wherever it stands."""

    def uniform(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.full((count,), 1e-9, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class Capture:
    """One release before its noise: integers on the grid, and how far they may move."""

    values: Tensor
    grid_step: float
    allowed: float
    grouped: bool
    """Whether the first axis is the label of the records, so that other labels must not move at all."""
    shard: int | None = None


@dataclass(frozen=True)
class RecordingDoor(Door):
    """The real door, ledger and all; keeps what goes in and, in world B, gives out what came out in world A."""

    captures: list[Capture] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    transcript: list[Tensor] | None = None

    def release_sum(self, total: GroupedSum, noise_multiplier: float, *, draw: Draw | None = None) -> Tensor:
        draw, shard = _with_shard(draw)
        out = super().release_sum(total, noise_multiplier, draw=draw)
        assert total.grid_total is not None
        allowed = total.sensitivity(self.ledger.adjacency)
        grouped = total.num_groups > 1
        return self._keep(Capture(total.grid_total.cpu().clone(), total.grid_step, allowed, grouped, shard()), out)

    def release_rows(self, rows: Bounded, noise_multiplier: float, *, draw: Draw | None = None) -> Tensor:
        draw, shard = _with_shard(draw)
        out = super().release_rows(rows, noise_multiplier, draw=draw)
        allowed = 2 * rows.bound * max(len(rows), 1) ** 0.5
        return self._keep(Capture(rows.grid_rows.cpu().clone(), rows.grid_step, allowed, False, shard()), out)

    def _keep(self, capture: Capture, out: Tensor) -> Tensor:
        self.captures.append(capture)
        if self.transcript is not None and len(self.outputs) < len(self.transcript):
            out = self.transcript[len(self.outputs)].to(out.device).clone()
        self.outputs.append(out.cpu().clone())
        return out


def _with_shard(draw: Draw | None) -> tuple[Draw | None, Callable[[], int | None]]:
    """The draw, and the shard it turns out to touch, if it is a draw of shards."""
    if draw is None:
        return None, lambda: None
    seen: list[Event] = []

    def price(event: Event, absence: float) -> Event:
        seen.append(draw.price(event, absence))
        return seen[-1]

    spied = Draw(draw.indices, price, draw.paid)
    return spied, lambda: int(draw.indices[0]) if isinstance(seen[0], ShardTouched) else None


class Memory(dict[str, dict[str, Tensor]]):
    """Checkpoints that live as long as one world."""

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self[name] = {key: value.detach().clone() for key, value in tensors.items()}

    def load(self, name: str) -> dict[str, Tensor] | None:
        return self.get(name)


def run_world(
    method: Any,
    config: Any,
    facts: PublicFacts,
    images: ImageSet,
    *,
    transcript: list[Tensor] | None = None,
    seed: int = 0,
    device: str = "cpu",
    coins: type[SameCoins] = SameCoins,
) -> RecordingDoor:
    """Fits once without noise; returns the door with all it saw."""
    planned = method.events(config, facts, NOISE_MULTIPLIER) if hasattr(method, "events") else Gaussian(1.0)
    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger.open_new(
            Path(folder) / "ledger.jsonl", planned=planned, reserve=NOTHING, adjacency=facts.adjacency,
            unit=facts.unit, delta=1e-5, not_private="sensitivity search",
        )  # fmt: skip
        door = RecordingDoor(ledger, coins(seed), transcript=transcript)
        context = FitContext(
            door=door, facts=facts, noise_multiplier=NOISE_MULTIPLIER, shard_key=b"k" * 32, seed=seed,
            device=torch.device(device), checkpoints=Memory(), progress=lambda *_: None,
        )  # fmt: skip
        try:
            method.fit(config, images, context)
        finally:
            ledger.unlock()
    return door


@dataclass(frozen=True)
class Pair:
    """Two neighbouring collections, and the labels of what differs between them."""

    name: str
    first: ImageSet
    second: ImageSet
    labels: frozenset[int]


def violations(
    method: Any,
    config: Any,
    facts: PublicFacts,
    pairs: Iterator[Pair],
    device: str = "cpu",
    coins: type[SameCoins] = SameCoins,
) -> list[str]:
    """Every way in which one unit moved a release too far, in words; empty if none was found."""
    found: list[str] = []
    worlds: dict[int, RecordingDoor] = {}
    kept: list[ImageSet] = []  # keeps ids of `worlds` alive
    for pair in pairs:
        if id(pair.first) not in worlds:
            worlds[id(pair.first)] = run_world(method, config, facts, pair.first, device=device, coins=coins)
            kept.append(pair.first)
        one = worlds[id(pair.first)]
        other = run_world(
            method, config, facts, pair.second, transcript=one.outputs, device=device, coins=coins
        )  # fmt: skip
        found += [f"{pair.name}: {what}" for what in _differences(one.captures, other.captures, pair)]
    return found


def _differences(one: list[Capture], other: list[Capture], pair: Pair) -> Iterator[str]:
    if len(one) != len(other):
        yield f"{len(one)} releases against {len(other)}"
    touched = set()
    for step, (a, b) in enumerate(zip(one, other, strict=False)):
        if (a.values.shape, a.grid_step, a.allowed) != (b.values.shape, b.grid_step, b.allowed):
            yield f"release {step}: shape or declared bound depends on the data"
            continue
        moved = (a.values - b.values).to(torch.float64) * a.grid_step
        distance = float(moved.norm())
        if distance > a.allowed * (1 + TOLERANCE):
            yield f"release {step}: moved by {distance:.6g}, allowed {a.allowed:.6g}"
        kinds = len(moved) // pair.first.spec.num_classes
        if a.grouped and bool(moved[[row for row in range(len(moved)) if row // kinds not in pair.labels]].any()):
            yield f"release {step}: the sum of another label moved"
        if a.shard != b.shard:
            yield f"release {step}: the shard drawn depends on the data"
        if a.shard is not None and distance > 0:
            touched.add(a.shard)
    if len(touched) > 1:
        yield f"one unit moved the answers of shards {sorted(touched)}"


def strange_records(spec: ImageSpec, seed: int = 0) -> dict[str, tuple[Tensor, bool]]:
    """Pixels and validity of records an adversary might add."""
    draws = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, spec.shape, generator=draws, dtype=torch.uint8)
    return {
        "zeros": (torch.zeros(spec.shape, dtype=torch.uint8), True),
        "all 255": (torch.full(spec.shape, 255, dtype=torch.uint8), True),
        "random": (noise, True),
        "black or white": ((noise > 127).to(torch.uint8) * 255, True),
        "null": (noise, False),
    }


def inserted(images: ImageSet, place: int, pixels: Tensor, label: int, valid: bool) -> ImageSet:
    """`images` with one more record, after which every later one has moved by a place."""

    def with_one(column: Tensor, value: Tensor) -> Tensor:
        return torch.cat([column[:place], value[None].to(column.dtype), column[place:]])

    return ImageSet(
        spec=images.spec,
        pixels=with_one(images.pixels, pixels),
        labels=with_one(images.labels, torch.tensor(label)),
        valid=with_one(images.valid, torch.tensor(valid)),
    )


def draws_records(method: Any, config: Any, facts: PublicFacts) -> bool:
    """Whether a method's releases are about secret samples of the records."""
    events = getattr(method, "events", lambda *_: NOTHING)(config, facts, NOISE_MULTIPLIER)
    return any(isinstance(step, PoissonSampled) for step in steps(events))


def neighbours(
    base: Callable[[int], ImageSet], sizes: tuple[int, ...], adjacency: Adjacency, *, in_place: bool = False
) -> Iterator[Pair]:
    """Adversarial neighbours: strange records at the first, a middle and the last place of collections of each size.

    With `in_place` a record that is added takes the place of a null record.
    """
    for size in sizes:
        images = base(size)
        last_label = images.spec.num_classes - 1
        for name, (pixels, valid) in strange_records(images.spec, seed=size).items():
            for place in sorted({0, size // 2, size}):
                more = inserted(images, place, pixels, place % images.spec.num_classes, valid)
                where = f"{name} at {place} of {size}"
                if adjacency is Adjacency.ADD_REMOVE:
                    without = nulled(more, place, relabelled=True).second if in_place else images
                    yield Pair(f"added {where}", without, more, frozenset({place % images.spec.num_classes}))
                elif place < size:
                    removed = torch.arange(size + 1) != place + 1  # the record that stood at `place`
                    labels = {place % images.spec.num_classes, int(images.labels[place])}
                    yield Pair(f"replaced by {where}", images, more.subset(removed), frozenset(labels))
        if adjacency is Adjacency.REPLACE and size:
            opposite = inserted(images.subset(torch.arange(1, size)), 0, 255 - images.pixels[0], last_label, True)
            labels = {last_label, int(images.labels[0])}
            yield Pair(f"replaced by its negative in {size}", images, opposite, frozenset(labels))


def nulled(images: ImageSet, place: int, *, relabelled: bool = False) -> Pair:
    """A record turned into a null record: the same as removing it, with every other one in its place."""
    without = with_nulls(images, torch.arange(len(images)) == place, relabelled=relabelled)
    return Pair(f"nulled {place} of {len(images)}", images, without, frozenset({int(images.labels[place])}))


def with_nulls(images: ImageSet, gone: Tensor, *, relabelled: bool = False) -> ImageSet:
    """`images` with null records where the mask `gone` is True; `relabelled`, of another class each."""
    labels = (images.labels + gone) % images.spec.num_classes if relabelled else images.labels
    return ImageSet(
        spec=images.spec, pixels=images.pixels, labels=labels, valid=images.valid & ~gone, users=images.users
    )  # fmt: skip
