"""Gradients of single images by the layers before means of features: rows for DPAF's private and open side alike."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from veilset.engines.clipped_gradients import Gradients
from veilset.engines.group_means import per_group
from veilset.engines.per_sample_gradients import Forward, PerSampleGradients
from veilset.nets.aggregating_critics import AggregatingCritic

Compression = Callable[[PerSampleGradients, float], Gradients]
"""What is done to an image's gradient before it is clipped to a norm."""
ClipOf = Callable[[Tensor], float]
"""The clip norm of gradients at slopes of the loss, one for each group."""


def aligned_gradients(critic: AggregatingCritic, slopes: Tensor) -> PerSampleGradients:
    """Of how far an image's features point along the slope of its group: the gradient of a loss in its mean features,
    times the images of a batch for each image of the group."""

    def losses(_: Forward, inputs: Tensor, labels: Tensor) -> Tensor:
        along = slopes.flatten(1)[critic.groups_of(labels)]
        return (critic.features(inputs, labels).flatten(1).float() * along).sum(dim=1)

    return PerSampleGradients(critic, critic.before_average(), losses, layerwise=True)


def weighted(slopes: Tensor, weights: Tensor) -> Tensor:
    """Slopes in the mean of a group as slopes for an image of a batch: the mean of a small group turns on it more."""
    return slopes * per_group(weights, slopes)
