"""No neighbour moves any release of any method beyond its declared bound; and the search would notice if one did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from devices import DEVICES
from torch import Tensor, nn

import veilset
from veilset.data.shards import assign_shards
from veilset.data.spec import ImageSet, to_unit_range
from veilset.methods.base import FitContext, PublicFacts, make_config
from veilset.privacy.bounds import Adjacency, Bounded, GroupedSum, Unit, clip_rows
from veilset.privacy.events import Event, Gaussian, Repeated, ShardTouched
from veilset.privacy.sampling import shard_draw
from veilset.randomness import initialise

from .cases import METHODS, QUICKEST, TINY, make_images
from .sensitivity import (
    Everybody,
    Pair,
    draws_records,
    inserted,
    neighbours,
    nulled,
    run_world,
    strange_records,
    violations,
    with_nulls,
)

SIZES = (0, 1, 2, 3, 4, 5, 37, 38, 250, 498, 499, 500, 501, 502, 999, 1000, 1001)
"""Around the 500 records of a batch: adding one makes a second batch, or shifts the last record into it."""
SIZES_OF_SAMPLES = (0, 1, 2, 16, 17, 40)
"""For methods that draw half of the records: around the 8 records of a batch."""


def collection(size: int, **options: Any) -> ImageSet:
    return make_images(counts=(size - size // 3 - size // 5, size // 3, size // 5), seed=size, **options)


def facts_for(images: ImageSet, adjacency: Adjacency, **options: Any) -> PublicFacts:
    return PublicFacts(spec=images.spec, declared_size=100, adjacency=adjacency, **{"unit": Unit.RECORD, **options})


def search(
    method: Any, config: Any, adjacency: Adjacency, *, sizes: tuple[int, ...] = SIZES, device: str = "cpu", **shape: Any
) -> list[str]:
    facts = facts_for(collection(1, **shape), adjacency)
    drawn = draws_records(method, config, facts)
    sizes = SIZES_OF_SAMPLES if drawn else sizes
    pairs = neighbours(lambda size: collection(size, **shape), sizes, adjacency, in_place=drawn)
    in_place = (nulled(collection(size, **shape), size // 2) for size in sizes if size)
    return violations(method, config, facts, chain(pairs, in_place), device)


def registered(name: str) -> tuple[Any, Any]:
    method = veilset.all_methods()[name]
    return method, make_config(method, {**TINY[name], **QUICKEST[name]})


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_neighbour_moves_a_release_beyond_its_bound(name: str, adjacency: Adjacency) -> None:
    assert search(*registered(name), adjacency) == []


DRAWING = [name for name in METHODS if draws_records(*registered(name), facts_for(collection(1), Adjacency.ADD_REMOVE))]


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_record_that_is_really_absent_moves_a_release_of_a_sample_beyond_its_bound(
    name: str, adjacency: Adjacency
) -> None:
    """Everybody is in every sample, so that later records move up by a place and batches have other mates."""
    pairs = neighbours(collection, (1, 8, 17), adjacency)
    facts = facts_for(collection(1), adjacency)
    assert violations(*registered(name), facts, pairs, coins=Everybody) == []


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("device", DEVICES)
def test_no_neighbour_moves_a_release_of_colour_images_of_odd_size(name: str, device: str) -> None:
    shape = {"channels": 3, "height": 9, "width": 13}
    assert search(*registered(name), Adjacency.ADD_REMOVE, sizes=(3, 500), device=device, **shape) == []


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_user_with_more_images_than_the_cap_moves_a_release_beyond_its_bound(
    name: str, adjacency: Adjacency
) -> None:
    images = make_images(counts=(20, 11), per_user=5)
    people = sorted(set(images.users or ()))
    method, config = registered(name)
    facts = facts_for(images, adjacency, unit=Unit.USER, rows_per_user=2)

    def pairs() -> Iterator[Pair]:
        for person in people:
            theirs = torch.tensor([user == person for user in images.users or ()])
            labels = frozenset(images.labels[theirs].tolist())
            if adjacency is Adjacency.ADD_REMOVE:
                in_place = draws_records(method, config, facts)
                without = with_nulls(images, theirs, relabelled=True) if in_place else images.subset(~theirs)
                yield Pair(f"all of {person}", images, without, labels)
            inverted = images.pixels.clone()
            inverted[theirs] = 255 - inverted[theirs]
            other = ImageSet(spec=images.spec, pixels=inverted, labels=images.labels, users=images.users)
            if adjacency is Adjacency.REPLACE:
                yield Pair(f"{person} replaced", images, other, labels)

    assert violations(method, config, facts, pairs()) == []


class Toy:
    """A method that sums one clipped row per record; what the row is decides whether the sum is private."""

    def __init__(self, rows: Callable[[ImageSet], Tensor]) -> None:
        self.rows = rows

    def fit(self, config: Any, images: ImageSet, context: FitContext) -> None:
        total = GroupedSum(images.spec.num_classes)
        total.add(clip_rows(self.rows(images), 1.0), images.labels)
        context.door.release_sum(total, context.noise_multiplier)


def pixels_of(images: ImageSet) -> Tensor:
    flat = to_unit_range(images.pixels).flatten(1)
    return torch.where(images.valid[:, None], flat, torch.nan)


def test_the_search_passes_a_sum_of_clipped_rows() -> None:
    assert search(Toy(pixels_of), None, Adjacency.ADD_REMOVE, sizes=(0, 1, 38, 500)) == []
    assert search(Toy(pixels_of), None, Adjacency.REPLACE, sizes=(1, 38)) == []


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda images: pixels_of(images) - pixels_of(images).nanmean(0), id="centred by the data's mean"),
        pytest.param(
            lambda images: pixels_of(images) / pixels_of(images).nan_to_num().sum().clamp(min=1) * 30,
            id="scaled by the data's brightness",
        ),
        pytest.param(lambda images: pixels_of(images) / max(len(images), 1), id="divided by the exact record count"),
        pytest.param(
            lambda images: (
                torch.nn.functional.batch_norm(pixels_of(images).nan_to_num(), None, None, training=True)
                if len(images) > 1
                else pixels_of(images)
            ),
            id="batch norm",
        ),
        pytest.param(
            lambda images: pixels_of(images) + torch.arange(len(images))[:, None] / 50, id="uses the row number"
        ),
    ],
)
def test_the_search_flags_rows_that_depend_on_other_records(rows: Callable[[ImageSet], Tensor]) -> None:
    assert search(Toy(rows), None, Adjacency.ADD_REMOVE, sizes=(2, 37, 499)) != []


class Unclipped(Toy):
    """Declares a bound of 1 and adds rows of up to 3, through a forged grid."""

    def fit(self, config: Any, images: ImageSet, context: FitContext) -> None:
        total = GroupedSum(images.spec.num_classes)
        bounded = clip_rows(self.rows(images), 1.0)
        total.add(bounded, images.labels)
        assert total.grid_total is not None
        total.grid_total *= 3
        context.door.release_sum(total, context.noise_multiplier)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_search_flags_a_bound_that_is_too_small(adjacency: Adjacency) -> None:
    assert search(Unclipped(pixels_of), None, adjacency, sizes=(2,)) != []


class SteppedToy:
    """Several releases of per-record gradients of a public weight, clipped; with or without a hidden head."""

    steps = 4

    def __init__(self, *, hidden_head: bool) -> None:
        self.hidden_head = hidden_head

    def events(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Repeated(self.steps, Gaussian(noise_multiplier))

    def rounds(self, images: ImageSet) -> int:
        return self.steps

    def fit(self, config: Any, images: ImageSet, context: FitContext) -> None:
        values = pixels_of(images)
        weight = torch.full((images.spec.num_values,), 0.01)
        head = torch.ones(())
        for _ in range(self.rounds(images)):
            # gradient of (head * w.x - 1)^2 / 2 with respect to w, for every record on its own
            rows = head * (head * values @ weight - 1)[:, None] * values
            total = GroupedSum(1)
            total.add(clip_rows(rows, 1.0), torch.zeros(len(images), dtype=torch.int64))
            step = context.door.release_sum(total, context.noise_multiplier)
            if self.hidden_head:  # plain SGD on the data, never released: DPAF's mistake
                head = head - 0.2 * ((head * values @ weight - 1) * (values @ weight)).nansum()
            weight = weight - 1e-4 * step.flatten().float()


def test_the_search_passes_several_steps_through_public_weights() -> None:
    assert search(SteppedToy(hidden_head=False), None, Adjacency.ADD_REMOVE, sizes=(2, 37)) == []


def test_the_search_flags_a_hidden_head_trained_on_the_data() -> None:
    found = search(SteppedToy(hidden_head=True), None, Adjacency.ADD_REMOVE, sizes=(37,))
    assert found
    assert not any("release 0:" in what for what in found), "the first step is sound: only the state breaks it"


class ShardedToy:
    """A critic per shard answers in turn for one public fake; critics keep their state between their turns."""

    shards = 3
    steps = 9

    def __init__(self, *, by_row_number: bool) -> None:
        self.by_row_number = by_row_number

    def events(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Repeated(self.steps, ShardTouched(self.shards, "round-robin", Gaussian(noise_multiplier)))

    def fit(self, config: Any, images: ImageSet, context: FitContext) -> None:
        if self.by_row_number:
            shard_of = torch.arange(len(images)) % self.shards
        else:
            shard_of = assign_shards(images, self.shards, context.shard_key, Unit.RECORD)
        critics = [
            initialise(nn.Linear(images.spec.num_values, 1), context.generator(f"critic {k}"))
            for k in range(self.shards)
        ]
        fake = torch.full((1, images.spec.num_values), 0.5)
        for step in range(self.steps):
            draw = shard_draw(step, self.shards, "round-robin", context.door.noise)
            critic = critics[int(draw.indices)]
            mine = pixels_of(images.subset(shard_of == int(draw.indices))).nan_to_num()
            with torch.no_grad():
                critic.weight += (mine.sum(0) - len(mine) * fake) * 0.01
            rows = self.answer(critic, fake)
            fake = fake + 0.1 * context.door.release_rows(rows, context.noise_multiplier, draw=draw).float()

    @staticmethod
    def answer(critic: Any, fake: Tensor) -> Bounded:
        return clip_rows(critic.weight.expand_as(fake), 1.0)


def test_the_search_passes_shards_by_keyed_hash() -> None:
    assert search(ShardedToy(by_row_number=False), None, Adjacency.ADD_REMOVE, sizes=(2, 37)) == []


def test_the_search_flags_shards_by_row_number_because_one_record_shifts_them_all() -> None:
    found = search(ShardedToy(by_row_number=True), None, Adjacency.ADD_REMOVE, sizes=(37,))
    assert any("moved the answers of shards" in what for what in found)


def test_the_search_flags_a_number_of_releases_that_depends_on_the_data() -> None:
    class StopsEarly(SteppedToy):
        def rounds(self, images: ImageSet) -> int:
            return min(len(images), self.steps)

    found = search(StopsEarly(hidden_head=False), None, Adjacency.ADD_REMOVE, sizes=(2,))
    assert any("releases against" in what for what in found)


def test_a_record_moves_a_dp_merf_sum_by_exactly_its_own_row() -> None:
    method, config = registered("dp-merf")
    for size in (0, 37, 500):
        images = collection(size)
        facts = facts_for(images, Adjacency.ADD_REMOVE)
        for pixels, valid in strange_records(images.spec).values():
            more = inserted(images, size // 2, pixels, 1, valid)
            alone = inserted(images.subset(torch.zeros(0, dtype=torch.int64)), 0, pixels, 1, valid)
            sums = [run_world(method, config, facts, world).captures[0].values for world in (images, more, alone)]
            assert torch.equal(sums[1] - sums[0], sums[2])
            assert bool(sums[2].any()) == valid


def test_the_search_tries_more_than_four_hundred_neighbours() -> None:
    tried = sum(len(list(neighbours(collection, SIZES, adjacency))) for adjacency in Adjacency)
    assert tried + 2 * (len(SIZES) - 1) > 400
