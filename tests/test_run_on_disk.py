"""Runs on images that stay on disk: what is released is the same, and nothing is if the images change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.cases import METHODS, tiny_plan
from data.helpers import class_folder, pattern, write_image
from typer.testing import CliRunner

import veilset
from veilset.cli import options
from veilset.cli.app import app
from veilset.data import LazyImages, stream
from veilset.errors import DataError, RunError
from veilset.methods.base import get_method
from veilset.privacy.noise import SeededNoise
from veilset.run import execute, resume
from veilset.run_folder import RunFolder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = class_folder(tmp_path / "photos", 6)
    (folder / "cat" / "broken.png").write_bytes(b"")
    return folder


def on_disk(folder: Path) -> LazyImages:
    images = stream(folder, in_memory=0)
    assert isinstance(images, LazyImages)
    return images


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_releases_the_same_bits_whether_images_are_in_memory_or_on_disk(
    photos: Path, tmp_path: Path, method: str
) -> None:
    plan = tiny_plan(veilset.load(photos), method)
    for name, images in (("memory", veilset.load(photos)), ("disk", on_disk(photos))):
        execute(images, plan, tmp_path / name, noise=SeededNoise(5))
    assert files(tmp_path / "disk" / "release") == files(tmp_path / "memory" / "release")
    sums = files(tmp_path / "disk" / "vault" / "checkpoints")
    assert sums
    assert sums == files(tmp_path / "memory" / "vault" / "checkpoints")


def test_both_methods_that_pass_over_the_images_say_so() -> None:
    assert all(get_method(name).streams for name in ("sketch", "dp-merf"))


def test_a_method_that_needs_all_images_at_once_gets_them_in_memory(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = get_method("dp-merf")
    given, original = [], method.fit

    def watching(config: Any, images: Any, context: Any) -> Any:
        given.append(type(images).__name__)
        return original(config, images, context)

    monkeypatch.setattr(type(method), "fit", lambda self, *arguments: watching(*arguments))
    plan = tiny_plan(veilset.load(photos), "dp-merf")
    execute(on_disk(photos), plan, tmp_path / "streaming")
    monkeypatch.setattr(type(method), "streams", False)
    execute(on_disk(photos), plan, tmp_path / "whole")
    assert given == ["LazyImages", "ImageSet"]


@pytest.mark.parametrize("kind", ["manifest", "npz"])
def test_people_are_recognised_later_whether_images_are_in_memory_or_on_disk(
    photos: Path, tmp_path: Path, kind: str
) -> None:
    images = veilset.load(photos)
    users = [f"person {row // 2}" for row in range(len(images))]
    if kind == "manifest":
        source = tmp_path / "list.csv"
        rows = [
            f"photos/{name},{name.split('/')[0]},{user}" for name, user in zip(images.ids or (), users, strict=True)
        ]
        source.write_text("\n".join(["path,label,user", *rows]))
    else:
        source = tmp_path / "photos.npz"
        np.savez(source, x=images.pixels[:, 0], y=images.labels, user=users)
    disk = on_disk(source)
    assert list(disk.user_names() or ()) == users
    execute(disk, tiny_plan(disk, "dp-merf", unit="user", images_per_user=2), tmp_path / "run")
    run, memory = RunFolder.open(tmp_path / "run"), veilset.load(source)
    assert run.count_training_users(memory) == len(set(users))
    assert run.count_training_users(replace(memory, users=("stranger",) * len(users))) == 0


def test_a_folder_that_changes_between_two_rounds_stops_the_run_before_noise_is_drawn(
    photos: Path, tmp_path: Path, normals_drawn: list[int]
) -> None:
    def adds_a_file(message: str, done: int, total: int) -> None:
        if message.startswith("training networks"):
            write_image(photos / "dog" / "late.png", pattern(shift=99))

    images = on_disk(photos)
    plan = tiny_plan(veilset.load(photos), "sketch")
    with pytest.raises(DataError, match="changed"):
        execute(images, plan, tmp_path / "run", progress=adds_a_file)
    assert len(normals_drawn) == 1, "the first of two rounds"
    with pytest.raises(RunError, match="1 added"):
        resume(on_disk(photos), tmp_path / "run")
    (photos / "dog" / "late.png").unlink()
    # Nothing is set aside for a third draw, so a resume succeeds only if the second round was not charged.
    assert resume(on_disk(photos), tmp_path / "run").claim.epsilon == pytest.approx(5.0, rel=1e-6)


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_a_run_begun_in_memory_goes_on_from_disk_where_every_id_counts(photos: Path, tmp_path: Path, kind: str) -> None:
    source, images = photos, veilset.load(photos)
    if kind == "npz":
        source = tmp_path / "photos.npz"
        np.savez(source, x=images.pixels[:, 0], y=images.labels, id=images.ids or ())
    begun = veilset.load(source)
    plan = tiny_plan(begun, "dp-merf")
    with pytest.raises(KeyboardInterrupt):
        execute(begun, plan, tmp_path / "run", progress=stops_after_hashing)
    disk = on_disk(source)
    assert tuple(disk.id_names() or ()) == begun.ids == images.ids
    with pytest.raises(RunError, match="the records this run was begun with"):
        resume(replace(disk, read_ids=lambda: (f"{name}!" for name in begun.ids or ())), tmp_path / "run")
    assert resume(disk, tmp_path / "run").claim.epsilon is not None


@pytest.mark.parametrize("ids", [np.arange(12) / 2, np.arange(3)], ids=["no names", "too few"])
def test_ids_on_disk_are_refused_before_anything_is_spent_like_those_in_memory(tmp_path: Path, ids: np.ndarray) -> None:
    source = tmp_path / "photos.npz"
    np.savez(source, x=np.zeros((12, 8, 8), dtype=np.uint8), y=np.arange(12) % 2, id=ids)
    for read in (veilset.load, on_disk):
        with pytest.raises(DataError, match="ids"):
            read(source)


def stops_after_hashing(message: str, done: int, total: int) -> None:
    if not message.startswith("hashing"):
        raise KeyboardInterrupt


def test_a_sketch_of_images_on_disk_is_hashed_in_one_pass_and_measured_in_another(photos: Path, tmp_path: Path) -> None:
    passes: list[int] = []
    images = on_disk(photos)

    def counting(size: int) -> Any:
        passes.append(size)
        return images.read_batches(size)

    plan = tiny_plan(veilset.load(photos), "sketch", rounds=1)
    execute(replace(images, read_batches=counting), plan, tmp_path / "run")
    assert len(passes) == 2


def test_damage_that_shows_only_in_the_pixels_is_in_the_owners_log(photos: Path, tmp_path: Path) -> None:
    whole = (photos / "dog" / "3.png").read_bytes()
    (photos / "dog" / "3.png").write_bytes(whole[:-30])
    execute(on_disk(photos), tiny_plan(veilset.load(photos), "dp-merf"), tmp_path / "run")
    entries = [json.loads(line) for line in (tmp_path / "run" / "vault" / "log.jsonl").read_text().splitlines()]
    told = {entry["event"]: [text.split(":")[0] for text in entry.get("warnings", [])] for entry in entries}
    assert (told["started"], told["read"]) == (["cat/broken.png"], ["dog/3.png"])


def test_the_command_line_leaves_large_collections_on_disk(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def watching(*arguments: Any, **settings: Any) -> Any:
        opened.append(stream(*arguments, in_memory=0, **settings))
        return opened[-1]

    monkeypatch.setattr(options, "stream", watching)
    small = ["--frequencies", "8", "--hidden-size", "8", "--map-channels", "8", "--steps", "2"]
    arguments = ["fit", str(photos), "--method", "dp-merf", "--epsilon", "3", "--out", str(tmp_path / "run"), *small]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    assert [type(images) for images in opened] == [LazyImages]
    assert "broken.png" in found.output, "the owner is warned"


def test_users_are_capped_alike_in_memory_and_on_disk(photos: Path, tmp_path: Path) -> None:
    rows = [f"{kind}/{n}.png,{kind},person {n % 3}" for kind in ("cat", "dog") for n in range(6)]
    manifest = photos / "m.csv"
    manifest.write_text("\n".join(["path,label,user", *rows]))
    images = veilset.load(manifest)
    plan = tiny_plan(images, "dp-merf", unit="user", images_per_user=3)
    for name, given in (("memory", images), ("disk", on_disk(manifest))):
        execute(given, plan, tmp_path / name, noise=SeededNoise(5))
    assert files(tmp_path / "disk" / "release") == files(tmp_path / "memory" / "release")
