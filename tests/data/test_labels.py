from __future__ import annotations

import numpy as np
import pytest
import torch

from veilset.data.labels import MAX_CLASSES, resolve_labels, text_column
from veilset.errors import DataError


@pytest.mark.parametrize(
    "labels",
    [
        [2, 0],
        (2, 0),
        np.array([2, 0], np.uint8),
        np.array([[2], [0]]),
        torch.tensor([2, 0]),
        ["2", "0"],
        np.array(["2", "0"]),
    ],
)
def test_whole_numbers_are_indices(labels: object) -> None:
    numbers, names = resolve_labels(labels, None)
    assert numbers.tolist() == [2, 0]
    assert numbers.dtype == torch.int64
    assert names == ("0", "1", "2")


def test_true_and_false_are_two_classes() -> None:
    assert resolve_labels(np.array([True, False]), None)[0].tolist() == [1, 0]


def test_listed_names_win_over_numbers() -> None:
    assert resolve_labels(["7", "3"], ("7", "3"))[0].tolist() == [0, 1]
    assert resolve_labels(["1", "0"], ("cat", "dog"))[0].tolist() == [1, 0]


def test_numbers_with_leading_zeros_are_names() -> None:
    assert resolve_labels(["007", "7"], None)[1] == ("007", "7")


@pytest.mark.parametrize(
    "labels",
    [
        [-1, 0],
        [0, 3],
        [0.0, 1.0],
        [0, None],
        [[0, 1], [1, 0]],
        [],
        3,
        None,
        [[0], [0, 1]],
        np.array([2**63], np.uint64),
        np.array([b"a"]),
        ["cat", "bee"],
    ],
)
def test_unusable_labels_are_refused(labels: object) -> None:
    with pytest.raises(DataError):
        resolve_labels(labels, ("ant", "bee", "cow"))


def test_label_that_must_be_a_mistake_is_refused() -> None:
    with pytest.raises(DataError, match=str(MAX_CLASSES - 1)):
        resolve_labels([0, 10**9], None)
    with pytest.raises(DataError, match="at most"):
        resolve_labels([f"name {index}" for index in range(MAX_CLASSES + 1)], None)


def test_columns_become_text() -> None:
    assert text_column([1, 2], "ids") == ("1", "2")
    assert text_column(np.array(["a", "b"]), "ids") == ("a", "b")
    assert text_column(torch.tensor([3]), "ids") == ("3",)
    assert text_column(None, "ids") is None
    for wrong in ([1.5], [None], [[1]], 3, [True]):
        with pytest.raises(DataError, match="ids"):
            text_column(wrong, "ids")
