"""Keyed hashes: the same picture is recognised, and nothing can be read off them without the key."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from contract.cases import make_images

import veilset
from veilset.data.fingerprints import count_known, fingerprints, record_fingerprint

from .helpers import class_folder

KEY, OTHER_KEY = b"a" * 32, b"b" * 32


def test_the_same_picture_is_known_whatever_its_label_or_place() -> None:
    images = make_images((20, 10))
    shuffled = images.subset(torch.arange(30).flip(0))
    relabelled = replace(shuffled, labels=1 - shuffled.labels)
    assert count_known(relabelled, fingerprints(images, KEY), KEY) == 30


def test_one_grey_level_makes_another_picture() -> None:
    images = make_images((20, 10))
    pixels = images.pixels.clone()
    pixels[3, 0, 0, 0] ^= 1
    assert count_known(replace(images, pixels=pixels), fingerprints(images, KEY), KEY) == 29


def test_another_key_gives_other_hashes_so_that_runs_cannot_be_linked() -> None:
    images = make_images((20, 10))
    known = fingerprints(images, KEY)
    assert not set(known.tolist()) & set(fingerprints(images, OTHER_KEY).tolist())
    assert count_known(images, known, OTHER_KEY) == 0


def test_hashes_are_sorted_and_single_so_that_they_hold_no_order_of_records() -> None:
    images = make_images((20, 10))
    twice = images.subset(torch.arange(60) % 30)
    known = fingerprints(twice, KEY)
    assert np.array_equal(known, fingerprints(images.subset(torch.arange(30).flip(0)), KEY))
    assert np.array_equal(known, np.sort(known))
    assert len(known) == 30


def test_unreadable_records_are_no_pictures() -> None:
    images = make_images((20, 10))
    damaged = replace(images, valid=torch.arange(30) >= 4)
    assert len(fingerprints(damaged, KEY)) == 26
    assert count_known(damaged, fingerprints(images, KEY), KEY) == 26
    assert count_known(damaged.subset(torch.arange(4)), fingerprints(images, KEY), KEY) == 0


def test_one_hash_of_all_records_depends_on_them_and_their_order_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images((20, 10), null_rows=(3,))
    whole, known = record_fingerprint(images, KEY)
    assert np.array_equal(known, fingerprints(images, KEY))
    monkeypatch.setattr("veilset.data.fingerprints.BATCH", 7)
    assert np.array_equal(record_fingerprint(images, KEY)[0], whole)
    names = tuple(f"{number}" for number in range(30))
    others = [replace(images, ids=names), replace(images, users=names), images.subset(torch.arange(30).flip(0))]
    found = {record_fingerprint(other, KEY)[0].tobytes() for other in (images, *others)}
    assert len({*found, record_fingerprint(images, OTHER_KEY)[0].tobytes()}) == 5


def test_mnist_shares_no_image_between_its_parts_and_is_hashed_within_seconds() -> None:
    train, test = veilset.load("mnist"), veilset.load("mnist", split="test")
    started = time.process_time()
    known = fingerprints(train, KEY)
    assert count_known(test, known, KEY) == 0
    assert time.process_time() - started < 5
    assert known.nbytes <= 8 * 60_000


def test_images_on_disk_have_the_fingerprints_they_have_in_memory(tmp_path: Path) -> None:
    folder = class_folder(tmp_path, 5)
    (folder / "cat" / "broken.png").write_bytes(b"")
    on_disk, seen = veilset.data.stream(folder, in_memory=0), []
    known = fingerprints(on_disk, KEY, lambda done, total: seen.append((done, total)))
    assert np.array_equal(known, fingerprints(veilset.load(folder), KEY))
    assert len(known) == count_known(on_disk, known, KEY) == 10
    assert seen == [(11, 11)]
