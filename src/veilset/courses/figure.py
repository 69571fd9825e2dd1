"""The figure of continual learning: accuracy over all classes so far, after each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from veilset.partition import Partition
from veilset.privacy.claim import Claim, shown
from veilset.report.compare import rounded_up
from veilset.report.plots import StagePanel, Trace

METRIC = "accuracy over all classes so far"
Accuracies = Sequence[tuple[float, float | None]]
"""Mean and spread after each task."""


def stage_panel(test: str, claim: Claim, partition: Partition, methods: Mapping[str, Accuracies]) -> StagePanel:
    """A panel of methods whose claims are all like this one."""
    title, terms = panel_terms(test, claim)
    return StagePanel(
        title=title,
        metric=METRIC,
        terms=terms,
        tasks=tuple("\n".join(task.classes) for task in partition.tasks),
        traces=tuple(_trace(name, accuracies) for name, accuracies in methods.items()),
    )


def panel_terms(test: str, claim: Claim) -> tuple[str, str]:
    """What the methods of one panel have in common: test images, epsilon, and what that means."""
    epsilon = shown(rounded_up(claim.epsilon or 0.0))
    return f"{test}, epsilon {epsilon}", f"delta {claim.delta:g}, {claim.adjacency} of one {claim.unit}"


def _trace(name: str, accuracies: Accuracies) -> Trace:
    return Trace(
        label=name,
        steps=tuple(range(1, len(accuracies) + 1)),
        mean=tuple(mean for mean, _ in accuracies),
        sd=tuple(sd or 0.0 for _, sd in accuracies),
    )
