"""Images optimised pixel by pixel: their mean features come close to the released ones."""

from __future__ import annotations

import pytest
import torch

from veilset.data.spec import ImageSpec
from veilset.engines.matching import Target
from veilset.errors import ConfigError
from veilset.nets.feature_bank import FeatureBank
from veilset.nets.jitter import STILL
from veilset.pixel_sets import match_pixels
from veilset.randomness import named_generator

SPEC = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b"))


def target() -> Target:
    bank = FeatureBank.draw(SPEC, 3, 4, named_generator(0, "networks"))
    images = torch.rand(2, *SPEC.shape, generator=named_generator(0, "images"))
    return Target(bank, bank.soft(images, torch.arange(3)), 1.0)


def distance(aim: Target, pixels: torch.Tensor, per_class: int) -> float:
    features = aim.bank.soft(pixels, torch.arange(3)).reshape(2, per_class, 3, -1).mean(1)
    return float((features - aim.means).square().sum())


def matched(steps: int, per_class: int = 2) -> torch.Tensor:
    return match_pixels(
        [target()], SPEC, per_class=per_class, steps=steps, networks_per_step=3, jitter=STILL, seed=0,
        device=torch.device("cpu"), progress=lambda *_: None,
    )  # fmt: skip


def test_optimised_images_have_the_wanted_mean_features() -> None:
    start, end = matched(0), matched(200)
    assert end.shape == (4, 1, 8, 8)
    assert 0 <= float(end.min()) <= float(end.max()) <= 1
    assert distance(target(), end, 2) < 0.2 * distance(target(), start, 2)


@pytest.mark.parametrize("per_class", [0, -1, 10**6])
def test_a_number_of_images_nobody_means_is_refused(per_class: int) -> None:
    with pytest.raises(ConfigError, match="per-class"):
        matched(1, per_class)
