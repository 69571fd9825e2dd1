"""Sampling in exact shares, loading, saving, and errors that say what was wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract.cases import make_images, tiny_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from veilset import model as model_module
from veilset.data.spec import ImageSpec
from veilset.errors import ArtifactError, ConfigError, RunError, VeilsetError
from veilset.methods.base import get_method
from veilset.model import Model, from_pretrained
from veilset.nets.image_sets import FixedImages
from veilset.randomness import named_generator
from veilset.run import execute


def labels_for(count: int, mix: dict[str, float] | None, classes: int = 3) -> torch.Tensor:
    """The labels of samples, without a generator behind them."""
    bare = Model.__new__(Model)
    bare.spec = ImageSpec(height=8, width=8, channels=1, class_names=tuple(f"kind {k}" for k in range(classes)))
    return bare._labels(count, mix)


@pytest.mark.parametrize(
    ("count", "mix", "expected"),
    [
        (9, None, [3, 3, 3]),
        (10, None, [4, 3, 3]),
        (11, None, [4, 4, 3]),
        (1, None, [1, 0, 0]),
        (8, {"kind 0": 3, "kind 1": 1}, [6, 2, 0]),
        (7, {"kind 0": 3, "kind 1": 1}, [5, 2, 0]),
        (10, {"kind 2": 0.2}, [0, 0, 10]),
        (100, {"kind 0": 0.5, "kind 1": 0.3, "kind 2": 0.2}, [50, 30, 20]),
        (3, {"kind 0": 0.001, "kind 1": 1, "kind 2": 1}, [0, 2, 1]),
    ],
)
def test_shares_are_exact_by_largest_remainder(count: int, mix: dict[str, float] | None, expected: list[int]) -> None:
    assert torch.bincount(labels_for(count, mix), minlength=3).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1000), min_size=1, max_size=12).filter(lambda shares: sum(shares) > 1e-3), st.integers(1, 400)
)
def test_every_class_gets_its_share_rounded_up_or_down(shares: list[float], count: int) -> None:
    mix = {f"kind {k}": share for k, share in enumerate(shares)}
    counts = torch.bincount(labels_for(count, mix, len(shares)), minlength=len(shares))
    assert int(counts.sum()) == count
    for share, got in zip(shares, counts.tolist(), strict=True):
        assert abs(got - share / sum(shares) * count) < 1 + 1e-9


def test_any_prefix_of_the_labels_is_mixed() -> None:
    labels = labels_for(90, {"kind 0": 6, "kind 1": 2, "kind 2": 1})
    for end in (9, 18, 45):
        counts = torch.bincount(labels[:end], minlength=3)
        assert (counts - torch.tensor([6, 2, 1]) * end / 9).abs().max() <= 1


def test_samples_have_the_labels_asked_for(model: Model) -> None:
    assert Counter(model.sample(10, mix={"kind 1": 1, "kind 2": 4}).labels.tolist()) == {1: 2, 2: 8}


@pytest.mark.parametrize(
    "mix",
    [
        {},
        {"no such class": 1},
        {"kind 0": 1, "no such class": 0},
        {"kind 0": -1, "kind 1": 2},
        {"kind 0": 0},
        {"kind 0": float("nan")},
        {"kind 0": float("inf")},
        {"kind 0": "much"},
        {"kind 0": None},
        {"kind 0": 1e308, "kind 1": 1e308},
    ],
    ids=str,
)
def test_a_mix_that_means_nothing_is_refused(model: Model, mix: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="shares"):
        model.sample(5, mix=mix)


@pytest.mark.parametrize("count", [0, -3, 2.5, "5", None, float("nan")])
def test_a_count_that_is_none_is_refused(model: Model, count: Any) -> None:
    with pytest.raises(ConfigError, match="sample"):
        model.sample(count)


def test_numbers_of_numpy_are_numbers_too(model: Model) -> None:
    samples = model.sample(np.int64(4), mix={"kind 0": np.float32(0.75), "kind 1": np.int64(0), "kind 2": 0.25})
    assert Counter(samples.labels.tolist()) == {0: 3, 2: 1}


def test_samples_are_reproducible_by_seed_and_differ_without_it(model: Model) -> None:
    first = model.sample(6, seed=1)
    assert torch.equal(first.pixels, model.sample(6, seed=1).pixels)
    assert not torch.equal(first.pixels, model.sample(6, seed=2).pixels)
    assert torch.equal(model.sample(6).pixels, model.sample(6, seed=0).pixels)


def test_progress_counts_samples(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "SAMPLE_BATCH", 4)
    seen = []
    model.sample(10, progress=lambda *event: seen.append(event))
    assert seen == [("sampling", 4, 10), ("sampling", 8, 10), ("sampling", 10, 10)]


def test_samples_depend_on_the_batch_size_so_it_is_a_constant(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch draws normals in blocks: the same seed cut into other batches gives other latents.

    This documents why SAMPLE_BATCH is a constant and no option: changing it would change everybody's samples.
    """
    assert model_module.SAMPLE_BATCH == 500
    whole = model.sample(40)
    monkeypatch.setattr(model_module, "SAMPLE_BATCH", 7)
    cut = model.sample(40)
    assert torch.equal(whole.labels, cut.labels)
    assert not torch.equal(whole.pixels, cut.pixels)


def test_asking_for_more_does_not_change_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images(counts=(8,))
    model = execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run")
    monkeypatch.setattr(model_module, "SAMPLE_BATCH", 20)
    assert torch.equal(model.sample(50).pixels[:20], model.sample(20).pixels)


def test_a_saved_model_is_a_release_and_nothing_else(model: Model, tmp_path: Path) -> None:
    saved = model.save(tmp_path / "saved")
    assert saved == tmp_path / "saved"
    assert {path.name for path in saved.iterdir()} == {path.name for path in model.folder.iterdir()}
    assert from_pretrained(str(saved)).claim == model.claim


def test_saving_over_something_is_refused(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(RunError, match="new or empty"):
            model.save(place)


def test_a_model_is_found_in_its_run_folder_and_in_its_release(finished_runs: dict[str, Path]) -> None:
    run = finished_runs["dp-merf"]
    assert from_pretrained(run).folder == from_pretrained(run / "release").folder == run / "release"


@pytest.mark.parametrize("place", ["nowhere", "", ".", "empty", "a file", "\0", "x" * 5000, "/dev/null"])
def test_loading_what_is_no_model_is_our_error(place: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a file").write_text("hello")
    with pytest.raises(VeilsetError):
        from_pretrained(tmp_path / place)


def test_loading_an_unfinished_run_is_our_error(tmp_path: Path) -> None:
    images = make_images()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run", progress=dies)
    with pytest.raises((RunError, ArtifactError)):
        from_pretrained(tmp_path / "run")


def test_a_model_shows_method_spec_and_claim(model: Model) -> None:
    assert model.method == "dp-merf"
    assert model.spec == make_images().spec
    assert model.claim is model.privacy.claim
    assert str(model.claim).startswith("eps_proven=5 delta=1e-05 adjacency=add-remove unit=record")


def test_a_set_of_more_images_than_a_batch_gives_each_of_them_once(tmp_path: Path) -> None:
    spec = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b"))
    images = FixedImages.of(spec, torch.rand(600, *spec.shape, generator=named_generator(0, "set")))
    privacy: Any = None
    model = Model(tmp_path, get_method("psg"), spec, images, privacy)
    assert (model.size, len(model.sample(600).pixels.flatten(1).unique(dim=0))) == (600, 600)
