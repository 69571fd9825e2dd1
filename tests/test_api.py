"""`veilset.plan` and `veilset.fit` on images in memory."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import TINY, make_images

import veilset
from veilset.api import pick_device
from veilset.data.spec import ImageSet, Source
from veilset.errors import ConfigError, PrivacyError, VeilsetError
from veilset.privacy.bounds import Adjacency, Unit
from veilset.sharing import verify

MERF = TINY["dp-merf"]


def planned(**options: Any) -> veilset.methods.plan.Plan:  # type: ignore[name-defined]
    return veilset.plan(
        make_images().spec, **{"method": "dp-merf", "epsilon": 2.0, "declared_size": 100, **MERF, **options}
    )


def test_the_public_names_are_there_and_few() -> None:
    assert set(veilset.__all__) <= set(dir(veilset))
    assert len([name for name in veilset.__all__ if not name.startswith("_")]) <= 12


def test_without_a_method_plan_and_fit_take_the_sketch() -> None:
    images, settings = make_images(), TINY["sketch"]
    assert veilset.plan(images.spec, epsilon=2.0, declared_size=100, **settings).method == "sketch"
    assert veilset.fit(images, epsilon=2.0, **settings).method == "sketch"


def test_a_plan_needs_no_image_and_keeps_what_was_asked() -> None:
    plan = planned(adjacency="replace", delta=1e-6, seed=3)
    assert (plan.method, plan.delta, plan.seed) == ("dp-merf", 1e-6, 3)
    assert (plan.facts.adjacency, plan.facts.unit, plan.facts.declared_size) == (Adjacency.REPLACE, Unit.RECORD, 100)
    assert plan.config["frequencies"] == 8
    assert plan.epsilon_planned == pytest.approx(2.0, rel=1e-6)
    assert plan.epsilon_planned <= 2.0


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": None},
        {"epsilon": 0},
        {"epsilon": -1.0},
        {"epsilon": float("inf")},
        {"epsilon": float("nan")},
        {"epsilon": "5"},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": 0.01, "declared_size": 100},
        {"delta": "x"},
        {"declared_size": 0},
        {"declared_size": -5},
        {"declared_size": 10.5},
        {"adjacency": "swap"},
        {"unit": "person"},
        {"unit": "user"},
        {"unit": "user", "images_per_user": 0},
        {"unit": "user", "images_per_user": 2.5},
        {"accounting": "guessed"},
        {"method": "no-such-method"},
        {"no_such_option": 1},
        {"steps": 0},
        {"steps": "many"},
        {"steps": 2.5},
        {"steps": True},
        {"learning_rate": float("nan")},
        {"total_weight": -1.0},
    ],
    ids=str,
)
def test_a_plan_that_means_nothing_is_refused_with_our_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(**options)
    assert caught.value.expected
    assert caught.value.found
    assert caught.value.todo


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"method": "dpmerf"}, "dp-merf"),
        ({"adjacency": "add_remove"}, "add-remove"),
        ({"frequencys": 3}, "frequencies"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_one_as_hint(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{hint}'"):
        planned(**options)


def test_fit_without_a_place_lives_as_long_as_its_model(images: ImageSet, tmp_path: Path) -> None:
    model = veilset.fit(images, method="dp-merf", epsilon=5.0, declared_size=20, **MERF)
    folder = model.folder
    assert folder.is_dir()
    saved = model.save(tmp_path / "kept")
    del model
    gc.collect()
    assert not folder.exists()
    assert not folder.parent.exists(), "nor does the vault beside it"
    assert len(veilset.from_pretrained(saved).sample(4)) == 4


def test_fit_with_a_place_writes_a_run_folder_there(images: ImageSet, tmp_path: Path) -> None:
    model = veilset.fit(images, method="dp-merf", epsilon=5.0, declared_size=20, out=tmp_path / "run", **MERF)
    assert model.folder == tmp_path / "run" / "release"
    assert (tmp_path / "run" / "vault" / "ledger.jsonl").is_file()


def test_fit_and_sample_a_declared_class_mix(images: ImageSet) -> None:
    model = veilset.fit(images, method="dp-merf", epsilon=5.0, declared_size=20, **MERF)
    samples = model.sample(12, mix={"kind 0": 2, "kind 2": 1})
    assert torch.bincount(samples.labels, minlength=3).tolist() == [8, 0, 4]


def test_fit_has_no_default_epsilon(images: ImageSet) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        veilset.fit(images, method="dp-merf", **MERF)


def test_fit_without_accounting_needs_no_epsilon_and_is_stamped(images: ImageSet) -> None:
    model = veilset.fit(images, method="dp-merf", accounting="none", declared_size=20, **MERF)
    assert model.claim.epsilon is None
    assert "NOT PRIVATE" in str(model.claim)


def test_an_undeclared_size_is_rounded_and_thereby_declared() -> None:
    images = make_images(counts=(100, 37))
    model = veilset.fit(images, method="dp-merf", epsilon=5.0, **MERF)
    assert json.loads((model.folder / "config.json").read_text())["declared_size"] == 140


def test_the_claim_says_that_a_size_was_taken_from_private_data() -> None:
    images = make_images(counts=(100, 37))
    public = replace(images, source=Source(benchmark="digits"))
    for data, size, said in ((images, None, True), (images, 140, False), (public, None, False)):
        model = veilset.fit(data, method="dp-merf", epsilon=5.0, declared_size=size, **MERF)
        assert ("taken from the data, rounded" in str(model.claim)) == said
        verify(model.folder)


def test_a_declared_size_of_zero_is_an_error_and_not_a_request_to_count(images: ImageSet) -> None:
    with pytest.raises(ConfigError, match="declared size"):
        veilset.fit(images, method="dp-merf", epsilon=5.0, declared_size=0, **MERF)


def test_published_accounting_on_private_images_needs_a_knowing_owner(images: ImageSet, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "dp-merf", "epsilon": 5.0, "declared_size": 20, "accounting": "published"}
    with pytest.raises(PrivacyError, match="--allow-published-accounting"):
        veilset.fit(images, out=tmp_path / "run", **options, **MERF)
    assert not (tmp_path / "run").exists()
    model = veilset.fit(images, allow_published_accounting=True, **options, **MERF)
    assert model.claim.published is not None


def test_a_fit_that_fails_leaves_no_temporary_folder(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        veilset.fit(images, method="dp-merf", epsilon=5.0, declared_size=20, progress=dies, **MERF)
    gc.collect()
    assert [
        path.name for path in tmp_path.iterdir() if path.name.startswith("veilset-") and path.name != "veilset-home"
    ] == []


def test_devices_are_picked_by_name(images: ImageSet) -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_not_advised() -> None:
    with pytest.raises(ConfigError, match=r"'cuda': no GPU was found\n  Use cpu or auto\."):
        pick_device("cuda")


@pytest.mark.parametrize("device", ["toaster", "cuda:99", ""])
def test_a_device_that_is_not_there_is_our_error(images: ImageSet, device: str) -> None:
    with pytest.raises(VeilsetError, match="device"):
        veilset.fit(images, method="dp-merf", epsilon=5.0, declared_size=20, device=device, **MERF)
