from __future__ import annotations

import json
from pathlib import Path

import pytest

from veilset.data import inspect, load
from veilset.errors import ConfigError, DataError

from .helpers import pattern, write_image


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for index in range(3):
        write_image(tmp_path / "img" / f"{index}.png", pattern(shift=index))
    return tmp_path


def csv(folder: Path, text: str) -> Path:
    (folder / "list.csv").write_text(text)
    return folder / "list.csv"


def jsonl(folder: Path, *rows: object) -> Path:
    (folder / "list.jsonl").write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return folder / "list.jsonl"


def test_csv_with_ids_and_users(photos: Path) -> None:
    images = load(csv(photos, "path,label,id,user\nimg/0.png,dog,r0,ann\nimg/1.png,cat,r1,bob\nimg/2.png,dog,r2,ann\n"))
    assert images.spec.class_names == ("cat", "dog")
    assert images.labels.tolist() == [1, 0, 1]
    assert images.ids == ("r0", "r1", "r2")
    assert images.users == ("ann", "bob", "ann")
    assert (images.pixels[2, 0].numpy() == pattern(shift=2)).all()


def test_without_ids_the_relative_path_is_the_id(photos: Path) -> None:
    images = load(csv(photos, "label,path\ncat,img/0.png\ncat,./img/1.png\n"))
    assert images.ids == ("img/0.png", "img/1.png")
    assert images.users is None


def test_jsonl_takes_numbers_and_text(photos: Path) -> None:
    images = load(
        jsonl(photos, {"path": "img/0.png", "label": 0, "user": 7}, "", {"path": "img/1.png", "label": 2, "user": "x"})
    )
    assert images.spec.class_names == ("0", "1", "2")
    assert images.labels.tolist() == [0, 2]
    assert images.users == ("7", "x")


def test_number_labels_sort_as_numbers(photos: Path) -> None:
    images = load(csv(photos, "path,label\nimg/0.png,10\nimg/1.png,9\n"))
    assert images.labels.tolist() == [10, 9]
    assert images.spec.num_classes == 11


def test_given_class_names_fix_the_order(photos: Path) -> None:
    path = csv(photos, "path,label\nimg/0.png,dog\nimg/1.png,cat\n")
    assert load(path, class_names=["dog", "emu", "cat"]).labels.tolist() == [0, 2]
    with pytest.raises(DataError, match="'dog'"):
        load(path, class_names=["cat"])


@pytest.mark.parametrize("bad", ["../secret.png", "/etc/passwd", "img/../../x.png", "..\\x.png", "\\\\host\\x.png"])
def test_paths_that_lead_out_are_refused(photos: Path, bad: str) -> None:
    with pytest.raises(DataError, match="paths below"):
        load(csv(photos, f"path,label\n{bad},cat\n"))


def test_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    outside = write_image(tmp_path / "outside.png")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "link.png").symlink_to(outside)
    with pytest.raises(DataError, match="leads out"):
        load(csv(tmp_path / "set", "path,label\nlink.png,cat\n"))


def test_missing_image_is_a_null_record(photos: Path) -> None:
    images = load(csv(photos, "path,label\nimg/0.png,cat\nimg/9.png,cat\n"))
    assert images.valid.tolist() == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "path,label\n",
        "file,label\na.png,cat\n",
        "path\nimg/0.png\n",
        "path,label\nimg/0.png\n",
        "path,label\nimg/0.png,\n",
        "path,label,user\nimg/0.png,cat,\n",
        "path,label\n,cat\n",
        'path,label\n"img/0.png,cat\n',
        "path,label\nimg/0.png," + "x" * 2000,
        "path,label\nimg/0.png,a/b\n",
    ],
)
def test_unusable_csv_is_an_error(photos: Path, text: str) -> None:
    with pytest.raises((DataError, ConfigError)):
        load(csv(photos, text))


@pytest.mark.parametrize(
    "row", ["{", "[]", "3", '{"path": 1, "label": "a"}', '{"path": "img/0.png"}', '{"path": "img/0.png", "label": 1.5}']
)
def test_broken_jsonl_names_the_line(photos: Path, row: str) -> None:
    with pytest.raises(DataError, match="line 2"):
        load(jsonl(photos, {"path": "img/0.png", "label": "a"}, row))


def test_bytes_that_are_not_text_are_an_error(photos: Path) -> None:
    path = photos / "list.csv"
    path.write_bytes(b"path,label\n\xff\xfe,\x80\n")
    with pytest.raises(DataError, match="UTF-8"):
        load(path)


def test_user_in_some_rows_only_is_an_error(photos: Path) -> None:
    rows = [{"path": "img/0.png", "label": "a", "user": "u"}, {"path": "img/1.png", "label": "a"}]
    with pytest.raises(DataError, match="'user'"):
        load(jsonl(photos, *rows))


def test_repeated_ids_are_pointed_out(photos: Path) -> None:
    images = load(csv(photos, "path,label,id\nimg/0.png,a,7\nimg/1.png,a,7\n"))
    assert "users" in images.warnings[0]


def test_a_manifest_is_one_collection_whatever_the_split(photos: Path) -> None:
    assert len(load(csv(photos, "path,label\nimg/0.png,a\n"), split="test")) == 1


def test_inspect_reads_a_manifest(photos: Path) -> None:
    spec, declared = inspect(csv(photos, "path,label\nimg/0.png,a\nimg/1.png,b\n"))
    assert spec.class_names == ("a", "b")
    assert declared == 10
