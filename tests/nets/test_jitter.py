from __future__ import annotations

import pytest
import torch

from veilset.errors import ConfigError
from veilset.nets.jitter import KINDS, STILL, Jitter, jitter_of
from veilset.randomness import named_generator


def square() -> torch.Tensor:
    images = torch.zeros(50, 1, 21, 21)
    images[:, :, 8:13, 8:13] = 1
    return images


def draws() -> torch.Generator:
    return named_generator(0, "jitter")


def test_without_jitter_images_are_untouched() -> None:
    images = square()
    assert STILL(images, draws()) is images


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_every_image_changes_by_itself_and_keeps_most_of_its_ink(kind: str) -> None:
    images = square()
    changed = jitter_of(kind)(images, draws())
    ink = changed.sum((1, 2, 3))
    assert bool(((ink > 15) & (ink < 40)).all())
    assert changed.std(0).sum() > 0


def test_a_shift_moves_the_centre_by_at_most_its_share() -> None:
    moved = Jitter(shift=0.1)(square(), draws())
    rows = (moved.sum((1, 3)) * torch.arange(21)).sum(1) / moved.sum((1, 2, 3))
    assert float((rows - 10).abs().max()) <= 0.1 * 21 + 1e-3
    assert float((rows - 10).abs().max()) > 1


def test_jitter_has_gradients() -> None:
    images = square().requires_grad_()
    KINDS["handwriting"](images, draws()).sum().backward()
    assert images.grad is not None
    assert float(images.grad.sum()) > 0


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="handwriting"):
        jitter_of("letters")
