"""What is declared public is compared with what is private before any network learns from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contract.cases import make_images
from PIL import Image

from veilset.budget import DatasetBudget
from veilset.data.load import load
from veilset.data.spec import ImageSet, Source
from veilset.engines.public_images import public_images
from veilset.errors import ConfigError
from veilset.privacy.bounds import Adjacency, Unit


def saved(path: Path, images: ImageSet) -> str:
    np.savez(path, x=images.pixels[:, 0].numpy(), y=images.labels.numpy())
    return str(path)


def test_images_of_strangers_are_read_in_the_shape_of_the_private_ones(tmp_path: Path) -> None:
    private, strangers = make_images(), make_images(seed=1)
    public = public_images(saved(tmp_path / "public.npz", strangers), private)
    assert public.spec.shape == private.spec.shape
    assert len(public) == len(strangers)


def test_one_private_image_among_them_is_enough_to_refuse(tmp_path: Path) -> None:
    private, strangers = make_images(), make_images(seed=1)
    strangers.pixels[3] = private.pixels[0]
    with pytest.raises(ConfigError, match="some of the private ones"):
        public_images(saved(tmp_path / "public.npz", strangers), private)


def test_the_private_file_itself_is_refused_however_it_was_read(tmp_path: Path) -> None:
    name = saved(tmp_path / "data.npz", make_images(seed=1))
    with pytest.raises(ConfigError, match="the private ones"):
        public_images(name, replace(make_images(), source=Source(path=name)))


def test_images_with_a_budget_are_not_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILSET_HOME", str(tmp_path / "home"))
    name = saved(tmp_path / "secret.npz", make_images(seed=1))
    DatasetBudget.create(Path(name), epsilon=1.0, delta=1e-5, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD)
    with pytest.raises(ConfigError, match="budget"):
        public_images(name, make_images())


def test_copies_of_private_files_are_found_however_those_were_brought_to_their_size(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for name in ("private", "copy"):
        (tmp_path / name / "a").mkdir(parents=True)
    for number in range(4):
        picture = Image.fromarray(draws.integers(0, 256, (20, 12), dtype=np.uint8))
        for name in ("private", "copy"):
            picture.save(tmp_path / name / "a" / f"{number}.png")
    for fit in ("crop", "stretch"):
        private = load(tmp_path / "private", size=(8, 8), fit=fit).in_memory()
        with pytest.raises(ConfigError, match="some of the private ones"):
            public_images(str(tmp_path / "copy"), private)
