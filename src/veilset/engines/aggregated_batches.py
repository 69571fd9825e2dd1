"""What DPAF releases about batches of private images: mean features, and gradients of the layers that made them.

Repaired: the mean of a batch is released first. The critic's loss is differentiated at the released mean, so all that a
record's gradient depends on beside the record is public; it is clipped, and the sum gets a noise of its own. Both
releases are on one sample and are charged as one.
Public: the same for images that need no protection.
Published: gradients are taken at the clean mean of a batch, which all its records make. A clipped gradient then changes
with every other record: the sum has no bound that its noise was made for, and nothing is proven.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.data.spec import ImageSet, to_unit_range
from veilset.engines.aggregated_gradients import ClipOf, Compression, aligned_gradients, weighted
from veilset.engines.clipped_gradients import ClippedGradients, clipped_mean
from veilset.engines.group_means import GroupMeans, mean_of_groups
from veilset.engines.noisy_counts import NoisyCounts
from veilset.engines.per_sample_gradients import Forward, PerSampleGradients
from veilset.nets.aggregating_critics import AggregatingCritic, SplitConvNet, feature_norm
from veilset.privacy.bounds import GroupedSum
from veilset.privacy.release import Door
from veilset.privacy.sampling import Draw

Slope = Callable[[Tensor], Tensor]
"""Mean features of groups -> the gradient of the critic's loss in them."""
Batch = tuple[GroupMeans, list[Tensor] | None]
"""Mean features of real images; and, where they are due, gradients of what lies before the mean."""


@dataclass(frozen=True, kw_only=True)
class _PrivateBatches:
    private: ClippedGradients
    critic: AggregatingCritic
    door: Door
    mean_noise: float
    gradient_noise: float
    compression: Compression
    clip_of: ClipOf
    noise_std: float
    """Of the noise in a sum of features."""


@dataclass(frozen=True, kw_only=True)
class RepairedBatches(_PrivateBatches):
    """Means of each class and a gradient of every batch, in two releases on one sample."""

    features: ClippedGradients
    """The same images, on the terms of sums of features: their bound, and a count of records."""
    counts: NoisyCounts

    def __call__(self, step: int, slope_at: Slope) -> Batch:
        draw = self.private.draw(self.door, self.mean_noise, self.gradient_noise)
        means = self._means(draw, step)
        slope = weighted(slope_at(means.values), means.weights)
        clip_norm = self.clip_of(slope)
        gradients = self.compression(aligned_gradients(self.critic, slope), clip_norm)
        row = self.private.release_mean(gradients, draw, self.door, self.gradient_noise, clip_norm)
        return means, gradients.shaped(row)

    def _means(self, draw: Draw, step: int) -> GroupMeans:
        """Noisy sums of features of each class, divided by the counts that were released so far."""
        sums = self.features.release_by_class(feature_rows(self.critic), draw, self.door, self.mean_noise)
        counts = self.counts.after(sums[:, -1] / self.features.terms.total_weight, step + 1)
        values = (sums[:, :-1] / counts[:, None]).to(torch.float32).reshape(-1, *self.critic.feature_shape)
        counts = counts.to(torch.float32)
        return GroupMeans(values, self.noise_std / counts, self.features.terms.expected_batch / counts)


@dataclass(frozen=True, kw_only=True)
class PublishedBatches(_PrivateBatches):
    """A noisy mean of every batch; one gradient for `asymmetry` batches at their clean means (algorithm 1, line 12)."""

    merged: ClippedGradients
    """Draws `asymmetry` batches at once."""
    asymmetry: int

    def __call__(self, step: int, slope_at: Slope) -> Batch:
        bound, rows = feature_norm(self.critic.feature_shape), feature_rows(self.critic)
        mean = self.private.release_mean(rows, self.private.draw(self.door), self.door, self.mean_noise, bound)
        batch_size = self.private.terms.expected_batch
        values = self._shaped(mean)
        means = GroupMeans(values, values.new_tensor([self.noise_std / batch_size]), values.new_ones(1))
        if (step + 1) % self.asymmetry:
            return means, None
        draw = self.merged.draw(self.door)
        records, total = self.merged.records(draw), None
        for part in range(self.asymmetry):
            batch = records[part :: self.asymmetry]
            clean = self._clean_mean(self.private.clipped_sum(rows, batch, clip_norm=bound))
            slope = slope_at(clean)
            gradients = self.compression(aligned_gradients(self.critic, slope), self.clip_of(slope))
            total = self.merged.clipped_sum(gradients, batch, clip_norm=self.clip_of(slope), total=total)
        assert total is not None
        noisy = self.door.release_sum(total, self.gradient_noise, draw=draw)[0]
        return means, gradients.shaped(noisy / self.merged.terms.expected_batch)

    def _clean_mean(self, total: GroupedSum) -> Tensor:
        assert total.grid_total is not None
        return self._shaped(total.grid_total[0] * (total.grid_step / self.private.terms.expected_batch))

    def _shaped(self, mean: Tensor) -> Tensor:
        return mean.to(torch.float32).reshape(1, *self.critic.feature_shape)


@dataclass(frozen=True, kw_only=True)
class PublicBatches:
    """Means and gradients of public images, without noise and without price (table 12)."""

    images: ImageSet
    critic: AggregatingCritic
    compression: Compression
    clip_of: ClipOf
    batch: int
    draws: torch.Generator

    def __call__(self, step: int, slope_at: Slope) -> Batch:
        places = torch.randint(len(self.images), (self.batch,), generator=self.draws, device=self.draws.device).cpu()
        inputs = to_unit_range(self.images.pixels[places].to(self.draws.device))
        # Their classes stand in for those of the private images, whatever they are.
        labels = self.images.labels[places].to(self.draws.device) % self.critic.num_classes
        with torch.no_grad():
            features = self.critic.features(inputs, labels)
        values, counts = mean_of_groups(features, self.critic.groups_of(labels), self.critic.num_groups)
        means = GroupMeans(values, torch.zeros_like(counts), self.batch / counts)
        slope = weighted(slope_at(values), means.weights)
        gradients = self.compression(aligned_gradients(self.critic, slope), self.clip_of(slope))
        return means, gradients.shaped(clipped_mean(gradients, inputs, labels, self.clip_of(slope)))


def repaired_pretraining(
    private: ClippedGradients, classifier: SplitConvNet, door: Door, noise: float, compression: Compression
) -> list[Tensor]:
    """A released gradient of all weights of the classifier (Abadi et al. 2016)."""
    gradients = PerSampleGradients(classifier, losses=squared_errors)
    return private.release(compression(gradients, private.terms.clip_norm), door, noise)


def published_pretraining(
    private: ClippedGradients, classifier: SplitConvNet, door: Door, noise: float, compression: Compression
) -> list[Tensor]:
    """A released gradient of conv1, and a plain one of all that follows, kept in the vault (algorithm 1, line 5).

    Why this is not private: gradients of conv1 pass through layers that a single record has moved, so that all of them
    change with it in later steps. That these layers are thrown away does not help (theorem 1 of the paper is false).
    """
    draw = private.draw(door)
    of_conv1 = PerSampleGradients(classifier, list(classifier.conv1.parameters()), squared_errors)
    gradients = compression(of_conv1, private.terms.clip_norm)
    inputs, labels = private.batch(draw)
    loss = squared_errors(classifier, inputs, labels).sum() / private.terms.expected_batch
    plain = torch.autograd.grad(loss, classifier.behind_conv1())
    return [*gradients.shaped(private.release_mean(gradients, draw, door, noise)), *plain]


def private_shares(private: ClippedGradients) -> Tensor:
    """By how many images each class has, or even ones without any: private, and for the construction without a proof,
    where generated images have the labels of the batch (algorithm 1, line 19)."""
    counts = private.class_counts().float()
    return counts if bool(counts.any()) else torch.ones_like(counts)


def feature_rows(critic: AggregatingCritic) -> Callable[[Tensor, Tensor], Tensor]:
    @torch.no_grad()
    def rows(inputs: Tensor, labels: Tensor) -> Tensor:
        return critic.features(inputs, labels).flatten(1)

    return rows


def squared_errors(network: Forward, inputs: Tensor, labels: Tensor) -> Tensor:
    outputs = network(inputs)
    return (outputs - F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)).square().sum(dim=1)
