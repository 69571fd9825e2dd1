"""A warm start teaches each critic on its own shard alone, and can be interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_critics import spec_of
from torch import Tensor

from veilset.data.spec import ImageSet
from veilset.engines import warm_start as engine
from veilset.engines.critic_training import CriticStack
from veilset.engines.shard_batches import ImageShards
from veilset.engines.warm_start import warm_start
from veilset.nets.critics import conv_critics
from veilset.nets.stacked_generators import Generators
from veilset.randomness import named_generator

SPEC = spec_of(8, 8, 1)
SIZES = (5, 0, 3)
NET = Generators(SPEC, 2, 3)


class Memory(dict[str, dict[str, Tensor]]):
    def save(self, name: str, tensors: Any) -> None:
        self[name] = {key: value.detach().clone() for key, value in tensors.items()}

    def load(self, name: str) -> dict[str, Tensor] | None:
        return self.get(name)


class Interrupted(Exception):
    pass


def critics_of(sizes: tuple[int, ...] = SIZES, at_once: int = 3) -> CriticStack:
    records = [
        torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8, generator=named_generator(k, "r")) for k in range(3)
    ]
    pixels = torch.cat([some[:size] for some, size in zip(records, sizes, strict=True)])
    images = ImageSet(spec=SPEC, pixels=pixels, labels=torch.zeros(len(pixels), dtype=torch.int64))
    shard_of = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    shards = ImageShards(images, shard_of, 3, seed=0, device=torch.device("cpu"))
    stack = CriticStack(conv_critics(SPEC, 2), shards, batch=4, draws=named_generator(0, "critics"))
    stack.at_once = at_once
    return stack


def warmed(
    stack: CriticStack,
    checkpoints: Memory | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    steps: int = 4,
) -> CriticStack:
    warm_start(
        stack, NET, steps=steps, critic_steps=2, draws=named_generator(0, "local"),
        checkpoints=Memory() if checkpoints is None else checkpoints, checkpoint_every=2, progress=progress,
    )  # fmt: skip
    return stack


def same(first: CriticStack, second: CriticStack) -> list[int]:
    return [k for k in range(3) if all(torch.equal(first.state[n][k], second.state[n][k]) for n in first.state)]


def test_critics_of_shards_with_images_learn_and_go_on_with_a_new_adam() -> None:
    stack = warmed(critics_of())
    moved = (stack.state["weights"] != critics_of().state["weights"]).any(1)
    assert moved.tolist() == [True, False, True]
    assert not stack.state["steps"].any()
    assert not stack.state["second moments"].any()


@pytest.mark.parametrize("at_once", [3, 2])
def test_another_record_in_one_shard_changes_no_other_critic_by_a_bit(at_once: int) -> None:
    before, after = warmed(critics_of(at_once=at_once)), warmed(critics_of((6, 0, 3), at_once))
    assert same(before, after) == [1, 2]


def test_one_generator_for_all_would_tie_every_critic_to_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = engine.adam

    def shared(weights: Tensor, gradients: Tensor, *rest: Tensor) -> Tensor:
        return plain(weights, gradients.mean(0, keepdim=True).expand_as(gradients), *rest)

    monkeypatch.setattr(engine, "adam", shared)
    assert same(warmed(critics_of()), warmed(critics_of((6, 0, 3)))) == [1]


@pytest.mark.parametrize("at_once", [3, 2])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_interrupted_warm_start_ends_as_an_uninterrupted_one(at: int, at_once: int) -> None:
    checkpoints = Memory()

    def progress(done: int, total: int) -> None:
        if done == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        warmed(critics_of(at_once=at_once), checkpoints, progress)
    expected = warmed(critics_of(at_once=at_once))
    assert same(warmed(critics_of(at_once=at_once), checkpoints), expected) == [0, 1, 2]


def test_a_finished_warm_start_is_not_played_again() -> None:
    checkpoints, calls = Memory(), []
    first = warmed(critics_of(), checkpoints)
    again = warmed(critics_of(), checkpoints, lambda *call: calls.append(call))
    assert calls == []
    assert same(first, again) == [0, 1, 2]


def test_a_finished_game_leaves_nothing_of_its_generators_behind() -> None:
    checkpoints = Memory()
    warmed(critics_of(at_once=2), checkpoints)
    assert [set(kept) for kept in checkpoints.values()] == [{"step", "draws", "critics weights", "critics vectors"}] * 2


def test_progress_counts_the_steps_of_all_pieces() -> None:
    calls: list[tuple[int, int]] = []
    warmed(critics_of(at_once=2), progress=lambda *call: calls.append(call))
    assert calls == [(done, 8) for done in range(1, 9)]


def test_no_warm_start_leaves_the_critics_as_they_were_drawn() -> None:
    assert same(warmed(critics_of(), steps=0), critics_of()) == [0, 1, 2]


def test_local_generators_learn_what_their_critics_like() -> None:
    stack = critics_of()
    game = engine._Game(stack, NET, torch.arange(3), named_generator(0, "local"))
    labels = torch.randint(3, (3, 50), generator=named_generator(0, "labels"))
    chances = torch.rand(3, 50, 3, generator=named_generator(0, "chances"))
    ready = stack.net.ready(stack.state["weights"], stack.state["vectors"], torch.float32)

    def scores() -> Tensor:
        images = engine.LocalFakes(NET, game.local["weights"], torch.float32)(labels, chances)
        return stack.net.scores(ready, images, labels).mean(1)

    before = scores()
    for _ in range(30):
        game.generator_step()
    assert (scores() > before).all()
