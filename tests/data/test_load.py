from __future__ import annotations

from pathlib import Path

import pytest

from veilset.data import load
from veilset.errors import ConfigError, DataError

from .helpers import class_folder, small_images


@pytest.mark.parametrize(
    "options",
    [
        {"size": 32},
        {"size": (32,)},
        {"size": (7, 32)},
        {"size": (32, 513)},
        {"size": (32.0, 32.0)},
        {"size": (8, 8), "fit": "pad"},
        {"fit": "crop"},
        {"color": "blue"},
        {"color": ["grey"]},
        {"split": "val"},
        {"split": None},
        {"class_names": "ab"},
        {"class_names": []},
        {"class_names": [1, 2]},
        {"strict": "yes"},
        {"progress": 3},
        {"benchmark": ""},
        {"benchmark": True},
    ],
)
def test_unusable_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        load(small_images(2), [0, 1], **options)  # type: ignore[arg-type]


def test_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        load(small_images(2), [0, 1], colour="grey")  # type: ignore[call-arg]


def test_benchmark_name_is_kept_and_private_is_the_default() -> None:
    assert load(small_images(2), [0, 1], benchmark="celeba").source.benchmark == "celeba"
    assert load(small_images(2), [0, 1]).source.benchmark is None


def test_folder_called_like_a_known_set_is_reached_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folder(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    assert len(load("./mnist")) == 4
    assert load("./mnist").source.benchmark is None
    assert len(load(Path("mnist"))) == 4


@pytest.mark.parametrize("name", ["a.zip", "a.txt", "a"])
def test_other_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match="none of them"):
        load(tmp_path / name)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "no-such-set"])
def test_impossible_paths_are_refused(path: str) -> None:
    with pytest.raises(DataError):
        load(path)


def test_empty_path_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(class_folder(tmp_path))
    with pytest.raises(ConfigError):
        load("")


def test_labels_beside_a_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="labels"):
        load(class_folder(tmp_path), [0, 0, 1, 1])
