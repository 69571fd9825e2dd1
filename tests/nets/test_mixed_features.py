"""Mixtures of features: exact as the features are, and telling spread as well as place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from devices import DEVICES
from test_feature_bank import bank_of, images_of, spec_of

from veilset.nets import feature_bank
from veilset.nets.feature_bank import FeatureBank
from veilset.nets.mixed_features import MIXTURES, STEPS, MixedBank


def mixed_of(channels: int = 1, width: int = 8) -> MixedBank:
    spec = spec_of(channels=channels)
    networks = bank_of(spec, width=width)
    centre = networks.exact(images_of(spec, seed=1)).mean(0)
    return MixedBank(networks.seen_from(centre))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_has_the_same_mixtures_in_any_batch_and_at_any_place(channels: int, device: str) -> None:
    images, bank = images_of(spec_of(channels=channels)).to(device), mixed_of(channels).to(device)
    whole = bank.exact(images)
    assert whole.shape == (len(images), bank.count, bank.length)
    assert torch.equal(torch.cat([bank.exact(image[None]) for image in images]), whole)
    assert torch.equal(bank.exact(images.roll(5, 0)).roll(-5, 0), whole)
    assert torch.equal(whole.cpu(), mixed_of(channels).exact(images.cpu()))


def test_mixtures_are_whole_numbers_that_float32_adds_up_exactly() -> None:
    images, bank = images_of(spec_of()), mixed_of(width=32)
    which = torch.arange(bank.count)
    whole = bank.whole((images * 255).round(), which)
    assert torch.equal(whole, whole.round())
    features = (bank.networks.exact(images) * STEPS).round()
    assert torch.equal(whole, (features.float() @ bank.mixture).relu().double())
    assert float((features.abs() @ bank.mixture.double().abs()).max()) < 2**24


def test_no_features_of_length_one_and_no_matrix_in_range_can_leave_that_range() -> None:
    longest = feature_bank.MAP**2 * feature_bank.WIDEST
    assert (longest**0.5 * STEPS + longest) * feature_bank.WEIGHT_TOP < 2**24


@pytest.mark.parametrize("width", [1, 32, 128, feature_bank.WIDEST])
def test_the_squared_lengths_of_mixtures_are_whole_numbers_that_float64_adds_up_exactly(width: int) -> None:
    features = feature_bank.MAP**2 * width
    bank = MixedBank(FeatureBank([torch.zeros(1, width, 1, 3, 3)]))
    assert bank.mixture.shape == (features, MIXTURES)
    stretched = (STEPS + features**0.5) * float(torch.linalg.matrix_norm(bank.mixture, 2))
    assert stretched**2 < 2**53


def test_narrow_networks_have_as_many_mixtures_as_wide_ones() -> None:
    assert {mixed_of(width=width).length for width in (4, 16)} == {MIXTURES}


def test_soft_mixtures_are_the_exact_ones_up_to_rounding_and_have_gradients() -> None:
    images, bank = images_of(spec_of())[:-2].requires_grad_(), mixed_of(width=16)
    which = torch.tensor([2, 0])
    soft = bank.soft(images, which)
    exact = bank.exact(images.detach())[:, which]
    assert float(F.cosine_similarity(soft.detach().double(), exact, dim=-1).min()) > 0.98
    soft.square().mean().backward()
    assert images.grad is not None
    assert float(images.grad.abs().sum()) > 0


def test_an_image_that_is_no_number_spoils_its_own_mixtures_only() -> None:
    images, bank = images_of(spec_of()), mixed_of()
    spoilt = images.clone()
    spoilt[3] = torch.nan
    found = bank.exact(spoilt)
    others = torch.arange(len(images)) != 3
    assert not found[3].isfinite().any()
    assert torch.equal(found[others], bank.exact(images)[others])


def test_seen_from_another_centre_the_mixtures_are_the_same_ones() -> None:
    images, bank = images_of(spec_of())[:-2], mixed_of()
    centre = bank.exact(images).mean(0)
    seen = bank.seen_from(centre)
    assert torch.equal(seen.mixture, bank.mixture)
    assert torch.allclose(seen.exact(images), F.normalize(bank.exact(images) - centre, dim=-1), atol=1e-4)


def test_two_classes_with_one_mean_and_another_spread_differ_in_their_mixtures() -> None:
    """Pairs of opposite features: their mean is zero for any network, however far apart they are."""

    class Opposite(FeatureBank):
        def soft(self, images: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
            return images.flatten(1)[:, None, : self.length].expand(-1, len(which), -1)

    networks = Opposite(bank_of(spec_of(28), count=1, width=8).weights)
    bank = MixedBank(networks)
    draws = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    one, other = (torch.stack([value[None, 0], -value[None, 0]]) for value in draws)
    which = torch.tensor([0])
    assert torch.allclose(networks.soft(one, which).mean(0), networks.soft(other, which).mean(0), atol=1e-6)
    means = [bank.soft(pair, which).mean(0) for pair in (one, other)]
    assert float((means[0] - means[1]).norm()) > 0.1
