"""A teacher with a classifier gives one answer, from its own shard alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from bar_images import bars
from plain_critics import PlainClassifier, spec_of
from small_stacks import BATCH, COUNT, DENSE, SIZES, pool, shards_of, shared_batch, stack_of
from torch import Tensor

import veilset.engines.critic_memory as critic_memory
from veilset.data.spec import ImageSet, to_bytes
from veilset.engines.classifying_teachers import (
    ClassifyingTeachers,
    Curriculum,
    losses_on_both,
    losses_on_fakes,
    losses_on_real_images,
    margin_losses,
)
from veilset.engines.critic_training import CriticStack, PooledFakes
from veilset.engines.shard_batches import ImageShards
from veilset.errors import ConfigError
from veilset.nets.critics import dense_critics
from veilset.nets.stacked_classifiers import Classifiers
from veilset.randomness import named_generator

PLAN = Curriculum(
    first_lesson=1, critic_share=0.8, fake_steps=2, real_steps=3, in_sequence=True, fresh=True, rate=1e-3
)  # fmt: skip


def teachers_of(sizes: tuple[int, ...] = SIZES, **changes: Any) -> ClassifyingTeachers:
    return ClassifyingTeachers(stack_of(DENSE, sizes), replace(PLAN, **changes))


def after(lessons: int, which: list[int] | None = None, **options: Any) -> ClassifyingTeachers:
    teachers = teachers_of(**options)
    for _ in range(lessons):
        teachers.train(pool(), 2, None if which is None else torch.tensor(which))
    return teachers


def classifiers_in(teachers: ClassifyingTeachers) -> Tensor:
    return teachers.classifiers.state["weights"].clone()


@pytest.fixture
def trained_by(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """Losses and number of steps of every training of classifiers."""
    seen: list[tuple[Any, int]] = []
    plain = CriticStack.train

    def watching(self: CriticStack, fakes: Any, steps: int, which: Tensor | None = None, losses: Any = None) -> None:
        if losses is not None:
            seen.append((losses, steps))
        plain(self, fakes, steps, which, losses)

    monkeypatch.setattr(CriticStack, "train", watching)
    return seen


@pytest.mark.parametrize("share", [0.0, 0.25, 0.8, 1.0])
def test_an_answer_is_the_shares_of_critic_and_classifier(share: float) -> None:
    teachers = after(2, critic_share=share)
    critics, classifiers = (
        stack.image_gradients(*shared_batch()) for stack in (teachers.critics, teachers.classifiers)
    )
    assert classifiers[0].any()
    assert torch.equal(teachers.image_gradients(*shared_batch()), share * critics + (1 - share) * classifiers)


def test_before_their_first_lesson_classifiers_have_no_say() -> None:
    teachers, alone = after(1), stack_of(DENSE)
    alone.train(pool(), 2)
    assert torch.equal(teachers.image_gradients(*shared_batch()), alone.image_gradients(*shared_batch()))
    assert torch.equal(classifiers_in(teachers), classifiers_in(teachers_of()))
    assert not torch.equal(
        after(1, first_lesson=0).image_gradients(*shared_batch()), alone.image_gradients(*shared_batch())
    )


def test_critics_learn_as_they_would_without_classifiers() -> None:
    teachers, alone = after(3), stack_of(DENSE)
    for _ in range(3):
        alone.train(pool(), 2)
    assert all(torch.equal(teachers.critics.state[name], value) for name, value in alone.state.items())


def test_a_lesson_starts_with_new_classifiers_from_public_weights() -> None:
    teachers = after(3)
    again = teachers_of()
    again.lessons = 2  # none of the lessons before is needed
    again.train(pool(), 0)
    assert torch.equal(classifiers_in(teachers), classifiers_in(again))
    assert teachers.classifiers.state["steps"].tolist() == [5] * COUNT
    untrained = {lesson: classifiers_in(after(lesson))[1] for lesson in (2, 3)}  # the shard is empty
    assert not torch.equal(untrained[2], untrained[3])


def test_after_a_lesson_a_classifier_is_as_if_trained_alone_by_torch() -> None:
    teachers = after(2)
    net, shards = teachers.classifiers.net, shards_of().with_streams("classifiers 1")
    drawn_weights = net.draw(COUNT, named_generator(shards.seed, "classifiers 1"))
    for number in (0, 2, 3, 4):
        alone = PlainClassifier(net, *drawn_weights, number)
        start = alone.row()
        optimiser = torch.optim.Adam(alone.parameters(), lr=PLAN.rate, betas=(0.5, 0.9))
        for step in range(PLAN.fake_steps + PLAN.real_steps):
            drawn = shards.draw(torch.tensor([number]), torch.tensor([step]), BATCH, 2)
            fakes = pool()(drawn.labels, drawn.chances[..., 1:])
            alone.iterate()
            optimiser.zero_grad()
            images = fakes if step < PLAN.fake_steps else drawn.images
            alone.margin_loss(images[0], drawn.labels[0]).backward()
            optimiser.step()
        found = teachers.classifiers.state["weights"][number]
        assert float((alone.row() - start).norm()) > 0.05
        assert float((found - alone.row()).norm()) < 2e-3 * float((alone.row() - start).norm())


def test_classifiers_that_are_kept_go_on_learning() -> None:
    teachers = after(3, fresh=False)
    assert teachers.classifiers.state["steps"].tolist() == [10] * COUNT
    assert torch.equal(classifiers_in(teachers)[1], classifiers_in(teachers_of())[1])  # the shard is empty
    moved = (classifiers_in(teachers) - classifiers_in(after(2, fresh=False))).abs().amax(1)
    assert (moved[[0, 2, 3, 4]] > 0).all()
    assert float(moved.max()) < 0.02


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(losses_on_fakes, 2), (losses_on_real_images, 3)]),
        ({"fake_steps": 0}, [(losses_on_fakes, 0), (losses_on_real_images, 3)]),
        ({"real_steps": 0}, [(losses_on_fakes, 2), (losses_on_real_images, 0)]),
        ({"in_sequence": False}, [(losses_on_both, 5)]),
    ],
    ids=["all", "without g2r", "without r2g", "without sequence"],
)
def test_a_lesson_is_on_fakes_and_then_on_real_images(
    changes: dict[str, Any], expected: list[Any], trained_by: list[Any]
) -> None:
    after(2, **changes)
    assert trained_by == expected


def test_without_steps_on_real_images_a_classifier_knows_nothing_of_its_shard_but_labels() -> None:
    """Fakes have the labels of the images a shard draws, which are the same for other pixels."""
    other = teachers_of(real_steps=0)
    other.shards.pixels = 255 - other.shards.pixels
    for _ in range(2):
        other.train(pool(), 2)
    assert torch.equal(classifiers_in(other), classifiers_in(after(2, real_steps=0)))
    assert not torch.equal(classifiers_in(other), classifiers_in(after(2)))


def test_without_steps_on_fakes_a_classifier_knows_nothing_of_the_generator() -> None:
    def taught(brightness: float, **changes: Any) -> Tensor:
        teachers = teachers_of(**changes)
        for _ in range(2):
            teachers.train(PooledFakes(pool().pool * brightness), 2)
        return classifiers_in(teachers)

    assert torch.equal(taught(1.0, fake_steps=0), taught(0.5, fake_steps=0))
    assert not torch.equal(taught(1.0), taught(0.5))
    assert not torch.equal(taught(1.0, in_sequence=False), taught(1.0))


def test_losses_are_those_of_the_paper_at_the_images_themselves() -> None:
    net = Classifiers(DENSE.spec, DENSE.blocks)
    weights, vectors = net.draw(2, named_generator(0, "classifiers"))
    ready = net.ready(weights, net.iterated(weights, vectors), torch.float32)
    draws = named_generator(0, "images")
    real, fake = (torch.rand(2, 4, *net.spec.shape, generator=draws) for _ in range(2))
    labels, mix = torch.tensor([[0, 1, 2, 0]] * 2), torch.rand(2, 4, generator=draws)
    real.requires_grad_()
    margins = net.scores(ready, real, labels)
    (slopes,) = torch.autograd.grad(margins.sum(), real)
    penalty = (slopes.flatten(2).norm(dim=2) - 1).square()
    expected = -margins.mean(1) + 10 * penalty.mean(1) + 0.001 * margins.square().mean(1)
    torch.testing.assert_close(losses_on_real_images(net, ready, real, fake, labels, mix), expected)
    on_fakes = margin_losses(net, ready, fake, labels)
    assert torch.equal(losses_on_fakes(net, ready, real, fake, labels, mix), on_fakes)
    torch.testing.assert_close(losses_on_both(net, ready, real, fake, labels, mix), (expected + on_fakes) / 2)


ways = pytest.mark.parametrize(
    "changes", [{}, {"fresh": False}, {"in_sequence": False}], ids=["fresh", "kept", "without sequence"]
)


@ways
@pytest.mark.parametrize("changed", [0, 1, 3], ids=["to many", "its first one", "to one"])
def test_another_record_in_one_shard_changes_no_other_answer_by_a_bit(changes: dict[str, Any], changed: int) -> None:
    grown = tuple(size + (number == changed) for number, size in enumerate(SIZES))
    before, then = (after(3, sizes=sizes, **changes).image_gradients(*shared_batch()) for sizes in (SIZES, grown))
    moved = (before != then).flatten(1).any(1)
    assert moved.nonzero().flatten().tolist() == [changed]


def test_one_classifier_for_all_shards_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As public code has it where the classifier is kept: it would carry each shard's images to all others."""
    plain = ClassifyingTeachers._teach_classifiers

    def shared(self: ClassifyingTeachers, *arguments: Any) -> None:
        plain(self, *arguments)
        weights = self.classifiers.state["weights"]
        weights.copy_(weights.mean(0).expand_as(weights))

    monkeypatch.setattr(ClassifyingTeachers, "_teach_classifiers", shared)
    before, then = (after(3, sizes=s).image_gradients(*shared_batch()) for s in (SIZES, (6, *SIZES[1:])))
    assert (before != then).flatten(1).any(1).sum() > 1


def test_an_empty_shard_asks_for_nothing_and_a_mad_classifier_keeps_it_to_itself() -> None:
    teachers = after(2)
    teachers.classifiers.state["weights"][2] = torch.nan
    answers = teachers.image_gradients(*shared_batch())
    assert not answers[1].any()
    assert torch.isnan(answers).flatten(1).any(1).nonzero().flatten().tolist() == [2]


def test_in_turn_the_classifier_of_the_one_teacher_is_trained_and_asked() -> None:
    teachers = after(2, which=[2])
    assert teachers.classifiers.state["steps"].tolist() == [0, 0, 5, 0, 0]
    one = torch.tensor([2])
    both = (stack.image_gradients(*shared_batch(), one) for stack in (teachers.critics, teachers.classifiers))
    expected = sum(share * part for share, part in zip((0.8, 1 - 0.8), both, strict=True))
    assert torch.equal(teachers.image_gradients(*shared_batch(), one), expected)
    assert teachers.image_gradients(*shared_batch(), one).shape == (1, 7, *DENSE.spec.shape)


@ways
def test_a_resumed_training_ends_as_an_uninterrupted_one(changes: dict[str, Any]) -> None:
    first = after(2, **changes)
    kept = first.state_dict()
    first.train(pool(), 2)  # must not change what was kept
    draws = named_generator(1, "other")
    critics = CriticStack(DENSE, shards_of(), batch=BATCH, draws=draws)
    second = ClassifyingTeachers(critics, replace(PLAN, **changes))
    second.load_state_dict(kept)
    second.train(pool(), 2)
    assert torch.equal(second.image_gradients(*shared_batch()), first.image_gradients(*shared_batch()))


def test_only_classifiers_that_go_on_are_kept() -> None:
    assert not any(name.startswith("classifiers") for name in after(2).state_dict())
    state = after(2, fresh=False).state_dict()
    assert "classifiers weights" in state
    with pytest.raises(ConfigError, match="the state of critics"):
        teachers_of(fresh=False).load_state_dict(after(2).state_dict())


def test_batches_of_a_lesson_are_neither_the_critics_nor_those_of_another_lesson() -> None:
    shards = shards_of()
    streams = [shards, shards.with_streams("classifiers 1"), shards.with_streams("classifiers 2")]
    which, steps = torch.arange(COUNT), torch.zeros(COUNT, dtype=torch.int64)
    chances = [some.draw(which, steps, 6, 1).chances for some in streams]
    assert not any(torch.equal(chances[a], chances[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    teachers = after(2)
    assert torch.equal(teachers.classifiers.shards.keys, streams[1].keys)
    assert torch.equal(teachers.critics.shards.keys, shards.keys)


def test_classifiers_that_do_not_fit_beside_the_critics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    critics = stack_of(DENSE)
    enough = COUNT * critic_memory.bytes_kept(DENSE) + critic_memory.bytes_of_one(DENSE, BATCH, torch.float32)
    monkeypatch.setattr(critic_memory, "memory_of", lambda device: enough + 1000)
    with pytest.raises(ConfigError, match=f"{2 * COUNT} of"):
        ClassifyingTeachers(critics, PLAN)


def test_a_classifier_learns_to_tell_classes_apart_and_wants_images_to_be_of_their_own() -> None:
    images, labels = bars(300)
    layout = dense_critics(spec_of(12, 12, 1, classes=2), 16)
    records = ImageSet(spec=layout.spec, pixels=to_bytes(images), labels=labels)
    shards = ImageShards(records, torch.arange(300) % 3, 3, seed=0, device=torch.device("cpu"))
    critics = CriticStack(layout, shards, batch=16, draws=named_generator(0, "critics"))
    plan = replace(PLAN, first_lesson=0, critic_share=0.0, fake_steps=0, real_steps=100, rate=0.01)
    teachers = ClassifyingTeachers(critics, plan)
    teachers.train(PooledFakes(torch.zeros(2, 1, 1, 12, 12)), 1)
    net, state = teachers.classifiers.net, teachers.classifiers.state
    ready = net.ready(state["weights"], state["vectors"], torch.float32)
    other, labels = bars(40, seed=9)
    assert (net.scores(ready, other, labels) > 0).float().mean() > 0.9
    wrong = 1 - labels
    wanted = teachers.image_gradients(other, wrong)
    moved = other - 20 * wanted[0] * len(other)
    assert (net.scores(ready, moved, wrong)[0] > net.scores(ready, other, wrong)[0]).all()
