"""The features of an image are the same to the last bit wherever it is measured, and never longer than 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from devices import DEVICES

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.nets import feature_bank
from veilset.nets.feature_bank import FeatureBank, num_blocks, shapes
from veilset.randomness import named_generator


def spec_of(height: int = 28, width: int | None = None, channels: int = 1) -> ImageSpec:
    return ImageSpec(height=height, width=width or height, channels=channels, class_names=("a", "b"))


def bank_of(spec: ImageSpec, count: int = 3, width: int = 8, seed: int = 0) -> FeatureBank:
    return FeatureBank.draw(spec, count, width, named_generator(seed, "bank"))


def images_of(spec: ImageSpec, count: int = 12, seed: int = 0) -> torch.Tensor:
    """Noise, strokes, flat and saturated images."""
    images = torch.rand(count, *spec.shape, generator=named_generator(seed, "images"))
    images = (images * 255).round() / 255
    images[: count // 3] = (images[: count // 3] > 0.9).float()
    images[-1], images[-2] = 0.0, 1.0
    return images


def reference(images: torch.Tensor, bank: FeatureBank, network: int) -> np.ndarray:
    """One network in 64-bit integers, written out: the definition."""
    hidden = (images.numpy() * 255).round().astype(np.int64) - 128
    for block, weight in enumerate(bank.weights):
        kernel = weight[network].numpy().astype(np.int64)
        padded = np.pad(hidden, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        sums = np.einsum("nchwij,ocij->nohw", windows, kernel).astype(np.float64)
        if block:
            sums = np.round(sums / feature_bank.SHRINK)
        mean = sums.mean((2, 3), keepdims=True)
        scale = feature_bank.LEVEL / np.sqrt(np.maximum(np.square(sums).mean((2, 3), keepdims=True) - mean**2, 0) + 4.0)
        active = np.clip((sums - mean) * scale, 0, 255)
        active = np.round(active)
        height, width = active.shape[2] // 2 * 2, active.shape[3] // 2 * 2
        four = active[:, :, :height, :width].reshape(*active.shape[:2], height // 2, 2, width // 2, 2)
        hidden = four.mean((3, 5))
        if block < len(bank.weights) - 1:
            hidden = np.round(hidden).astype(np.int64)
    flat = np.round(hidden * 16).reshape(len(images), -1)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-300)


def test_features_are_those_of_the_definition_in_integers() -> None:
    spec = spec_of()
    images, bank = images_of(spec), bank_of(spec, width=16)
    exact = bank.exact(images)
    for network in range(bank.count):
        # Rounding in float32 of (sum - mean) x scale may tip one activation in many thousand to its neighbour.
        close = np.isclose(exact[:, network].numpy(), reference(images, bank, network), atol=2e-3)
        assert close.mean() > 0.99


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("height", "width", "channels"), [(28, 28, 1), (32, 32, 3), (8, 21, 3), (64, 64, 1)])
def test_an_image_has_the_same_features_in_any_batch_and_at_any_place(
    height: int, width: int, channels: int, device: str
) -> None:
    spec = spec_of(height, width, channels)
    images, bank = images_of(spec).to(device), bank_of(spec).to(device)
    whole = bank.exact(images)
    assert whole.shape == (len(images), bank.count, bank.length)
    assert torch.equal(torch.cat([bank.exact(image[None]) for image in images]), whole)
    assert torch.equal(bank.exact(images.roll(5, 0)).roll(-5, 0), whole)
    assert torch.equal(bank.exact(torch.cat([images, images[:7]]))[: len(images)], whole)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("onednn", [True, False])
def test_the_largest_sums_are_exact_with_any_library(device: str, onednn: bool) -> None:
    """Kernels of one sign and black and white images: where transforms of a convolution are off the most."""
    spec = spec_of(12)
    draws = named_generator(0, "signs")
    signs = [torch.randint(0, 2, shape[:2], generator=draws) * 2 - 1 for shape in shapes(spec, 2, 224)]
    ones = [torch.ones(shape) for shape in shapes(spec, 2, 224)]
    kernels = [31 * one * sign[..., None, None, None] for one, sign in zip(ones, signs, strict=True)]
    bank = FeatureBank(kernels).to(device)
    images = (torch.rand(48, *spec.shape, generator=draws) > 0.5).float().to(device)
    with torch.backends.mkldnn.flags(enabled=onednn):
        assert torch.equal(torch.cat([bank.exact(image[None]) for image in images]), bank.exact(images))


def test_a_library_whose_convolutions_are_off_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of()
    images, bank = images_of(spec), bank_of(spec)
    right = bank.exact(images)

    def transformed(levels: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        return feature_bank._maps(levels, weights, lambda *given: feature_bank._grouped(*given) * (1 + 2**-16))

    monkeypatch.setattr(feature_bank, "_fast_maps", transformed)
    monkeypatch.setattr(feature_bank, "_TRUSTED", {})
    assert torch.equal(bank.exact(images), right)
    assert set(feature_bank._TRUSTED.values()) == {False}


def test_weights_from_elsewhere_are_brought_into_the_range_that_is_exact() -> None:
    spec = spec_of(8)
    (shape,) = shapes(spec, 1, 2)
    wild = torch.full(shape, 100.0)
    wild[0, 0] = torch.nan
    assert FeatureBank([wild]).weights[0].unique().tolist() == [0, 31]


def test_the_number_of_networks_computed_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of()
    images, bank = images_of(spec), bank_of(spec, count=5)
    together = bank.exact(images)
    monkeypatch.setattr(feature_bank, "WORKSPACE", {"cpu": 1, "cuda": 1})
    assert torch.equal(bank.exact(images), together)


def test_features_have_length_one_or_zero_and_flat_images_have_none() -> None:
    spec = spec_of()
    lengths = bank_of(spec).exact(images_of(spec)).norm(dim=-1)
    assert torch.allclose(lengths[:-2], torch.ones_like(lengths[:-2]), atol=1e-12)
    assert bool((lengths <= 1 + 1e-12).all())
    blank = bank_of(spec).exact(torch.full((1, *spec.shape), 0.5))
    assert blank.isfinite().all()


def test_an_image_that_is_no_number_spoils_its_own_features_only() -> None:
    spec = spec_of()
    images = images_of(spec)
    spoilt = images.clone()
    spoilt[3] = torch.nan
    bank = bank_of(spec)
    features = bank.exact(spoilt)
    assert not features[3].isfinite().any()
    others = torch.arange(len(images)) != 3
    assert torch.equal(features[others], bank.exact(images)[others])


def test_sums_of_the_widest_network_stay_exact() -> None:
    assert 9 * feature_bank.WIDEST * feature_bank.TOP * feature_bank.WEIGHT_TOP < 2**24
    largest = 9 * feature_bank.WIDEST * feature_bank.TOP * feature_bank.WEIGHT_TOP / feature_bank.SHRINK
    assert largest**2 * 256 * 256 < 2**53, "squares over the second block of the largest image"


def test_seen_from_a_centre_features_are_the_scaled_difference() -> None:
    spec = spec_of()
    images, plain = images_of(spec)[:-2], bank_of(spec)
    centre = plain.exact(images).mean(0).float()
    seen = FeatureBank(plain.weights, centre).exact(images)
    expected = F.normalize(plain.exact(images) - centre, dim=-1)
    assert torch.allclose(seen, expected, atol=1e-4)
    assert float(seen.mean(0).norm(dim=-1).max()) < 0.5 < float(plain.exact(images).mean(0).norm(dim=-1).min())


@pytest.mark.parametrize("channels", [1, 3])
def test_soft_features_are_the_exact_ones_up_to_rounding_and_have_gradients(channels: int) -> None:
    spec = spec_of(channels=channels)
    images, bank = images_of(spec)[:-2].requires_grad_(), bank_of(spec, width=16)
    which = torch.tensor([2, 0])
    soft = bank.soft(images, which)
    assert (
        float(F.cosine_similarity(soft.detach().double(), bank.exact(images.detach())[:, which], dim=-1).min()) > 0.99
    )
    soft.square().mean().backward()
    assert images.grad is not None
    assert float(images.grad.abs().sum()) > 0


def test_trained_weights_keep_their_features_on_the_integer_grid() -> None:
    spec = spec_of()
    draws = named_generator(1, "trained")
    weights = [torch.randn(shape, generator=draws) for shape in shapes(spec, 2, 16)]
    bank = FeatureBank.quantised(weights)
    assert int(bank.weights[0].abs().max()) == feature_bank.WEIGHT_TOP
    images = images_of(spec)[:-2]
    scaled = [weight * 10 for weight in weights]
    trained = F.normalize(feature_bank.soft_features(images, scaled), dim=-1)
    assert float(F.cosine_similarity(trained.double(), bank.exact(images), dim=-1).mean()) > 0.98


@pytest.mark.parametrize(("side", "blocks"), [(8, 1), (12, 2), (28, 3), (32, 3), (64, 4), (128, 5)])
def test_larger_images_get_more_blocks_and_the_same_number_of_features(side: int, blocks: int) -> None:
    spec = spec_of(side)
    assert num_blocks(spec) == blocks
    assert bank_of(spec, count=1, width=4).exact(torch.rand(1, *spec.shape)).shape == (1, 1, 36)


@pytest.mark.parametrize(("count", "width"), [(0, 8), (1, 0), (1, feature_bank.WIDEST + 1)])
def test_banks_that_could_not_be_exact_are_refused(count: int, width: int) -> None:
    with pytest.raises(ConfigError, match="network"):
        shapes(spec_of(), count, width)


def test_the_same_seed_draws_the_same_networks_and_another_seed_others() -> None:
    one, same, other = (bank_of(spec_of(), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.weights[1], same.weights[1])
    assert not torch.equal(one.weights[1], other.weights[1])


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 4, 5), 1), ((2, 4, 1, 3, 3), 2), ((2, 9, 4, 4), 1)])
def test_added_channels_are_zeros_behind_the_others(shape: tuple[int, ...], dim: int) -> None:
    values = torch.randn(shape, generator=named_generator(0, "values"))
    more = feature_bank._with_channels(values, dim, 8)
    assert more.shape[dim] == max(8, shape[dim])
    before, after = more.split([shape[dim], more.shape[dim] - shape[dim]], dim)
    assert torch.equal(before, values)
    assert not after.any()
