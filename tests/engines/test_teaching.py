"""A generator learns from released values alone: all teachers together, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from plain_critics import spec_of
from torch import Tensor

from veilset.engines.critic_training import Fakes, Reading
from veilset.engines.teaching import Effort, GeneratedFakes, InTurn, Together, teach
from veilset.nets.frequencies import LowFrequencies
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.spectral_generators import SpectralGenerator
from veilset.privacy.noise import SeededNoise
from veilset.privacy.sampling import Draw, shard_draw
from veilset.randomness import initialise, named_generator

SPEC = spec_of(8, 8, 1, classes=2)
CPU = torch.device("cpu")
Made = UpsamplingGenerator | SpectralGenerator


class Memory(dict[str, dict[str, Tensor]]):
    def save(self, name: str, tensors: Any) -> None:
        self[name] = {key: value.detach().clone() for key, value in tensors.items()}

    def load(self, name: str) -> dict[str, Tensor] | None:
        return self.get(name)


class WantBrightness:
    """Three teachers who want every image brighter, the more so the longer they were trained."""

    def __init__(self) -> None:
        self.trained = torch.zeros(3)
        self.asked: list[list[int]] = []
        self.fakes: list[Fakes] = []

    def train(self, fakes: Fakes, steps: int, which: Tensor | None = None) -> None:
        self.trained[slice(None) if which is None else which] += steps
        self.fakes.append(fakes)

    def image_gradients(
        self, images: Tensor, labels: Tensor, which: Tensor | None = None, of: Reading | None = None
    ) -> Tensor:
        assert not images.requires_grad
        which = torch.arange(3) if which is None else which
        self.asked.append(which.tolist())
        gradients = -self.trained[which][:, None, None, None, None] * torch.ones(len(which), *images.shape)
        return gradients if of is None else of(gradients)

    def state_dict(self) -> dict[str, Tensor]:
        return {"trained": self.trained.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.trained.copy_(state["trained"])


def together(teachers: WantBrightness, release: Callable[[Tensor], Tensor], draws: torch.Generator) -> Together:
    generator = UpsamplingGenerator(SPEC, latent_size=2, channels=8)
    initialise(generator, named_generator(0, "weights"))
    return Together(
        generator=generator, teachers=teachers, frequencies=LowFrequencies(SPEC, 3, CPU), images=4, pool=2,
        teacher_steps=2, warm_up=5, release=release, watch=lambda *_: None, draws=draws,
    )  # fmt: skip


def in_turn(teachers: WantBrightness, release: Callable[[Tensor, Draw], Tensor], draws: torch.Generator) -> InTurn:
    generator = SpectralGenerator(SPEC, latent_size=2, channels=8)
    initialise(generator, named_generator(0, "weights"))
    return InTurn(
        generator=generator, teachers=teachers, images=4, teacher_steps=2, release=release,
        watch=lambda *_: None, draws=draws,
        turn=lambda step: shard_draw(step, 3, "round-robin", SeededNoise(0)),
    )  # fmt: skip


LESSONS: dict[str, Any] = {
    "together": lambda teachers, draws: together(teachers, lambda rows: rows.sum(0), draws),
    "in turn": lambda teachers, draws: in_turn(teachers, lambda rows, _: rows, draws),
}
every_way = pytest.mark.parametrize("way", LESSONS)


def taught(
    way: str,
    *,
    steps: int = 6,
    checkpoints: Memory | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    last: int | None = None,
) -> tuple[Made, WantBrightness]:
    teachers, draws = WantBrightness(), named_generator(0, "draws")
    lesson = LESSONS[way](teachers, draws)
    effort = Effort(
        steps=steps, learning_rate=0.01, fading=way == "together", betas=(0.5, 0.9), average=0.9, checkpoint_every=2
    )
    teach(
        lesson.generator, teachers, lesson, effort, last_after=lambda _: last or steps, draws=draws,
        checkpoints=Memory() if checkpoints is None else checkpoints, progress=progress,
    )  # fmt: skip
    return lesson.generator, teachers


def brightness(generator: Made) -> float:
    with torch.no_grad():
        return float(generator.sample(torch.arange(50) % 2, named_generator(0, "samples")).mean())


def weights(generator: Made) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in generator.state_dict().values()])


@every_way
def test_images_become_what_the_teachers_want(way: str) -> None:
    assert brightness(taught(way, steps=40)[0]) > brightness(taught(way, steps=1)[0]) + 0.1


def test_together_all_teachers_answer_about_one_batch_and_one_row_each_is_released() -> None:
    teachers, seen = WantBrightness(), []

    def release(rows: Tensor) -> Tensor:
        seen.append(rows)
        return rows.sum(0)

    lesson = together(teachers, release, named_generator(0, "draws"))
    for step in range(2):
        images, gradient = lesson(step)
        assert images.shape == gradient.shape == (4, 1, 8, 8)
    assert [rows.shape for rows in seen] == [(3, 4 * 9)] * 2
    assert teachers.asked == [[0, 1, 2]] * 2
    assert teachers.trained.tolist() == [2 + 5 + 2] * 3, "the warm-up comes once"


def test_in_turn_one_teacher_learns_and_answers_and_one_row_for_each_image_is_released() -> None:
    teachers, seen = WantBrightness(), []

    def release(rows: Tensor, turn: Draw) -> Tensor:
        seen.append((rows.shape, turn.indices.tolist()))
        return rows

    lesson = in_turn(teachers, release, named_generator(0, "draws"))
    for step in range(4):
        images, gradient = lesson(step)
        assert images.shape == gradient.shape == (4, 1, 8, 8)
    assert seen == [((4, 64), [number]) for number in (0, 1, 2, 0)]
    assert teachers.asked == [[0], [1], [2], [0]]
    assert teachers.trained.tolist() == [4, 2, 2]


@every_way
def test_a_generator_that_is_told_nothing_learns_nothing_of_its_teachers(way: str) -> None:
    """Post-processing: with the same released values, other teachers give the same generator."""
    results = []
    for training in (0, 7):
        teachers, draws = WantBrightness(), named_generator(0, "draws")
        teachers.trained += training
        told = iter(torch.randn(10, 256, generator=named_generator(0, "told")))
        lesson = (
            together(teachers, lambda rows, told=told: next(told)[: rows.shape[1]], draws)
            if way == "together"
            else in_turn(teachers, lambda rows, _, told=told: next(told).reshape(rows.shape), draws)
        )
        effort = Effort(steps=3, learning_rate=0.1, fading=False, betas=(0.5, 0.9), average=0.9, checkpoint_every=9)
        teach(
            lesson.generator, teachers, lesson, effort, last_after=lambda _: 3, draws=draws, checkpoints=Memory(),
            progress=lambda *_: None,
        )  # fmt: skip
        results.append(weights(lesson.generator))
    assert torch.equal(*results)


@every_way
@pytest.mark.parametrize("at", [1, 2, 3, 5, 6])
def test_an_interrupted_lesson_ends_with_the_same_generator_and_teachers(way: str, at: int) -> None:
    checkpoints = Memory()

    def progress(done: int, total: int) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        taught(way, checkpoints=checkpoints, progress=progress)
    resumed, whole = taught(way, checkpoints=checkpoints), taught(way)
    assert torch.equal(weights(resumed[0]), weights(whole[0]))
    assert torch.equal(resumed[1].trained, whole[1].trained)


@every_way
def test_the_last_step_is_kept_too_because_nothing_more_may_be_released_after_it(way: str) -> None:
    checkpoints = Memory()
    taught(way, steps=3, checkpoints=checkpoints)
    assert int(checkpoints["generator"]["step"]) == 3


@every_way
def test_a_lesson_ends_where_no_more_can_be_paid_for(way: str) -> None:
    calls: list[tuple[int, int]] = []
    generator, teachers = taught(way, last=3, progress=lambda *call: calls.append(call))
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert len(teachers.asked) == 3
    assert not generator.training


@every_way
def test_a_run_that_ended_early_asks_for_nothing_more_when_it_is_resumed(way: str) -> None:
    checkpoints = Memory()
    ended, _ = taught(way, last=3, checkpoints=checkpoints)
    resumed, teachers = taught(way, last=3, checkpoints=checkpoints)
    assert teachers.asked == []
    assert torch.equal(weights(resumed), weights(ended))


def test_generated_fakes_have_the_labels_asked_for_and_follow_their_chances() -> None:
    generator = SpectralGenerator(SPEC, latent_size=2, channels=8)
    initialise(generator, named_generator(0, "weights"))
    fakes = GeneratedFakes(generator)
    assert fakes.numbers == 2
    labels, chances = (
        torch.tensor([[0, 1, 1]]),
        torch.tensor([[[0.1, 0.9], [0.1, 0.9], [0.9, 0.9]]], dtype=torch.float64),
    )
    images = fakes(labels, chances)
    assert images.shape == (1, 3, 1, 8, 8)
    expected = generator(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), labels[0])
    torch.testing.assert_close(images[0], expected)
