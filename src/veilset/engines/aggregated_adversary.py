"""A generator against a critic that judges mean features of batches. Open side: no function takes a private image.

As published it knows the private shares of the classes, and nothing is claimed of it.
The critic is shown released means of real features, and means of the features of generated images; what lies before the
mean is trained along released gradients. Reference: DPAF, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.engines.aggregated_gradients import ClipOf, Compression, aligned_gradients, weighted
from veilset.engines.clipped_gradients import clipped_mean
from veilset.engines.cuda_graphs import GraphedStep
from veilset.engines.group_means import GroupMeans, mean_of_groups, with_noise
from veilset.engines.training_steps import step_along
from veilset.nets.aggregating_critics import AggregatingCritic
from veilset.nets.generators import UpsamplingGenerator


class Adversary:
    """Steps of the critic after the mean (`judge`) and before it (`improve`), and of the generator (`teach`).

    Args:
        batch: of generated images.
        class_shares: by which their labels are drawn: evenly, as how often a class is in a real batch is private; or,
            as published, as they are there.
        noisy_slopes: whether the means of real features at which gradients before the mean are taken have noise. Means
            of generated images get as much as real ones, from public draws, or the critic would learn to tell noise
            from its absence.
        clip_of: clip norms of gradients before the mean; those of generated images are treated as those of real ones.
    """

    def __init__(
        self,
        generator: UpsamplingGenerator,
        critic: AggregatingCritic,
        *,
        batch: int,
        class_shares: Tensor,
        noisy_slopes: bool,
        clip_of: ClipOf,
        compression: Compression,
        body_rate: float,
        head_rate: float,
        generator_rate: float,
        draws: torch.Generator,
    ) -> None:
        self.generator, self.critic, self.draws = generator, critic, draws
        self.batch, self.class_shares, self.noisy_slopes = batch, class_shares.to(draws.device), noisy_slopes
        self.clip_of, self.compression = clip_of, compression
        self.body_rate, self.head_rate = body_rate, head_rate
        self.optimiser = torch.optim.Adam(
            generator.parameters(), lr=generator_rate, betas=(0.5, 0.999), capturable=draws.device.type == "cuda"
        )
        self.collected = [*map(torch.zeros_like, critic.before_average()), torch.zeros((), device=draws.device)]
        """Released gradients, summed since the last `improve`, and behind them how many there are."""
        self.noise_std = torch.zeros(critic.num_groups, device=draws.device)
        """Of the means that were judged last."""
        self.last_scores = torch.zeros(2, device=draws.device)
        """Of real and of generated means when they were judged last, each the mean of all groups."""
        means = torch.zeros(critic.num_groups, *critic.feature_shape, device=draws.device)
        labels = torch.zeros(batch, dtype=torch.int64, device=draws.device)
        self._judge = GraphedStep(self._judge_step, [means, self.noise_std, labels], [draws])
        self._teach = GraphedStep(self._teach_step, [labels], [draws])

    def real_slope(self, means: Tensor) -> Tensor:
        """The gradient of the critic's loss at means of real features in these means."""
        return self._slope(means, real_loss)

    def judge(self, real: GroupMeans) -> None:
        """One step of all that lies after the mean, on means of real features and those of generated images."""
        self.noise_std = real.noise_std
        self._judge(real.values, real.noise_std, self._labels())

    def collect(self, gradients: Sequence[Tensor] | None) -> None:
        """Keeps released gradients of what lies before the mean, where a batch has them, for `improve`."""
        if gradients is not None:
            torch._foreach_add_(self.collected, [*gradients, torch.ones_like(self.collected[-1])])

    def improve(self) -> None:
        """One step of what lies before the mean: along the mean of collected gradients, and along those of fakes."""
        weights = self.critic.before_average()
        *sums, number = self.collected
        _descend(weights, torch._foreach_div(sums, number), self.body_rate)
        torch._foreach_zero_(self.collected)
        _descend(weights, self._fake_gradients(), self.body_rate)

    def teach(self) -> None:
        """One step of the generator, image by image: the critic scores the features of each without any mean."""
        self._teach(self._labels())

    def _labels(self) -> Tensor:
        """Of each class as many as its share says, up to one: the mean of a class without any says nothing."""
        ends = self.class_shares.cumsum(0) / self.class_shares.sum()
        start = torch.rand((), generator=self.draws, device=self.draws.device)
        places = (torch.arange(self.batch, device=self.draws.device) + start) / self.batch
        return torch.searchsorted(ends[:-1], places, right=True)

    @torch.no_grad()
    def _fakes(self, labels: Tensor, noise_std: Tensor) -> tuple[Tensor, GroupMeans]:
        """Generated images, and noisy means of their features."""
        images = self.generator.sample(labels, self.draws)
        groups = self.critic.groups_of(labels)
        means, counts = mean_of_groups(self.critic.features(images, labels), groups, self.critic.num_groups)
        return images, GroupMeans(with_noise(means, noise_std, self.draws), noise_std, self.batch / counts)

    def _fake_gradients(self) -> list[Tensor]:
        labels = self._labels()
        images, means = self._fakes(labels, self.noise_std * self.noisy_slopes)
        slope = weighted(self._slope(means.values, fake_loss), means.weights)
        gradients = self.compression(aligned_gradients(self.critic, slope), self.clip_of(slope))
        return gradients.shaped(clipped_mean(gradients, images, labels, self.clip_of(slope)))

    def _slope(self, means: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = means.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(loss(self.critic.score_means(leaf)), leaf)
        return found

    def _judge_step(self, real: Tensor, noise_std: Tensor, labels: Tensor) -> None:
        _, fake = self._fakes(labels, noise_std)
        real_scores, fake_scores = map(self.critic.score_means, (real, fake.values))
        self.last_scores.copy_(torch.stack([real_scores.mean(), fake_scores.mean()]).detach())
        weights = self.critic.after_average()
        loss = real_loss(real_scores) + fake_loss(fake_scores)
        _descend(weights, torch.autograd.grad(loss, weights), self.head_rate)

    def _teach_step(self, labels: Tensor) -> None:
        images = self.generator.sample(labels, self.draws)
        loss = real_loss(self.critic.score(self.critic.features(images, labels), self.critic.groups_of(labels)))
        step_along(self.optimiser, torch.autograd.grad(loss, list(self.generator.parameters())))


def real_loss(scores: Tensor) -> Tensor:
    """Binary cross-entropy of scores that should say "real"."""
    return F.softplus(-scores).mean()


def fake_loss(scores: Tensor) -> Tensor:
    return F.softplus(scores).mean()


@torch.no_grad()
def _descend(weights: Sequence[Tensor], gradients: Sequence[Tensor], rate: float) -> None:
    torch._foreach_add_(list(weights), list(gradients), alpha=-rate)
