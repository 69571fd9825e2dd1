import math

import torch

from veilset.evaluate.augment import crop_scale_or_rotate, random_crops_and_flips
from veilset.randomness import named_generator


def test_augmentation_changes_every_image_by_one_of_three_bounded_moves():
    bar = torch.zeros(300, 1, 32, 32)
    bar[:, :, 8:24, 14:18] = 1
    moved = crop_scale_or_rotate(bar, named_generator(0, "moves"))
    assert moved.shape == bar.shape
    rows = torch.arange(32.0) - 15.5
    mass = moved.sum((1, 2, 3))
    down, right = ((moved.sum((1, axis)) * rows).sum(1) / mass for axis in (3, 2))
    cross = (moved[:, 0] * rows[:, None] * rows[None, :]).sum((1, 2)) / mass
    shifted = (down.abs() > 0.4) | (right.abs() > 0.4)
    turned = ~shifted & (cross.abs() > 0.2)
    for share in (shifted, turned, ~shifted & ~turned):
        assert 0.2 < float(share.double().mean()) < 0.47
    assert max(float(down.abs().max()), float(right.abs().max())) <= 4.01
    # A bar of 16 x 4 turned by 45 degrees at most: its covariance is at most half the difference of its variances.
    assert float(cross[turned].abs().max()) < (16**2 - 4**2) / 24 * 1.1
    assert float(mass.max() / 64) < 1.2**2 * 1.1


def test_augmentation_depends_on_its_generator_alone():
    images = torch.rand(8, 3, 9, 13, generator=named_generator(0, "images"))
    first, again = (crop_scale_or_rotate(images, named_generator(0, "moves")) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, crop_scale_or_rotate(images, named_generator(1, "moves")))
    assert math.isclose(float(crop_scale_or_rotate(images * 0, named_generator(0, "moves")).abs().max()), 0)


def test_every_crop_is_a_shifted_and_perhaps_mirrored_copy_of_its_own_image():
    images = torch.rand(64, 3, 6, 7, generator=named_generator(0, "images"))
    crops = random_crops_and_flips(images, named_generator(0, "crops"), padding=2)
    assert crops.shape == images.shape
    seen = set()
    for image, crop in zip(images, crops, strict=True):
        padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
        found = [
            (top, left, flip)
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            if torch.equal(
                crop,
                padded[:, top : top + 6, left : left + 7].flip(2)
                if flip
                else padded[:, top : top + 6, left : left + 7],
            )
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert {flip for _, _, flip in seen} == {False, True}
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(5))
