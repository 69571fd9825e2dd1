from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from veilset.data import (
    ImageSet,
    ImageSpec,
    check_apart,
    check_writable,
    is_archive,
    load,
    write_folder,
    write_images,
    write_npz,
)
from veilset.errors import ConfigError, DataError, VeilsetError

from .helpers import small_images


def synthetic(channels: int = 1, valid: list[bool] | None = None) -> ImageSet:
    images = load(small_images(channels=channels), [0, 1, 2, 0, 1, 2], class_names=["ant", "bee", "cow"])
    flags = torch.tensor(valid) if valid else images.valid
    return ImageSet(spec=images.spec, pixels=images.pixels, labels=images.labels, valid=flags)


@pytest.mark.parametrize("channels", [1, 3])
def test_folder_reads_back_the_same(tmp_path: Path, channels: int) -> None:
    images = synthetic(channels)
    calls: list[tuple[int, int]] = []
    write_folder(images, tmp_path / "new" / "out", progress=lambda done, total: calls.append((done, total)))
    again = load(tmp_path / "new" / "out")
    assert again.spec == images.spec
    assert again.ids is not None
    assert again.ids[:3] == ("ant/000001.png", "ant/000002.png", "bee/000001.png")
    order = images.labels.argsort(stable=True)
    assert (again.pixels == images.pixels[order]).all()
    assert calls[-1] == (6, 6)


@pytest.mark.parametrize("channels", [1, 3])
def test_npz_reads_back_the_same(tmp_path: Path, channels: int) -> None:
    images = synthetic(channels)
    write_npz(images, tmp_path / "a.npz")
    again = load(tmp_path / "a.npz")
    assert again.spec == images.spec
    assert (again.pixels == images.pixels).all()
    assert (again.labels == images.labels).all()
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert archive["class_names"].tolist() == ["ant", "bee", "cow"]


def test_null_records_are_left_out(tmp_path: Path) -> None:
    images = synthetic(valid=[False, True, True, True, True, True])
    write_folder(images, tmp_path / "out")
    write_npz(images, tmp_path / "a.npz")
    assert len(load(tmp_path / "out")) == len(load(tmp_path / "a.npz")) == 5


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(DataError, match="new or empty"):
            write_folder(synthetic(), out)
    (tmp_path / "empty").mkdir()
    write_folder(synthetic(), tmp_path / "empty")


def test_npz_does_not_overwrite_and_keeps_its_suffix(tmp_path: Path) -> None:
    write_npz(synthetic(), tmp_path / "a.npz")
    with pytest.raises(DataError, match="exists"):
        write_npz(synthetic(), tmp_path / "a.npz")
    with pytest.raises(ConfigError, match=r"\.npz"):
        write_npz(synthetic(), tmp_path / "a.zip")
    with pytest.raises(DataError):
        write_npz(synthetic(), tmp_path / "missing" / "a.npz")


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "C:",
        "x\0",
        "x\n",
        "\x1b[31m",
        ".hidden",
        "\ud800",
        "x" * 201,
        "ü" * 101,
    ],
)
def test_class_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="class"):
        ImageSpec(height=8, width=8, channels=1, class_names=("good", name))


def test_harmless_class_names_are_kept() -> None:
    names = ("T-shirt & top", "猫", "क्‍ष", "a..b", "0")
    assert ImageSpec(height=8, width=8, channels=1, class_names=names).class_names == names


def test_what_could_not_be_written_is_known_before_there_are_images(tmp_path: Path) -> None:
    (tmp_path / "used.npz").write_text("keep")
    for name, archive in (("used.npz", True), ("a.zip", True), ("no/a.npz", True), ("used.npz", False), (".", False)):
        with pytest.raises(VeilsetError):
            check_writable(tmp_path / name, archive=archive)
    check_writable(tmp_path / "new.npz", archive=True)
    check_writable(tmp_path / "new" / "folder", archive=False)
    assert [path.name for path in tmp_path.iterdir()] == ["used.npz"]


@pytest.mark.parametrize("name", ["z.zip", "z.tar.gz", "z.TGZ", "z.npy"])
def test_a_name_of_another_kind_of_archive_is_refused_instead_of_making_a_folder_of_it(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"found {name}\n.*ends in \.npz"):
        is_archive(tmp_path / name)
    with pytest.raises(ConfigError):
        write_images(synthetic(), tmp_path / name)
    assert not any(tmp_path.iterdir())


def test_an_archive_is_told_by_its_name_in_large_letters_too(tmp_path: Path) -> None:
    write_images(synthetic(), tmp_path / "A.NPZ")
    assert load(tmp_path / "A.NPZ").spec == synthetic().spec


def test_an_output_lies_apart_from_the_images_it_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "mnist").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "photos")
    for inside in ("photos", "photos/a/b", str(tmp_path / "photos" / "a"), "linked/a"):
        with pytest.raises(DataError, match="outside of the images in photos"):
            check_apart(Path(inside), "photos")
    for apart, source in (("photos-out", "photos"), (".", "photos"), ("x", "photos/list.csv"), ("x", None)):
        check_apart(Path(apart), source)
    check_apart(Path("mnist/a"), "mnist")  # the bundled digits, whatever a folder is called
