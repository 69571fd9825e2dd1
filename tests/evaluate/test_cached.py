"""The vault's cache of features: used only for the same images and the same extractor, readable by its owner only."""

import logging
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from veilset.errors import RunError
from veilset.evaluate import cached
from veilset.evaluate.cached import cache_key, extract, extract_cached
from veilset.randomness import named_generator


class Counting:
    """Means of rows as features; counts the images it has seen."""

    name, hash, dim = "counting", "abc", 8

    def __init__(self):
        self.seen = 0

    def features(self, images):
        self.seen += len(images)
        return images.float().mean((1, 3))


def noise(count):
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=named_generator(0, "noise"))


def ignore(_):
    pass


def test_features_are_computed_once_and_then_read(tmp_path):
    extractor, images, ticks = Counting(), noise(10), []
    first = extract_cached(images, extractor, ticks.append, tmp_path / "vault")
    second = extract_cached(images, extractor, ticks.append, tmp_path / "vault")
    assert torch.equal(first, second)
    assert extractor.seen == 10
    assert ticks == [10, 10]


def test_evaluations_side_by_side_compute_the_features_once(tmp_path):
    extractor, images = Counting(), noise(10)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: extract_cached(images, extractor, ignore, tmp_path), range(4)))
    assert extractor.seen == 10
    assert all(torch.equal(features, found[0]) for features in found)


def test_the_cache_is_readable_by_its_owner_only(tmp_path):
    extract_cached(noise(10), Counting(), ignore, tmp_path / "vault")
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "vault").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "vault").stat().st_mode) == 0o700


def test_other_images_another_order_or_another_extractor_are_not_mistaken_for_the_cached_ones(tmp_path):
    images = noise(10)
    changed = images.clone()
    changed[3, 0, 0, 0] ^= 1
    keys = {
        cache_key(images, "abc"),
        cache_key(changed, "abc"),
        cache_key(images.flip(0), "abc"),
        cache_key(images[:9], "abc"),
        cache_key(images.reshape(10, 1, 4, 16), "abc"),
        cache_key(images, "abd"),
    }
    assert len(keys) == 6


@pytest.mark.parametrize("damage", [b"", b"not safetensors", b"\x00" * 100_000])
def test_a_damaged_cache_is_computed_again(tmp_path, caplog, damage):
    images, extractor = noise(10), Counting()
    expected = extract_cached(images, extractor, ignore, tmp_path)
    (file,) = tmp_path.glob("features-*")
    file.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(extract_cached(images, extractor, ignore, tmp_path), expected)
    assert "computing them again" in caplog.text
    assert extractor.seen == 20
    extract_cached(images, extractor, ignore, tmp_path)
    assert extractor.seen == 20


def test_progress_is_reported_chunk_by_chunk(monkeypatch):
    monkeypatch.setattr(cached, "CHUNK", 4)
    ticks = []
    features = extract(noise(10), Counting(), ticks.append)
    assert ticks == [4, 4, 2]
    assert torch.equal(features, Counting().features(noise(10)))


def test_a_folder_that_cannot_be_made_is_an_error_with_advice(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="another folder"):
        extract_cached(noise(2), Counting(), ignore, tmp_path / "file" / "vault")
