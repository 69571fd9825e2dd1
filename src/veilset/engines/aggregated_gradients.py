"""Gradients of single images by the layers before a mean of features: rows for DPAF's private and open side alike."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from veilset.engines.clipped_gradients import Gradients
from veilset.engines.per_sample_gradients import Forward, PerSampleGradients
from veilset.nets.aggregating_critics import AggregatingCritic

Compression = Callable[[PerSampleGradients, float], Gradients]
"""What is done to an image's gradient before it is clipped to a norm."""
ClipOf = Callable[[Tensor], float]
"""The clip norm of gradients at a slope of the loss."""


def aligned_gradients(critic: AggregatingCritic, slope: Tensor) -> PerSampleGradients:
    """Of how far an image's features point along `slope`, the gradient of a loss in a mean of features."""

    def losses(_: Forward, inputs: Tensor, labels: Tensor) -> Tensor:
        return (critic.features(inputs, labels).flatten(1).float() * slope.flatten()).sum(dim=1)

    return PerSampleGradients(critic, critic.before_average(), losses, layerwise=True)
