"""Metrics of presets and of real images: measured once, recorded one by one, and none lost with its neighbour."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
import measure
import pytest
import results
import rows
import run

import veilset
from benchmarks.toys import TINY, tiny
from veilset.errors import ConfigError
from veilset.evaluate import PRESETS
from veilset.evaluate.classifiers import THIRTEEN

FIT = ["--method", "dp-merf", "--epsilon", "1", "--number", "20", "--set", *(f"{k}={v}" for k, v in TINY.items())]
NO_FIT = ["--method", "real", "--accounting", "none"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(datasets, "load", tiny)
    return [
        "--dataset", "mnist", "--device", "cpu", "--commit", "abc1234", "--seeds", "0", "1",
        "--results", str(tmp_path / "results.jsonl"), "--partial", str(tmp_path / "partial"),
    ]  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[str, ...]]]:
    """Seed and parts of everything that was really measured."""
    made: list[tuple[int, tuple[str, ...]]] = []
    real = measure.Meter._scores

    def counting(meter: measure.Meter, group: list[str]) -> Any:
        made.append((meter.seed, tuple(group)))
        return real(meter, group)

    monkeypatch.setattr(measure.Meter, "_scores", counting)
    return made


@pytest.fixture
def two_quick_classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    small = rows.replace(PRESETS["gs-wgan"], classifiers=("lda", "gaussian-nb"))
    monkeypatch.setitem(PRESETS, "gs-wgan", small)


def lines(bench: list[str]) -> dict[str, dict[str, Any]]:
    return {line["metric"]: line for line in results.read(Path(bench[bench.index("--results") + 1]))}


PRESET = ["--metrics", "gs-wgan/lda", "gs-wgan/gaussian-nb", "gs-wgan/mean", "gen2real/lda"]


@pytest.mark.usefixtures("two_quick_classifiers")
def test_a_preset_is_evaluated_once_for_its_classifiers_and_their_mean(
    bench: list[str], measured: list[tuple[int, tuple[str, ...]]]
) -> None:
    assert run.main([*FIT, *bench, *PRESET]) == 0
    assert measured == [(seed, (f"gen2real/{name}",)) for seed in (0, 1) for name in ("lda", "gaussian-nb")]
    found = lines(bench)
    assert found["gs-wgan/mean"]["mean"] == pytest.approx(
        (found["gs-wgan/lda"]["mean"] + found["gs-wgan/gaussian-nb"]["mean"]) / 2
    )
    assert found["gs-wgan/lda"]["mean"] == found["gen2real/lda"]["mean"]
    assert found["gs-wgan/mean"]["protocol"] == "gs-wgan, 20 samples"
    assert found["gen2real/lda"]["protocol"] == "veilset, 20 samples"


@pytest.mark.usefixtures("two_quick_classifiers")
def test_the_seconds_of_a_mean_are_those_of_the_whole_preset() -> None:
    parts = {"gen2real/lda": (0.5, 10.0), "gen2real/gaussian-nb": (0.7, 1.0)}
    assert measure.combined("dp-merf", "gs-wgan/mean", parts) == (pytest.approx(0.6), 11.0)
    assert measure.combined("dp-merf", "gs-wgan/lda", parts) == (0.5, 10.0)


def test_real_images_are_measured_without_a_fit_or_a_claim(
    bench: list[str], measured: list[tuple[int, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(veilset, "fit", None)
    metrics = ["real2real/lda", "duplicates", "precision", "recall"]
    assert run.main([*NO_FIT, *bench, "--extractor", "random-conv-1", "--metrics", *metrics]) == 0
    assert measured[:3] == [(0, ("real2real/lda",)), (0, ("duplicates",)), (0, ("precision", "recall"))]
    found = lines(bench)
    assert list(found) == metrics
    for line in found.values():
        assert line["method"] == "real"
        assert {line[name] for name in ("epsilon_proven", "epsilon_published", "delta", "adjacency", "unit")} == {None}
    assert "random-conv-1" in found["recall"]["protocol"]
    before = len(measured)
    assert run.main([*NO_FIT, *bench, "--extractor", "random-conv-1", "--metrics", *metrics]) == 0
    assert len(measured) == before, "recorded figures are measured again"


def test_the_test_images_stand_where_others_have_their_synthetic_ones(bench: list[str]) -> None:
    assert run.main([*NO_FIT, *bench, "--metrics", "nearest-real"]) == 0
    train, test = tiny("mnist", "train"), tiny("mnist", "test")
    (expected,) = measure.fidelity(test, train, metrics=["nearest-real"])
    assert lines(bench)["nearest-real"]["mean"] == expected.mean > 0


def test_a_killed_run_of_real_images_keeps_every_figure(
    bench: list[str], measured: list[tuple[int, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*NO_FIT, *bench, "--metrics", "real2real/lda", "real2real/gaussian-nb"]
    counted = measure.Meter._scores

    def killed(meter: measure.Meter, group: list[str]) -> Any:
        if group == ["real2real/gaussian-nb"]:
            raise KeyboardInterrupt
        return counted(meter, group)

    with monkeypatch.context() as patch:
        patch.setattr(measure.Meter, "_scores", killed)
        with pytest.raises(KeyboardInterrupt):
            run.main(words)
    assert run.main(words) == 0
    assert measured.count((0, ("real2real/lda",))) == 1
    assert list(lines(bench)) == ["real2real/lda", "real2real/gaussian-nb"]


@pytest.mark.parametrize("method", [FIT, NO_FIT], ids=["dp-merf", "real"])
def test_a_missing_package_fails_its_metrics_alone_and_says_so(
    bench: list[str], method: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = rows.replace(PRESETS["gs-wgan"], classifiers=("lda", "xgboost"))
    monkeypatch.setitem(PRESETS, "gs-wgan", small)
    monkeypatch.setitem(sys.modules, "xgboost", None)
    words = [*method, *bench, "--metrics", "gs-wgan/xgboost", "gs-wgan/lda", "gs-wgan/mean"]
    assert run.main(words) == 1
    assert list(lines(bench)) == ["gs-wgan/lda"]
    said = capsys.readouterr().err
    assert "none for gs-wgan/xgboost, gs-wgan/mean" in said
    assert "veilset[eval]" in said


@pytest.mark.parametrize(
    ("method", "metric"),
    [
        ("real", "gen2real/cnn"),
        ("dp-merf", "real2real/cnn"),
        ("dp-merf", "gs-wgan/cnn"),
        ("dp-merf", "veilset/mean"),
        ("dp-merf", "dpimagebench/best"),
        ("real", "fidelity"),
    ],
)
def test_a_metric_that_a_method_cannot_have_is_refused(method: str, metric: str) -> None:
    with pytest.raises(ConfigError, match="expected a metric of"):
        measure.check_metrics(method, [metric])


def test_every_classifier_of_every_preset_is_a_metric_of_any_method() -> None:
    metrics = [f"{name}/{one}" for name, preset in PRESETS.items() for one in preset.classifiers]
    metrics += ["gs-wgan/mean", "dpimagebench/mean", "quick/mean"]
    for method in ("real", "dp-merf"):
        measure.check_metrics(method, metrics)


@pytest.mark.parametrize("wrong", [{"epsilon": 1.0, "accounting": "proven"}, {"settings": {"steps": 3}}], ids=str)
def test_a_row_of_real_images_has_neither_epsilon_nor_options(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"method": "real", "dataset": "mnist", "metrics": ["fid"], "accounting": "none"}
    rows.Row(**good)
    with pytest.raises(ConfigError, match="fits nothing"):
        rows.Row(**{**good, **wrong})


def test_the_suite_of_real_images_has_the_thirteen_their_mean_and_the_distances() -> None:
    suite = rows.read_suite(Path(run.__file__).parent / "suites" / "real.toml")
    for dataset in ("mnist", "fashion-mnist"):
        metrics = {metric for row in suite if row.dataset == dataset for metric in row.metrics_of(0)}
        assert {f"real2real/{name}" for name in THIRTEEN} | {"gs-wgan/mean", "fid", "is"} <= metrics


def test_real_images_of_which_nothing_can_be_measured_fail_their_row_alone(
    bench: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert run.main([*NO_FIT, *bench, "--metrics", "real2real/xgboost"]) == 1
    assert "none for real2real/xgboost" in capsys.readouterr().err
