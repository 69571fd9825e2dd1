"""Tones see what the networks are blind to: how bright an image is, where, and nothing about other images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from veilset.nets.tone_bank import EMPHASIS, GRID, PER_CELL, STEPS, TONES, ToneBank
from veilset.randomness import named_generator


def images_of(side: int = 28, channels: int = 1) -> torch.Tensor:
    levels = torch.randint(0, 256, (6, channels, side, side), generator=named_generator(0, "images"))
    return levels.float() / 255


def test_a_black_image_has_climbed_no_step_and_a_white_one_all() -> None:
    black, white = ToneBank(1).exact(torch.stack([torch.full((1, 28, 28), tone) for tone in (0.0, 1.0)]))
    climbed, not_climbed, near = black.reshape(PER_CELL, GRID, GRID).split([len(STEPS), len(STEPS), len(TONES)])
    full = ((len(STEPS) + EMPHASIS**2) * GRID * GRID) ** -0.5
    assert float(climbed.abs().max()) == 0
    assert torch.allclose(not_climbed, torch.full_like(not_climbed, full), atol=1e-6)
    assert torch.allclose(near[0], torch.full_like(near[0], EMPHASIS * full), atol=1e-6)
    assert float(near[1:].abs().max()) == 0
    assert float((black * white).sum()) < 0.01


def test_a_level_between_two_tones_counts_for_both_in_proportion() -> None:
    level = 100  # between the tones 96 and 128
    (tones,) = ToneBank(1).exact(torch.full((1, 1, 14, 14), level / 255))
    near = tones.reshape(PER_CELL, GRID, GRID)[-len(TONES) :, 0, 0]
    expected = torch.tensor([max(0.0, 1 - abs(level - tone) / 32) for tone in TONES], dtype=torch.float64)
    torch.testing.assert_close(near / near.sum(), expected, rtol=1e-3, atol=1e-6)


def test_a_background_that_is_too_bright_is_told_to_darken_however_bright_it_is() -> None:
    bank, black = ToneBank(1), torch.zeros(1, 1, 14, 14)
    for level in (0.05, 0.45, 0.7, 0.95):
        image = torch.full((1, 1, 14, 14), level, requires_grad=True)
        which = torch.tensor([0])
        (bank.soft(image, which) - bank.soft(black, which)).square().sum().backward()
        assert image.grad is not None
        assert float(image.grad.min()) > 0


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
