from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from veilset.data import files, inspect, load, stream
from veilset.errors import ConfigError, DataError

from .helpers import class_folder, image_bytes, pattern, write_image


def broken(path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    path.write_bytes(image_bytes(noise)[:-40])
    return path


def test_broken_file_becomes_a_null_record_in_its_place(tmp_path: Path) -> None:
    class_folder(tmp_path)
    whole = load(tmp_path)
    broken(tmp_path / "cat" / "1.png")
    images = load(tmp_path)
    assert images.valid.tolist() == [True, False, True, True]
    assert images.ids == whole.ids
    assert (images.labels == whole.labels).all()
    assert not images.pixels[1].any()
    assert (images.pixels[[0, 2, 3]] == whole.pixels[[0, 2, 3]]).all()
    assert len(images.warnings) == 1
    assert images.warnings[0].startswith("cat/1.png:")


def test_strict_raises_and_names_the_file(tmp_path: Path) -> None:
    class_folder(tmp_path)
    (tmp_path / "cat" / "1.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"1\.png"):
        load(tmp_path, strict=True)
    broken(tmp_path / "cat" / "1.png")
    with pytest.raises(DataError, match=r"1\.png"):
        load(tmp_path, strict=True)


def test_size_comes_from_the_first_file_that_can_be_read(tmp_path: Path) -> None:
    class_folder(tmp_path)
    (tmp_path / "cat" / "0.png").write_bytes(b"")
    assert load(tmp_path).spec.shape == (1, 8, 8)
    assert inspect(tmp_path)[0].shape == (1, 8, 8)


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    class_folder(tmp_path, 1, ("only",))
    broken(tmp_path / "only" / "0.png")
    with pytest.raises(DataError, match="at least one readable"):
        load(tmp_path)
    (tmp_path / "only" / "0.png").write_bytes(b"")
    for read in (load, inspect):
        with pytest.raises(DataError, match="at least one readable"):
            read(tmp_path)


def test_unreadable_file_becomes_a_null_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == "1.png":
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **kwargs)  # type: ignore[call-overload]

    class_folder(tmp_path, names=("cat",))
    monkeypatch.setattr(Path, "open", refuse)
    assert load(tmp_path).valid.tolist() == [True, False]


def test_a_warning_names_a_file_once(tmp_path: Path) -> None:
    class_folder(tmp_path, names=("cat",))
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    assert load(tmp_path).warnings == ("cat/1.png: kept as an empty record (neither PNG nor JPEG)",)


def test_other_size_and_other_mode_name_the_first_offender(tmp_path: Path) -> None:
    class_folder(tmp_path)
    write_image(tmp_path / "dog" / "1.png", pattern(9, 8))
    with pytest.raises(DataError, match=r"dog/1\.png is 9x8"):
        load(tmp_path)
    assert load(tmp_path, size=(8, 8), fit="stretch").spec.shape == (1, 8, 8)
    write_image(tmp_path / "dog" / "1.png", pattern(channels=3))
    with pytest.raises(DataError, match=r"dog/1\.png is rgb"):
        load(tmp_path)
    assert load(tmp_path, color="rgb").spec.shape == (3, 8, 8)


def test_images_too_large_for_a_model_ask_for_a_size(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "0.png", pattern(600, 600))
    with pytest.raises(ConfigError, match="512"):
        load(tmp_path)
    assert load(tmp_path, size=(32, 32), fit="crop").spec.shape == (1, 32, 32)


def test_progress_counts_up_to_all_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GROUP", 3)
    calls: list[tuple[int, int]] = []
    load(class_folder(tmp_path), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(3, 4), (3, 4), (4, 4)], "first the headers, then the pixels, which come to an end alone"


def test_progress_comes_to_an_end_where_headers_are_all_that_is_read(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    stream(class_folder(tmp_path), in_memory=0, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(4, 4)]
