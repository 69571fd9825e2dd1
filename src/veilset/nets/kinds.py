"""Kinds of images within a class: those that resemble the same prototype more than any other of their class.

A sum over a whole class says little about a class of many kinds; a sum for each kind says what each looks like. An
image still enters one sum only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

GRID = 2.0**14
"""Steps of 1 on which rows and prototypes are compared."""


class Kinds(nn.Module):
    """Prototypes of every class in the space of rows of length 1, as whole numbers of steps, (classes, kinds, numbers).

    Exact: products of whole numbers below 2^53 add up to the same in any order, so an image's kind cannot change with
    its place in a batch.
    """

    def __init__(self, prototypes: Tensor) -> None:
        super().__init__()
        self.register_buffer("prototypes", prototypes.to(torch.int16))
        self.prototypes: Tensor

    @classmethod
    def near(cls, centres: Tensor) -> Kinds:
        """From (classes, kinds, numbers) centres of length at most 1."""
        return cls((centres.double() * GRID).round())

    @property
    def per_class(self) -> int:
        return self.prototypes.shape[1]

    def of(self, rows: Tensor, labels: Tensor) -> Tensor:
        """(n, numbers) rows and their labels -> label * kinds + kind, the numbers of their groups."""
        whole = (rows.double() * GRID).round()
        prototypes = self.prototypes.to(torch.float64)
        # Of squared distances all but 2 row * prototype - prototype^2 is the same for every prototype.
        near = 2 * whole @ prototypes.flatten(0, 1).T - prototypes.square().sum(2).flatten()
        own = near.unflatten(1, prototypes.shape[:2])[torch.arange(len(rows), device=rows.device), labels]
        return labels * self.per_class + own.argmax(1)
