"""The vector of correct counts: what it holds, how far one test image can move it, and that a search would notice."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from contract.cases import make_images
from contract.sensitivity import Pair, neighbours, nulled, run_world, violations
from torch import Tensor
from utility_toys import toy

from veilset.data.spec import ImageSet
from veilset.errors import ConfigError
from veilset.evaluate import noisy
from veilset.evaluate.noisy import count_correct
from veilset.evaluate.utility import fitted_classifiers, gen2real
from veilset.methods.base import FitContext, PublicFacts
from veilset.privacy.bounds import Adjacency, GroupedSum, Unit
from veilset.score_release import row_bound

Predictor = Callable[[Tensor], Tensor]
SIZES = (0, 1, 2, 37)


def always(label: int) -> Predictor:
    return lambda images: torch.full((len(images),), label)


def by_brightness(images: Tensor) -> Tensor:
    return (images.double().mean(dim=(1, 2, 3)) > 127).long()


def counts_of(total: GroupedSum) -> list[float]:
    assert total.grid_total is not None
    return (total.grid_total.double() * total.grid_step).flatten().tolist()


def collection(size: int, **options: Any) -> ImageSet:
    return make_images((size - size // 3 - size // 5, size // 3, size // 5), seed=size, **options)


class Counted:
    """Releases the vector as a method would, so that the sensitivity search can watch it."""

    def __init__(self, make: Callable[[], list[Predictor]]) -> None:
        self.make = make

    def total(self, images: ImageSet, facts: PublicFacts) -> GroupedSum:
        made = self.make()
        return count_correct(made, len(made), images, unit=facts.unit, images_per_user=facts.rows_per_user)

    def fit(self, config: Any, images: ImageSet, context: FitContext) -> None:
        context.door.release_sum(self.total(images, context.facts), context.noise_multiplier)


def search(method: Counted, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> list[str]:
    facts = PublicFacts(spec=collection(1).spec, declared_size=100, adjacency=adjacency, unit=Unit.RECORD)
    in_place = (nulled(collection(size), size // 2) for size in SIZES if size)
    return violations(method, None, facts, chain(neighbours(collection, SIZES, adjacency), in_place))


def test_the_vector_holds_the_correct_answers_of_every_classifier_and_the_number_of_images() -> None:
    images = make_images((6, 3, 2))
    counts = counts_of(count_correct([always(0), always(1), always(2)], 3, images))
    assert counts == pytest.approx([6, 3, 2, 11], rel=1e-5)


def test_unreadable_images_count_nowhere() -> None:
    images = make_images((6, 3, 2))
    damaged = replace(images, valid=images.labels != 0)
    assert counts_of(count_correct([always(0), always(1)], 2, damaged)) == pytest.approx([0, 3, 5], rel=1e-5)


def test_it_agrees_with_the_exact_scores_of_the_same_classifiers() -> None:
    train, test = toy("train"), toy("test", 60)
    chosen = {"classifiers": ("mlp", "gaussian-nb"), "seeds": (0, 1)}
    fitted = fitted_classifiers(train, device=torch.device("cpu"), warn=print, **chosen)
    *correct, total = counts_of(count_correct(fitted, 4, test))
    exact = [value for score in gen2real(train, test, **chosen) for value in score.details["per_seed"]]
    assert [value / total for value in correct] == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_test_image_moves_the_vector_beyond_its_bound(adjacency: Adjacency) -> None:
    assert search(Counted(lambda: [always(0), always(1), by_brightness]), adjacency) == []


def test_the_bound_is_reached_by_an_image_that_all_classifiers_know() -> None:
    images = make_images((5,))
    facts = PublicFacts(spec=images.spec, declared_size=9, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    one, other = (
        run_world(Counted(lambda: [always(0)] * 8), None, facts, world).captures[0]
        for world in (images, images.subset(torch.arange(4)))
    )
    moved = float((one.values - other.values).double().norm()) * one.grid_step
    assert one.allowed == pytest.approx(math.sqrt(8 + 1))
    assert moved == pytest.approx(one.allowed, rel=1e-4)
    assert moved <= one.allowed


def test_an_answer_is_given_to_each_image_alone_so_that_a_batch_cannot_carry_it_elsewhere() -> None:
    sizes: list[int] = []

    def looks_at_its_batch(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return (images.double().mean() > 127).long().expand(len(images))

    assert search(Counted(lambda: [looks_at_its_batch])) == []
    assert set(sizes) == {1}


def test_sabotage_judging_in_batches_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole_batch(predict: Predictor, images: ImageSet) -> Tensor:
        return (predict(images.pixels) == images.labels) & images.valid

    monkeypatch.setattr(noisy, "_correct", whole_batch)
    method = Counted(lambda: [lambda images: (images.double().mean() > 127.5).long().expand(len(images))] * 3)
    assert search(method) != []


def test_sabotage_a_classifier_that_learns_from_test_images_would_be_noticed() -> None:
    def learner() -> Predictor:
        seen: list[float] = []

        def predict(images: Tensor) -> Tensor:
            seen.append(float(images.double().mean()))
            return torch.full((len(images),), int(seen[0] > 127))

        return predict

    assert search(Counted(lambda: [learner()])) != []


def test_sabotage_an_image_that_counts_twice_would_be_noticed() -> None:
    class Twice(Counted):
        def total(self, images: ImageSet, facts: PublicFacts) -> GroupedSum:
            total = super().total(images, facts)
            assert total.grid_total is not None
            total.grid_total *= 2
            return total

    assert search(Twice(lambda: [always(0)])) != []


def test_a_bound_that_is_declared_too_small_shrinks_the_rows_and_never_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy, "row_bound", lambda count: 1.0)
    assert search(Counted(lambda: [always(0), always(1)])) == []
    assert max(counts_of(count_correct([always(0)], 1, make_images((5, 5))))) < 9


def test_a_person_with_more_images_than_the_cap_moves_the_vector_by_the_cap() -> None:
    images = make_images((20, 11), per_user=5)
    facts = PublicFacts(
        spec=images.spec, declared_size=31, adjacency=Adjacency.ADD_REMOVE, unit=Unit.USER, rows_per_user=2
    )
    people = sorted(set(images.users or ()))
    pairs = (
        Pair(name, images, images.subset(torch.tensor([user != name for user in images.users or ()])), frozenset())
        for name in people
    )
    assert violations(Counted(lambda: [always(0), by_brightness]), None, facts, pairs) == []
    total = count_correct([always(0)], 1, images, unit=Unit.USER, images_per_user=2)
    assert counts_of(total)[-1] == pytest.approx(2 * len(people) - 1, rel=1e-5)  # the last person has one image
    assert total.bound == pytest.approx(2 * row_bound(1))


def test_fewer_classifiers_than_planned_are_an_error_and_no_shorter_vector() -> None:
    with pytest.raises(ConfigError, match="3 classifiers"):
        count_correct([always(0)], 3, make_images())
