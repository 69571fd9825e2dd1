"""What every model's `sample` keeps to: shape, classes asked for, reproducible by seed, independent of global state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from devices import DEVICES
from PIL import Image

from veilset.model import from_pretrained

from .cases import METHODS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("device", DEVICES)
def test_samples_are_images_of_the_declared_kind(method: str, device: str, finished_runs: dict[str, Path]) -> None:
    model = from_pretrained(finished_runs[method])
    samples = model.sample(11, device=device)
    assert samples.spec == model.spec
    assert samples.pixels.shape == (11, 1, 8, 8)
    assert samples.pixels.dtype == torch.uint8
    assert samples.pixels.device.type == samples.labels.device.type == "cpu"
    assert bool(samples.valid.all())
    assert samples.ids is None
    assert samples.users is None


@pytest.mark.parametrize("method", METHODS)
def test_samples_depend_on_the_seed_and_on_no_global_state(method: str, finished_runs: dict[str, Path]) -> None:
    model = from_pretrained(finished_runs[method])
    torch.manual_seed(1)
    first = model.sample(8, seed=4).pixels
    torch.manual_seed(2)
    assert torch.equal(model.sample(8, seed=4).pixels, first)
    assert not torch.equal(model.sample(8, seed=5).pixels, first)


@pytest.mark.parametrize("method", METHODS)
def test_sampling_changes_nothing_in_the_model(method: str, finished_runs: dict[str, Path]) -> None:
    model = from_pretrained(finished_runs[method])
    before = {name: tensor.clone() for name, tensor in model._module.state_dict().items()}
    model.sample(30)
    after = model._module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not model._module.training


@pytest.mark.parametrize("method", ["psg", "ndpdc"])
def test_the_picture_of_a_set_shows_each_of_its_images_once(method: str, finished_runs: dict[str, Path]) -> None:
    model = from_pretrained(finished_runs[method])
    assert model.size is not None
    picture = np.asarray(Image.open(finished_runs[method] / "release" / "samples.png"))
    rows = picture.reshape(model.spec.num_classes, -1, 4, picture.shape[1] // 4).transpose(0, 2, 1, 3)
    filled = [[tile for tile in row if (tile != 128).any()] for row in rows]
    assert [len(row) for row in filled] == [min(10, model.size // model.spec.num_classes)] * model.spec.num_classes
    assert all(len({tile.tobytes() for tile in row}) == len(row) for row in filled)
