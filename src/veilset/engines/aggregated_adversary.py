"""A generator against a critic that judges mean features of batches. Open side: no function takes a private image.

The critic is shown released means of real features, and means of the features of generated images; what lies before the
mean is trained along released gradients. Reference: DPAF, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.engines.cuda_graphs import GraphedStep
from veilset.nets.aggregating_critics import AggregatingCritic
from veilset.nets.generators import UpsamplingGenerator


class Adversary:
    """Steps of the critic after the mean (`judge`) and before it (`improve`), and of the generator (`teach`).

    Args:
        batch: of generated images.
        noise_std: of the noise on released means; those of generated images get as much, from public draws, or the
            critic would learn to tell noise from its absence.
    """

    def __init__(
        self,
        generator: UpsamplingGenerator,
        critic: AggregatingCritic,
        *,
        batch: int,
        noise_std: float,
        critic_rate: float,
        generator_rate: float,
        draws: torch.Generator,
    ) -> None:
        self.generator, self.critic, self.draws = generator, critic, draws
        self.batch, self.noise_std, self.critic_rate = batch, noise_std, critic_rate
        self.head, self.body = critic.after_average(), critic.before_average()
        self.optimiser = torch.optim.Adam(
            generator.parameters(), lr=generator_rate, betas=(0.5, 0.999), capturable=draws.device.type == "cuda"
        )
        self.real_gradients = [torch.zeros_like(weight) for weight in self.body]
        """Released ones, summed since the last `improve`."""
        self.fake_gradients = [torch.zeros_like(weight) for weight in self.body]
        """Of generated batches, likewise."""
        mean = torch.zeros(1, *critic.feature_shape, device=draws.device)
        labels = torch.zeros(batch, dtype=torch.int64, device=draws.device)
        self._judge = GraphedStep(self._judge_step, [mean, labels], [draws])
        self._teach = GraphedStep(self._teach_step, [labels], [draws])

    def direction(self, mean: Tensor) -> Tensor:
        """The gradient of the critic's loss at a mean of real features in that mean, in the same shape."""
        leaf = mean.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(real_loss(self.critic.score(leaf[None])), leaf)
        return found

    def judge(self, mean: Tensor) -> None:
        """One step of all that lies after the mean, on a mean of real features and one of generated images."""
        self._judge(mean[None], self._labels())

    def collect(self, gradients: Sequence[Tensor] | None) -> None:
        """Keeps released gradients of what lies before the mean, where a batch has them, for `improve`."""
        if gradients is not None:
            torch._foreach_add_(self.real_gradients, list(gradients))

    def improve(self, collected: int, judged: int) -> None:
        """One step of what lies before the mean, along the mean of so many collected gradients, and of fake ones."""
        for gradients, number in ((self.real_gradients, collected), (self.fake_gradients, judged)):
            _descend(self.body, gradients, self.critic_rate / number)
            torch._foreach_zero_(gradients)

    @property
    def sums(self) -> dict[str, Tensor]:
        """What the next `improve` depends on."""
        kinds = {"real": self.real_gradients, "fake": self.fake_gradients}
        return {f"{kind} {place}": value for kind, values in kinds.items() for place, value in enumerate(values)}

    def teach(self) -> None:
        """One step of the generator, image by image: the critic scores the features of each without any mean."""
        self._teach(self._labels())

    def _labels(self) -> Tensor:
        """Drawn evenly: how often a class is in a real batch is private."""
        classes = self.critic.num_classes
        return torch.randint(classes, (self.batch,), generator=self.draws, device=self.draws.device)

    def _judge_step(self, real: Tensor, labels: Tensor) -> None:
        with torch.no_grad():
            images = self.generator.sample(labels, self.draws)
        mean = self.critic.features(images, labels).mean(dim=0, keepdim=True)
        noise = torch.randn(mean.shape, generator=self.draws, device=mean.device)
        real_score, fake_score = self.critic.score(torch.cat([real, mean + self.noise_std * noise]))
        loss = real_loss(real_score) + F.softplus(fake_score)
        found = torch.autograd.grad(loss, [*self.head, *self.body])
        _descend(self.head, found[: len(self.head)], self.critic_rate)
        torch._foreach_add_(self.fake_gradients, found[len(self.head) :])

    def _teach_step(self, labels: Tensor) -> None:
        images = self.generator.sample(labels, self.draws)
        loss = real_loss(self.critic.score(self.critic.features(images, labels)))
        weights = list(self.generator.parameters())
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        self.optimiser.step()


def real_loss(scores: Tensor) -> Tensor:
    """Binary cross-entropy of scores that should say "real"."""
    return F.softplus(-scores).mean()


@torch.no_grad()
def _descend(weights: Sequence[Tensor], gradients: Sequence[Tensor], rate: float) -> None:
    torch._foreach_add_(list(weights), list(gradients), alpha=-rate)
