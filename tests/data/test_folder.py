from __future__ import annotations

import os
from pathlib import Path

import pytest

from veilset.data import inspect, load
from veilset.errors import ConfigError, DataError

from .helpers import class_folder, pattern, write_image


def test_folder_names_are_classes_in_sorted_order(tmp_path: Path) -> None:
    images = load(class_folder(tmp_path, names=("zebra", "ant")))
    assert images.spec.class_names == ("ant", "zebra")
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert images.ids == ("ant/0.png", "ant/1.png", "zebra/0.png", "zebra/1.png")
    assert (images.pixels[2, 0].numpy() == pattern()).all()
    assert images.source.path == str(tmp_path)
    assert images.source.benchmark is None


def test_jpeg_upper_case_and_nested_files_are_found(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "x.JPG", format="JPEG")
    write_image(tmp_path / "a" / "deeper" / "y.jpeg", format="JPEG")
    assert load(tmp_path).ids == ("a/deeper/y.jpeg", "a/x.JPG")


def test_hidden_files_and_veilset_folder_are_ignored(tmp_path: Path) -> None:
    class_folder(tmp_path)
    write_image(tmp_path / ".veilset" / "z.png")
    write_image(tmp_path / "cat" / ".thumb.png")
    write_image(tmp_path / "cat" / ".cache" / "t.png")
    images = load(tmp_path)
    assert len(images) == 4
    assert images.warnings == ()


def test_other_files_are_passed_over_with_a_warning(tmp_path: Path) -> None:
    class_folder(tmp_path)
    (tmp_path / "readme.txt").write_text("x")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    warnings = load(tmp_path).warnings
    assert [text.split(":")[0] for text in warnings] == ["readme.txt", "cat/notes.txt"]


def test_a_class_of_other_kinds_of_files_says_which_and_what_to_do(tmp_path: Path) -> None:
    class_folder(tmp_path, names=("cat",))
    (tmp_path / "scans" / "deeper").mkdir(parents=True)
    for name in ("1.dcm", "2.DCM", "deeper/3.tif"):
        (tmp_path / "scans" / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"none in .*scans, but \.dcm, \.tif files\n  Convert them to PNG"):
        load(tmp_path)
    assert any("no PNG or JPEG" in text for text in load(tmp_path, class_names=["cat", "scans"]).warnings)


def test_classes_of_which_nothing_can_be_read_are_named_first(tmp_path: Path) -> None:
    class_folder(tmp_path, names=("cat", "dog"))
    for file in (tmp_path / "dog").iterdir():
        file.write_bytes(file.read_bytes()[:40])
    first, *others = load(tmp_path).warnings
    assert first.startswith("class 'dog': none of its 2 images can be read")
    assert len(others) == 2


@pytest.mark.parametrize("place", ["run", "cat/run", "runs/a"])
@pytest.mark.parametrize("written", ["release/manifest.json", "vault/plan.json", "vault/course.json"])
def test_a_run_among_the_images_is_not_read_as_some_of_them(tmp_path: Path, place: str, written: str) -> None:
    class_folder(tmp_path)
    (tmp_path / place / written).parent.mkdir(parents=True)
    (tmp_path / place / written).write_text("{}")
    write_image(tmp_path / place / "release" / "samples.png")
    with pytest.raises(DataError, match="what a command of Veilset wrote"):
        load(tmp_path)


def test_a_class_may_be_called_vault(tmp_path: Path) -> None:
    for split in ("train", "test"):
        class_folder(tmp_path / split, names=("bars", "vault"))
        write_image(tmp_path / split / "bars" / "vault" / "7.png")
    assert load(tmp_path).spec.class_names == ("bars", "vault")


def test_one_class_with_one_image_works(tmp_path: Path) -> None:
    assert len(load(class_folder(tmp_path, 1, ("only",)))) == 1


def test_empty_folder_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one folder per class"):
        load(tmp_path)
    write_image(tmp_path / "loose.png")
    with pytest.raises(DataError, match="one folder per class"):
        load(tmp_path)


def test_empty_class_is_an_error_unless_declared(tmp_path: Path) -> None:
    class_folder(tmp_path)
    (tmp_path / "bird").mkdir()
    with pytest.raises(DataError, match="bird"):
        load(tmp_path)
    images = load(tmp_path, class_names=["dog", "cat", "bird", "fish"])
    assert images.labels.tolist() == [1, 1, 0, 0]
    assert images.spec.num_classes == 4


def test_all_classes_empty_is_an_error_even_if_declared(tmp_path: Path) -> None:
    (tmp_path / "bird").mkdir()
    with pytest.raises(DataError, match="none under"):
        load(tmp_path, class_names=["bird"])


def test_undeclared_class_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dog"):
        load(class_folder(tmp_path), class_names=["cat"])


def test_missing_path_is_an_error() -> None:
    with pytest.raises(DataError, match="does not exist"):
        load("/no/such/place")


def test_split_folders_are_not_classes(tmp_path: Path) -> None:
    class_folder(tmp_path / "train", 3)
    class_folder(tmp_path / "test", 1)
    assert len(load(tmp_path)) == 6
    assert len(load(tmp_path, split="test")) == 2
    assert load(tmp_path).ids == load(tmp_path / "train").ids


def test_a_folder_without_splits_is_read_whole_whatever_the_split(tmp_path: Path) -> None:
    assert len(load(class_folder(tmp_path), split="test")) == len(load(tmp_path))


def test_asking_for_a_split_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    class_folder(tmp_path / "train")
    with pytest.raises(DataError, match="'test'"):
        load(tmp_path, split="test")


def test_link_that_leaves_the_folder_is_an_error(tmp_path: Path) -> None:
    outside = write_image(tmp_path / "outside.png")
    root = class_folder(tmp_path / "photos")
    (root / "cat" / "link.png").symlink_to(outside)
    with pytest.raises(DataError, match="leads out"):
        load(root)


def test_link_inside_the_folder_is_followed_and_the_root_may_be_a_link(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos")
    (root / "cat" / "link.png").symlink_to(root / "dog" / "0.png")
    (tmp_path / "alias").symlink_to(root)
    assert len(load(tmp_path / "alias")) == 5


def test_linked_class_folder_is_an_error(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos")
    (root / "bird").symlink_to(root / "cat")
    with pytest.raises(DataError, match="symbolic link"):
        load(root)
    (root / "bird").unlink()
    (root / "cat" / "more").symlink_to(root / "dog")
    with pytest.raises(DataError, match="symbolic link"):
        load(root)


def test_looping_link_is_an_error(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos")
    (root / "cat" / "loop.png").symlink_to("loop.png")
    with pytest.raises(DataError, match="loop"):
        load(root)


def test_unlistable_class_is_not_skipped_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    class_folder(tmp_path)
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="Permission"):
        load(tmp_path)


def test_ids_beside_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="manifest"):
        load(class_folder(tmp_path), ids=["a", "b", "c", "d"])


def test_inspect_reads_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import PngImagePlugin

    class_folder(tmp_path, 7)

    def fail(self: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    spec, declared = inspect(tmp_path)
    assert spec.shape == (1, 8, 8)
    assert spec.class_names == ("cat", "dog")
    assert declared == 10
