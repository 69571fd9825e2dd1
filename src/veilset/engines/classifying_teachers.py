"""Teachers that each have a classifier beside their critic, on the same shard. Vault side.

DPAC (Chen et al. 2023), algorithm 1: before a release, the classifier of a teacher is trained on generated images and
then on its shard. A generated image of a class should have a large margin for it: what the classifier wants changed is
added to what the critic wants, with a weight, and the sum is the teacher's one answer. It is bounded and released as a
critic's answer would be, so that a classifier costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.engines.critic_memory import spare_bytes
from veilset.engines.critic_training import DRIFT, PENALTY, CriticStack, Fakes, PooledFakes, Reading
from veilset.nets.critics import Critics, Ready
from veilset.nets.stacked_classifiers import Classifiers
from veilset.randomness import named_generator


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """What classifiers learn before each release, and how much they then have to say."""

    first_lesson: int
    """Number of the first release, from 0, that they take part in."""
    critic_share: float
    """Weight of the critic's wish; the classifier's has the rest of 1."""
    fake_steps: int
    real_steps: int
    in_sequence: bool
    """Fakes first, then real images; otherwise as many steps on the average of both losses."""
    fresh: bool
    """Whether a lesson starts with new classifiers."""
    rate: float


class ClassifyingTeachers:
    """A critic and a classifier for every shard. Each call of `train` is one lesson: the releases count them.

    First weights and batches of a lesson's classifiers follow from seed, number of the lesson and shard, and no shard's
    from another's, as with critics.
    """

    def __init__(self, critics: CriticStack, curriculum: Curriculum) -> None:
        self.critics, self.curriculum, self.shards = critics, curriculum, critics.shards
        spare_bytes(critics.net, 2 * self.shards.count, critics.batch, critics.device)
        self.classifiers = CriticStack(
            Classifiers(critics.net.spec, critics.net.blocks), self.shards, batch=critics.batch,
            draws=self._weights(0), rate=curriculum.rate,
        )  # fmt: skip
        self.lessons = 0

    def train(self, fakes: Fakes, steps: int, which: Tensor | None = None) -> None:
        self.critics.train(fakes, steps, which)
        if self.lessons >= self.curriculum.first_lesson:
            self._teach_classifiers(fakes, which)
        self.lessons += 1

    def _teach_classifiers(self, fakes: Fakes, which: Tensor | None) -> None:
        plan, classifiers = self.curriculum, self.classifiers
        classifiers.shards = self.shards.with_streams(f"classifiers {self.lessons}")
        if plan.fresh:
            classifiers.redraw(self._weights(self.lessons), which)
        if plan.in_sequence:
            classifiers.train(fakes, plan.fake_steps, which, losses_on_fakes)
            classifiers.train(self._no_fakes(), plan.real_steps, which, losses_on_real_images)
        else:
            classifiers.train(fakes, plan.fake_steps + plan.real_steps, which, losses_on_both)

    def image_gradients(
        self, images: Tensor, labels: Tensor, which: Tensor | None = None, of: Reading | None = None
    ) -> Tensor:
        """Of the generator's loss (the paper, equation 10): one answer of each teacher, from critic and classifier."""
        wanted = self.critics.image_gradients(images, labels, which, of)
        if self.lessons <= self.curriculum.first_lesson:
            return wanted
        share = self.curriculum.critic_share
        return share * wanted + (1 - share) * self.classifiers.image_gradients(images, labels, which, of)

    def state_dict(self) -> dict[str, Tensor]:
        """Of critics and lessons; of classifiers only where the next lesson goes on with them."""
        kept = {} if self.curriculum.fresh else self.classifiers.state_dict()
        return {
            **self.critics.state_dict(),
            **{f"classifiers {name}": value for name, value in kept.items()},
            "lessons": torch.tensor(self.lessons),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.critics.load_state_dict({name: state[name] for name in self.critics.state if name in state})
        if not self.curriculum.fresh:
            kept = {name: f"classifiers {name}" for name in self.classifiers.state}
            self.classifiers.load_state_dict({name: state[key] for name, key in kept.items() if key in state})
        self.lessons = int(state["lessons"])

    def _weights(self, lesson: int) -> torch.Generator:
        return named_generator(self.shards.seed, f"classifiers {lesson}", self.shards.device)

    def _no_fakes(self) -> Fakes:
        """For steps on real images: a black image stands for all fakes, and none is generated."""
        spec = self.critics.net.spec
        return PooledFakes(torch.zeros(spec.num_classes, 1, *spec.shape, device=self.shards.device))


def margin_losses(net: Critics, ready: Ready, images: Tensor, labels: Tensor) -> Tensor:
    """The loss of every classifier, (classifiers,): margins should be large and slopes, at the images themselves, 1."""
    margins = net.scores(ready, images, labels)
    slopes = net.image_gradients(ready, images, labels).flatten(2).norm(dim=2)
    return (PENALTY * (slopes - 1).square() + DRIFT * margins.square() - margins).mean(1)


def losses_on_fakes(net: Critics, ready: Ready, real: Tensor, fake: Tensor, labels: Tensor, mix: Tensor) -> Tensor:
    return margin_losses(net, ready, fake, labels)


def losses_on_real_images(
    net: Critics, ready: Ready, real: Tensor, fake: Tensor, labels: Tensor, mix: Tensor
) -> Tensor:
    return margin_losses(net, ready, real, labels)


def losses_on_both(net: Critics, ready: Ready, real: Tensor, fake: Tensor, labels: Tensor, mix: Tensor) -> Tensor:
    """Of as many real images as fakes: the average of both losses."""
    return margin_losses(net, ready, torch.cat([real, fake], 1), torch.cat([labels, labels], 1))
