"""The runner: what it records, what it skips, and how it goes on after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import results
import rows
import run
import seed_runs
import torch
from bench import Bench

from benchmarks.toys import TINY, tiny
from veilset.data.spec import ImageSet
from veilset.errors import ConfigError, DataError
from veilset.evaluate.extractors import RandomConvExtractor

ONE = [
    "--method", "dp-merf", "--dataset", "mnist", "--epsilon", "1", "--seeds", "0", "1", "--number", "20", "--metrics",
    "duplicates", "nearest-real", "--device", "cpu", "--commit", "abc1234", "--set",
    *(f"{name}={value}" for name, value in TINY.items()),
]  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tiny images in place of MNIST; words that keep results and unfinished seeds out of the checkout."""
    monkeypatch.setattr(datasets, "load", tiny)
    return ["--results", str(tmp_path / "results.jsonl"), "--partial", str(tmp_path / "partial")]


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds that were really fitted."""
    made: list[int] = []
    real = seed_runs.fit_seed

    def counting(row: rows.Row, seed: int, *rest: Any) -> dict[str, Any]:
        made.append(seed)
        return real(row, seed, *rest)

    monkeypatch.setattr(seed_runs, "fit_seed", counting)
    return made


def toy_pneumonia(folder: Path) -> Path:
    """Writes tiny images under the name of a data set that is read from a file."""
    names = ("x_train", "y_train", "x_test", "y_test")
    parts = [
        part for split in ("train", "test") for part in (tiny("toy", split).pixels[:, 0], tiny("toy", split).labels)
    ]
    np.savez(folder / "pneumoniamnist.npz", **dict(zip(names, map(np.asarray, parts), strict=True)))
    return folder


def lines(bench: list[str]) -> list[dict[str, Any]]:
    return results.read(Path(bench[1]))


def test_a_row_becomes_a_complete_line_for_each_metric(bench: list[str], fits: list[int], tmp_path: Path) -> None:
    assert run.main([*ONE, *bench]) == 0
    first, second = lines(bench)
    assert set(first) == set(results.FIELDS)
    assert [first["metric"], second["metric"]] == ["duplicates", "nearest-real"]
    assert (first["n"], first["seeds"], first["commit"]) == (2, [0, 1], "abc1234")
    assert first["epsilon_proven"] == pytest.approx(1.0)
    assert first["settings"] == TINY
    assert fits == [0, 1]
    assert list((tmp_path / "partial").iterdir()) == []


def test_the_recorded_command_makes_the_same_row_again(bench: list[str]) -> None:
    run.main([*ONE, *bench])
    words = lines(bench)[0]["command"].split()
    assert words[:2] == ["python", "benchmarks/run.py"]
    again = run.row_from(run.parse(words[2:]))
    assert again == run.row_from(run.parse(ONE)).only(["duplicates"])


def test_what_is_recorded_is_skipped_unless_asked_for_again(bench: list[str], fits: list[int]) -> None:
    run.main([*ONE, *bench])
    run.main([*ONE, *bench])
    assert (fits, len(lines(bench))) == ([0, 1], 2)
    run.main([*ONE, *bench, "--again"])
    assert (fits, len(lines(bench))) == ([0, 1, 0, 1], 4)


def test_more_seeds_or_another_setting_are_another_figure(bench: list[str], fits: list[int]) -> None:
    run.main([*ONE, *bench])
    more = [*ONE, *bench]
    more[more.index("--number")] = "2"
    more.insert(more.index("2") + 1, "--number")
    assert run.main(more) == 0
    assert fits[2:] == [0, 1, 2]
    assert run.main([*ONE[:-1], "map_channels=16", *bench]) == 0
    assert fits[5:] == [0, 1]


def test_only_missing_metrics_are_measured(bench: list[str], fits: list[int]) -> None:
    run.main([*[word for word in ONE if word != "nearest-real"], *bench])
    run.main([*ONE, *bench])
    assert [line["metric"] for line in lines(bench)] == ["duplicates", "nearest-real"]


def test_seeds_that_run_side_by_side_make_one_row_that_says_so(
    bench: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # other processes read the file
    monkeypatch.setenv("VEILSET_DATA", str(toy_pneumonia(tmp_path)))
    words = ["pneumonia" if word == "mnist" else word for word in ONE]
    assert run.main([*words, *bench, "--at-once", "2"]) == 0
    line = lines(bench)[0]
    assert (line["n"], line["device"].endswith(", 2 fits at once")) == (2, True)
    assert list((tmp_path / "partial").iterdir()) == []


def test_a_metric_of_the_first_seed_alone_is_printed_as_one_seed(
    bench: list[str], fits: list[int], tmp_path: Path
) -> None:
    suite = tmp_path / "suite.json"
    row = {"method": "dp-merf", "dataset": "mnist", "epsilon": 1, "metrics": ["duplicates"], "once": ["nearest-real"]}
    suite.write_text(json.dumps({"rows": [{**row, "seeds": [0, 1], "number": 20, "settings": TINY}]}))
    words = ["--suite", str(suite), "--device", "cpu", *bench]
    assert run.main(words) == 0
    assert [(line["metric"], line["seeds"]) for line in lines(bench)] == [("nearest-real", [0]), ("duplicates", [0, 1])]
    assert "--seeds 0 --metrics nearest-real" in lines(bench)[0]["command"]
    assert fits == [0, 1]
    assert run.main(words) == 0
    assert fits == [0, 1]


def test_rows_share_the_processes_and_one_that_fails_leaves_the_others(
    bench: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # other processes read the file
    monkeypatch.setenv("VEILSET_DATA", str(toy_pneumonia(tmp_path)))
    suite = tmp_path / "suite.json"
    row = {"method": "dp-merf", "epsilon": 1, "metrics": ["duplicates"], "seeds": [0, 1], "number": 20}
    first = {"dataset": ["cifar10", "pneumonia"]}
    lost = {"dataset": "pneumonia", "metrics": ["fid"], "extractor": "fid-inception-2015"}
    suite.write_text(json.dumps({"defaults": {**row, "settings": TINY}, "rows": [first, lost]}))
    assert run.main(["--suite", str(suite), "--device", "cpu", "--at-once", "2", *bench]) == 1
    assert [(line["dataset"], line["n"]) for line in lines(bench)] == [("pneumonia", 2)]


def test_a_killed_run_keeps_its_finished_seeds(
    bench: list[str], fits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def killed(row: rows.Row, seed: int, *rest: Any) -> dict[str, Any]:
            if seed == 1:
                raise KeyboardInterrupt
            return counted(row, seed, *rest)

        counted = seed_runs.fit_seed
        patch.setattr(seed_runs, "fit_seed", killed)
        with pytest.raises(KeyboardInterrupt):
            run.main([*ONE, *bench])
    assert lines(bench) == []
    assert run.main([*ONE, *bench]) == 0
    assert fits == [0, 1]
    assert lines(bench)[0]["n"] == 2


def test_a_run_killed_between_two_figures_keeps_its_fit_and_the_first_figure(
    bench: list[str], fits: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[str] = []
    real = seed_runs.Meter._scores

    def killed_once(meter: seed_runs.Meter, group: list[str]) -> Any:
        measured.extend(group)
        if measured == ["duplicates", "nearest-real"]:
            raise KeyboardInterrupt
        return real(meter, group)

    monkeypatch.setattr(seed_runs.Meter, "_scores", killed_once)
    with pytest.raises(KeyboardInterrupt):
        run.main([*ONE, *bench])
    assert run.main([*ONE, *bench]) == 0
    assert (fits, measured[2:]) == ([0, 1], ["nearest-real", "duplicates", "nearest-real"])
    assert list((tmp_path / "partial").iterdir()) == []


def test_features_of_the_real_images_are_made_once_for_all_seeds(
    bench: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[int] = []
    real = RandomConvExtractor.features

    def counting(extractor: RandomConvExtractor, pixels: torch.Tensor) -> torch.Tensor:
        shown.append(len(pixels))
        return real(extractor, pixels)

    monkeypatch.setattr(RandomConvExtractor, "features", counting)
    words = [*ONE, *bench, "--extractor", RandomConvExtractor.name]
    words[words.index("nearest-real")] = "fid"
    assert run.main(words) == 0
    assert shown == [20, len(tiny("mnist", "train")), 20]
    assert [path.name for path in (tmp_path / "partial").iterdir()] == [seed_runs.REAL_FEATURES]


def test_a_fit_that_was_killed_starts_afresh(bench: list[str], tmp_path: Path) -> None:
    machine = Bench(tmp_path / "results.jsonl", tmp_path, torch.device("cpu"), "abc1234")
    seed = seed_runs.SeedRun("row 1", run.row_from(run.parse(ONE)), 0, tmp_path / "row", machine)
    (seed.run / "vault").mkdir(parents=True)
    assert seed.fit is not None
    seed.keep_fit(seed.fit())
    for _, measure in seed.figures():
        seed.keep_figures(measure())
    assert all(seed.has(metric) for metric in ("duplicates", "nearest-real"))


def test_seeds_of_another_commit_are_not_mixed_in(bench: list[str], fits: list[int]) -> None:
    row = run.row_from(run.parse(ONE))
    assert row.fingerprint("abc1234", "cpu") != row.fingerprint("fff0000", "cpu")
    assert row.fingerprint("abc1234", "cpu") != row.fingerprint("abc1234", "gpu")
    assert row.fingerprint("a") != rows.replace(row, settings={}).fingerprint("a")


def test_a_failing_row_does_not_stop_the_others(
    bench: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str, split: str) -> ImageSet:
        if name == "cifar10":
            raise DataError("cifar10.npz", "nothing", "Get it.")
        return tiny(name, split)

    monkeypatch.setattr(datasets, "load", absent)
    suite = tmp_path / "suite.json"
    row = {"method": "dp-merf", "dataset": ["cifar10", "mnist"], "epsilon": 1, "metrics": ["duplicates"]}
    defaults = {"seeds": [0], "number": 20, "settings": TINY}
    suite.write_text(json.dumps({"defaults": defaults, "rows": [row]}))
    assert run.main(["--suite", str(suite), "--device", "cpu", *bench]) == 1
    assert [line["dataset"] for line in lines(bench)] == ["mnist"]
    assert "cifar10.npz" in capsys.readouterr().err


def test_a_published_row_records_its_status(bench: list[str]) -> None:
    run.main([*ONE, "--accounting", "published", *bench])
    first = lines(bench)[0]
    assert first["published_status"] == "conservative"
    assert first["epsilon_proven"] < first["epsilon_published"] <= 1.0
    assert first["adjacency"] == "replace"
    run.main([*ONE, "--accounting", "published", *bench])
    assert len(lines(bench)) == 2


def test_a_run_killed_after_the_first_line_of_a_row_keeps_its_fits_for_the_others(
    bench: list[str], fits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = seed_runs.Meter._scores

    def killed(meter: seed_runs.Meter, group: list[str]) -> Any:
        if group == ["nearest-real"] and meter.seed == 1:
            raise KeyboardInterrupt
        return real(meter, group)

    with monkeypatch.context() as patch:
        patch.setattr(seed_runs.Meter, "_scores", killed)
        with pytest.raises(KeyboardInterrupt):
            run.main([*ONE, *bench])
    assert [line["metric"] for line in lines(bench)] == ["duplicates"]
    assert run.main([*ONE, *bench]) == 0
    assert [line["metric"] for line in lines(bench)] == ["duplicates", "nearest-real"]
    assert fits == [0, 1]


def test_the_foundation_suite_is_what_was_recorded() -> None:
    suite = rows.read_suite(Path(run.__file__).parent / "suites" / "foundation.toml")
    metrics = [("gen2real/cnn", "gen2real/mlp"), ("gen2real/cnn",)]
    assert [(row.epsilon, row.metrics) for row in suite] == [(1.0, metrics[0]), (10.0, metrics[1])]
    recorded = results.read(results.RESULTS)
    for row in suite:
        for metric in row.metrics:
            assert any(row.same_figure(line, metric, "veilset, 60000 samples") for line in recorded)


GOOD = {"method": "dp-merf", "dataset": "mnist", "epsilon": 1, "metrics": ["duplicates"]}
WRONG: dict[str, dict[str, Any]] = {
    "unknown field": {"epslion": 2},
    "unknown method": {"method": "dp-mref"},
    "unknown option": {"settings": {"frequences": 5}},
    "option of a wrong type": {"settings": {"steps": "many"}},
    "no epsilon": {"epsilon": None},
    "epsilon without accounting": {"accounting": "none"},
    "a seed twice": {"seeds": [0, 0]},
    "no metric": {"metrics": []},
    "a metric of all seeds and of one": {"once": ["duplicates"]},
    "a fit in two rows": {"metrics": ["nearest-real"]},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_row_that_cannot_be_run_stops_the_suite_before_its_first_fit(tmp_path: Path, name: str) -> None:
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps({"rows": [GOOD, {**GOOD, **WRONG[name]}]}))
    with pytest.raises(ConfigError, match="expected"):
        rows.read_suite(suite)


@pytest.mark.parametrize("text", ["", "rows = 5", "not toml", '[[rows]]\nmethod = "dp-merf"'])
def test_a_file_that_is_no_suite_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(ConfigError, match="expected"):
        rows.read_suite(tmp_path / "suite.toml")
    assert run.main(["--suite", str(tmp_path / "suite.toml")]) == 2


def test_an_unknown_metric_is_an_error_before_anything_is_fitted(bench: list[str], fits: list[int]) -> None:
    words = [*ONE, *bench]
    words[words.index("duplicates")] = "gen2real/oracle"
    assert run.main(words) == 2
    assert fits == []


BARE = """
import sys
blocked = "dp_accounting typer rich sklearn jinja2 matplotlib cryptography pandas torchvision".split()
sys.modules.update(dict.fromkeys(blocked))  # None there makes every import of the name fail
sys.path.insert(0, sys.argv[1])
import run
sys.exit(run.main(sys.argv[2:]))
"""


def test_a_bare_gpu_host_can_measure_a_row_of_the_bundled_images(tmp_path: Path) -> None:
    words = [*ONE, "--results", str(tmp_path / "results.jsonl"), "--partial", str(tmp_path / "partial")]
    words[words.index("nearest-real")] = "gen2real/cnn"
    del words[words.index("--seeds") + 2]  # one of the two
    command = [sys.executable, "-c", BARE, str(Path(run.__file__).parent), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line["metric"] for line in results.read(tmp_path / "results.jsonl")] == ["duplicates", "gen2real/cnn"]


def test_an_error_of_torch_fails_its_row_only(
    bench: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def out_of_memory(*_: object) -> dict[str, Any]:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(seed_runs, "fit_seed", out_of_memory)
    assert run.main([*ONE, *bench]) == 1
    assert "out of memory" in capsys.readouterr().err
