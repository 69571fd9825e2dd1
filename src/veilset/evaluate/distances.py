"""Euclidean distances between many vectors, in pieces that fit into memory, in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

MAX_ENTRIES = 1 << 25
"""Of one piece of a distance matrix: 256 MB."""
_SAME = 1e-12
"""Squared distances below this share of the squared lengths are rounding: the vectors are the same."""


def squared_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """All squared distances between two sets of float64 vectors; exactly 0 between equal ones."""
    lengths = rows.square().sum(1)[:, None] + columns.square().sum(1)[None, :]
    found = torch.addmm(lengths, rows, columns.T, alpha=-2)
    return found.masked_fill_(found <= _SAME * lengths, 0.0)


def distance_pieces(rows: Tensor, columns: Tensor, *, max_entries: int = MAX_ENTRIES) -> Iterator[tuple[slice, Tensor]]:
    """Yields (which rows, their squared distances to all columns)."""
    size = max(1, max_entries // max(1, len(columns)))
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        yield part, squared_distances(rows[part], columns)


def neighbour_radii(vectors: Tensor, count: int, *, max_entries: int = MAX_ENTRIES) -> Tensor:
    """Squared distances of every vector to its `count` nearest others, ascending: (n, count)."""
    found = []
    for part, squared in distance_pieces(vectors, vectors, max_entries=max_entries):
        own = torch.arange(len(vectors), device=vectors.device)[part]
        squared[torch.arange(len(own), device=vectors.device), own] = torch.inf
        found.append(squared.topk(count, dim=1, largest=False).values)
    return torch.cat(found)


def statistics_device(device: torch.device | str) -> torch.device:
    """Where double precision is at home: CUDA or the CPU."""
    device = torch.device(device)
    return device if device.type == "cuda" else torch.device("cpu")
