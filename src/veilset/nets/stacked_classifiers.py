"""Stacks of independent classifiers, laid out as critics are. Vault side.

A classifier of DPAC (Chen et al. 2023) is a critic that ends in one logit a class, and its score of an image x of class
y is a margin: c(x, y) = logit_y - mean of the other logits. That is linear in the logits, so that scores, gradients and
power iteration are those of critics.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from veilset.nets.critics import Critics, Ready


class Classifiers(Critics):
    """The layout of classifiers; their scores are margins."""

    def _head(self, last: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
        return (self.spec.num_classes, last), []

    def _last_layer(self, ready: Ready, labels: Tensor) -> tuple[Tensor, Tensor]:
        matrix, bias = ready.matrices[-1], ready.biases[-1]
        of_label = F.one_hot(labels, self.spec.num_classes).to(matrix.dtype)
        margin = of_label - (1 - of_label) / max(1, self.spec.num_classes - 1)
        margin = margin.expand(len(matrix), -1, -1)
        return margin @ matrix, (margin @ bias[:, :, None]).squeeze(2)
