"""`veilset compare` as a user meets it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from purchases import buy, fix_classifiers, held_out, write_held_out

from veilset.evaluate import Score
from veilset.run_folder import RunFolder
from veilset.score_release import COMPARED

Cli = Callable[..., tuple[int, str, str]]


def test_runs_are_shown_on_stderr_and_as_one_line_on_stdout(
    cli: Cli, copy_of_run: Callable[..., Path], tmp_path: Path
) -> None:
    first = copy_of_run()
    second = Path(shutil.copytree(first, tmp_path / "second"))
    code, out, err = cli("compare", first, second, tmp_path / "nowhere", "--out", tmp_path / "page.html")
    assert code == 0, err
    assert out.count("\n") == 1
    value = json.loads(out)
    assert [len(group["runs"]) for group in value["groups"]] == [2]
    assert value["groups"][0]["runs"][0]["epsilon_published"] is None
    assert value["skipped"][0]["state"] == "not a run"
    assert value["private"] is True
    assert "eps proven" in err
    assert "do not share" in err
    assert "nowhere: not a run" in err
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_public_scores_of_private_images_are_shown_with_what_they_tell(
    cli: Cli, copy_of_run: Callable[..., Path]
) -> None:
    run = copy_of_run()
    assert COMPARED not in cli("compare", run)[2]
    score = Score.over_seeds("gen2real/cnn", [0.9], touched_private_data=False)
    (run / "vault" / "scores.json").write_text(json.dumps([score.to_json()]))
    assert COMPARED in cli("compare", run)[2]


def test_purchases_share_their_columns_and_are_named_where_there_are_several(
    cli: Cli, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_classifiers(monkeypatch)
    test = held_out(write_held_out(tmp_path / "held out"))
    buy(run, test)
    assert "(purchase" not in cli("compare", run.path)[2]
    buy(run, test)
    _, _, err = cli("compare", run.path)
    assert err.count("(noisy)") == 3, "two classifiers and their mean"
    assert len(re.findall(r" % ± \S+ points \(purchase 1\); \S+ % ± \S+ points \(purchase 2\)", err)) == 3


def test_quiet_leaves_only_the_result(cli: Cli, copy_of_run: Callable[..., Path]) -> None:
    code, out, err = cli("compare", copy_of_run(), "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out)["out"] is None


def test_no_run_at_all_is_an_error_that_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("compare", tmp_path / "runs" / "*", "--out", tmp_path / "page.html")
    assert (code, out) == (2, "")
    assert "at least one finished run" in err
    assert not (tmp_path / "page.html").exists()


def test_a_file_of_the_user_is_not_replaced(cli: Cli, copy_of_run: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "thesis.html").write_text("mine")
    code, _, err = cli("compare", copy_of_run(), "--out", tmp_path / "thesis.html")
    assert code == 2
    assert "another path" in err
    assert (tmp_path / "thesis.html").read_text() == "mine"


def test_a_page_with_another_suffix_is_refused(cli: Cli, copy_of_run: Callable[..., Path], tmp_path: Path) -> None:
    code, _, err = cli("compare", copy_of_run(), "--out", tmp_path / "page.pdf")
    assert code == 2
    assert "expected a page as .html" in err
    assert not (tmp_path / "page.pdf").exists()
