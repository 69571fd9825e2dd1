"""The benchmark of continual learning: what it records, how it goes on after a kill, and what its figure shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import continual
import datasets
import numpy as np
import pytest
import results
from contract.cases import TINY
from PIL import Image

import veilset
from veilset.data.known import KNOWN
from veilset.data.spec import ImageSet

SMALL = {
    "psg": {**TINY["psg"], "runs": 1, "rounds": 1, "steps": 2},
    "dp-merf": TINY["dp-merf"],
    "sketch": TINY["sketch"],
    "dp-sgd": {"epochs": 1, "expected_batch": 6000, "width": 16},
}


def toys(name: str, split: str) -> ImageSet:
    """A few small images that go by the classes of a known set."""
    pixels = np.random.default_rng(len(split)).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    return veilset.load(pixels, np.arange(30) % 10, class_names=KNOWN[name].class_names, benchmark=name)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Toys in place of the data sets, tiny settings, and results outside of the checkout."""
    monkeypatch.setattr(datasets, "load", toys)
    settings = {(method, name): values for method, values in SMALL.items() for name in continual.SPLITS}
    monkeypatch.setattr(continual, "SETTINGS", settings)
    return [
        "--results", str(tmp_path / "results.jsonl"), "--partial", str(tmp_path / "partial"), "--out",
        str(tmp_path / "figure.png"), "--commit", "abc1234", "--device", "cpu", "--classifier", "lda",
        "--samples-per-class", "5", "--epsilons", "10", "--small",
    ]  # fmt: skip


def test_small_rows_are_rows_of_their_own() -> None:
    words = ["--methods", "sketch", "psg", "--datasets", "mnist", "--epsilons", "1"]
    large, small = (continual.rows_of(continual.parse(given)) for given in (words, [*words, "--small"]))
    assert [row.settings for row in large] == [{"preset": "balanced", "jitter": "handwriting"}, {"runs": 200}]
    assert [row.settings for row in small] == [{"preset": "fast", "jitter": "handwriting"}, {"preset": "small"}]
    assert [row.command.count(" --small") for row in (*large, *small)] == [0, 0, 1, 1]


@pytest.mark.slow
def test_all_methods_on_both_data_sets_make_lines_and_a_figure(bench: list[str], tmp_path: Path) -> None:
    assert continual.main([*bench, "--seeds", "0"]) == 0
    lines = results.read(tmp_path / "results.jsonl")
    assert len(lines) == 2 * 4 * 5
    for line in lines:
        assert set(line) == set(results.FIELDS)
        assert line["epsilon_proven"] <= 10.0 * (1 + 1e-6)
        assert line["command"].startswith("python benchmarks/continual.py --methods")
    assert {line["dataset"] for line in lines} == {"split-mnist", "split-fashion-mnist"}
    assert sorted({line["metric"] for line in lines}) == [f"accuracy after task {task}" for task in range(1, 6)]
    picture = Image.open(io.BytesIO((tmp_path / "figure.png").read_bytes()))
    assert picture.width > picture.height
    assert not list((tmp_path / "partial").glob("continual-*"))


def test_a_recorded_row_is_skipped_and_drawn_again(
    bench: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = [*bench, "--seeds", "0", "1", "--methods", "dp-merf", "--datasets", "mnist"]
    assert continual.main(one) == 0
    lines = (tmp_path / "results.jsonl").read_text()
    assert all(line["n"] == 2 for line in results.read(tmp_path / "results.jsonl"))
    first = (tmp_path / "figure.png").read_bytes()
    (tmp_path / "figure.png").unlink()
    monkeypatch.setattr(veilset, "continual", lambda *_, **__: pytest.fail("measured again"))
    assert continual.main(one) == 0
    assert (tmp_path / "results.jsonl").read_text() == lines
    assert (tmp_path / "figure.png").read_bytes() == first
    assert continual.main([*one, "--figure"]) == 0


def test_a_row_of_which_a_line_is_missing_is_measured_again_and_not_drawn_before(
    bench: list[str], tmp_path: Path
) -> None:
    one = [*bench, "--seeds", "0", "--methods", "dp-merf", "--datasets", "mnist"]
    assert continual.main(one) == 0
    path = tmp_path / "results.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    (tmp_path / "figure.png").unlink()
    assert continual.main([*one, "--figure"]) == 0
    assert not (tmp_path / "figure.png").exists()
    assert continual.main(one) == 0
    assert len({line["metric"] for line in results.read(path)}) == 5
    assert (tmp_path / "figure.png").exists()


def test_a_killed_row_goes_on_where_it_was(bench: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = [*bench, "--seeds", "0", "1", "--methods", "dp-merf", "--datasets", "mnist"]
    plain, begun = veilset.continual, []

    def dying(*arguments: Any, **options: Any) -> Any:
        begun.append((options["seed"], options["resume"]))
        if len(begun) == 2:

            def progress(message: str, done: int, total: int) -> None:
                if message.startswith("task 3"):
                    raise KeyboardInterrupt

            options["progress"] = progress
        return plain(*arguments, **options)

    monkeypatch.setattr(veilset, "continual", dying)
    with pytest.raises(KeyboardInterrupt):
        continual.main(one)
    assert results.read(tmp_path / "results.jsonl") == []
    assert continual.main(one) == 0
    assert begun == [(0, False), (1, False), (1, True)]
    assert len(results.read(tmp_path / "results.jsonl")) == 5


def test_nothing_is_drawn_where_nothing_was_measured(bench: list[str], tmp_path: Path) -> None:
    assert continual.main([*bench, "--figure"]) == 0
    assert not (tmp_path / "figure.png").exists()
