"""Tones see what the networks are blind to: how bright an image is, where, and nothing about other images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from veilset.nets.tone_bank import GRID, TONES, ToneBank
from veilset.randomness import named_generator


def images_of(side: int = 28, channels: int = 1) -> torch.Tensor:
    levels = torch.randint(0, 256, (6, channels, side, side), generator=named_generator(0, "images"))
    return levels.float() / 255


def test_a_black_image_has_its_whole_length_in_the_darkest_tone() -> None:
    shares = ToneBank(1).exact(torch.zeros(1, 1, 28, 28)).reshape(len(TONES), GRID, GRID)
    assert torch.allclose(shares[0], torch.full((GRID, GRID), 1 / GRID).double(), atol=1e-6)
    assert float(shares[1:].abs().max()) == 0


def test_two_flat_images_that_differ_in_brightness_differ_in_tones() -> None:
    dark, light = ToneBank(1).exact(torch.stack([torch.full((1, 28, 28), tone) for tone in (0.1, 0.9)]))
    assert float((dark * light).sum()) == 0


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (8, 3), (33, 1), (100, 3)])
def test_an_image_has_the_same_tones_in_any_batch_and_the_soft_ones_agree(side: int, channels: int) -> None:
    images, bank = images_of(side, channels), ToneBank(channels)
    whole = bank.exact(images)
    assert whole.shape == (6, 1, bank.length)
    assert torch.equal(torch.cat([bank.exact(image[None]) for image in images]), whole)
    soft = bank.soft(images, torch.tensor([0]))
    assert float(F.cosine_similarity(soft.double(), whole, dim=-1).min()) > 0.9999


def test_an_image_that_is_no_number_spoils_its_own_tones_only() -> None:
    images = images_of()
    spoilt = images.clone()
    spoilt[2] = torch.nan
    tones = ToneBank(1).exact(spoilt)
    assert not tones[2].isfinite().any()
    assert torch.equal(tones[3:], ToneBank(1).exact(images)[3:])
