"""Kinds of images in a class: which prototype a row resembles, exactly and whatever stands beside it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from veilset.nets.kinds import Kinds
from veilset.randomness import named_generator

DRAWS = named_generator(0, "kinds")
ROWS = F.normalize(torch.randn(40, 300, generator=DRAWS, dtype=torch.float64), dim=1)
LABELS = torch.arange(40) % 2
CENTRES = F.normalize(torch.randn(2, 3, 300, generator=DRAWS, dtype=torch.float64), dim=2) * 0.7


def test_a_row_belongs_to_the_nearest_prototype_of_its_own_class() -> None:
    groups = Kinds.near(CENTRES).of(ROWS, LABELS)
    for row, label, group in zip(ROWS, LABELS, groups, strict=True):
        assert int(group) == 3 * int(label) + int((CENTRES[label] - row).norm(dim=1).argmin())
    assert len(groups.unique()) == 6


def test_a_kind_does_not_depend_on_what_stands_beside_a_row_to_the_last_bit() -> None:
    kinds = Kinds.near(CENTRES)
    # Exactly between two prototypes: the least difference would show.
    between = F.normalize(kinds.prototypes[0, 0].double() + kinds.prototypes[0, 1].double(), dim=0)
    rows, labels = torch.cat([ROWS, between[None]]), torch.cat([LABELS, torch.zeros(1, dtype=torch.int64)])
    together = kinds.of(rows, labels)
    alone = torch.cat([kinds.of(row[None], label[None]) for row, label in zip(rows, labels, strict=True)])
    turned = kinds.of(rows.flip(0), labels.flip(0)).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, turned)


def test_a_row_of_zeros_has_some_kind_of_its_class() -> None:
    groups = Kinds.near(CENTRES).of(torch.zeros(2, 300), torch.tensor([0, 1]))
    assert torch.equal(groups // 3, torch.tensor([0, 1]))
