"""A model that is a set of images gives each of them once before any again."""

from __future__ import annotations

import torch
from torch import Tensor

from veilset.data.spec import ImageSpec
from veilset.nets.image_sets import FixedImages, labels_of
from veilset.randomness import named_generator

SPEC = ImageSpec(height=8, width=9, channels=1, class_names=("a", "b", "c"))


def numbered(per_class: int) -> FixedImages:
    """Image i has all values i."""
    model = FixedImages(SPEC, per_class)
    model.values.copy_(torch.arange(len(model.values))[:, None].expand_as(model.values))
    return model


def drawn(model: FixedImages, labels: Tensor, seed: int = 0) -> list[int]:
    return [int(image[0, 0, 0]) for image in model.sample(labels, named_generator(seed, "samples"))]


def test_as_many_samples_as_images_are_the_set_itself_in_an_order_by_chance() -> None:
    model = numbered(5)
    labels = labels_of(SPEC, 5, torch.device("cpu"))
    first, second = drawn(model, labels, 0), drawn(model, labels, 1)
    assert sorted(first) == sorted(second) == list(range(15))
    assert first != second


def test_samples_have_the_labels_asked_for_in_any_order() -> None:
    labels = torch.tensor([2, 0, 0, 1, 2, 0, 1])
    assert [number // 5 for number in drawn(numbered(5), labels)] == labels.tolist()


def test_more_samples_than_images_repeat_all_of_them_evenly() -> None:
    found = torch.tensor(drawn(numbered(4), torch.tensor([1] * 10)))
    counts = torch.bincount(found, minlength=12)
    assert counts[:4].tolist() == counts[8:].tolist() == [0] * 4
    assert sorted(counts[4:8].tolist()) == [2, 2, 3, 3]
