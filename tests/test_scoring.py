"""Scores of a run: what is checked before anything is sampled, test images that are training images, one whole file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images, tiny_plan

from veilset.data.spec import ImageSet, Source
from veilset.errors import ConfigError, DataError, MissingExtra, PrivacyError, RunError
from veilset.evaluate.classifiers import CLASSIFIERS
from veilset.evaluate.fitting import Classifier
from veilset.evaluate.inception import InceptionExtractor
from veilset.evaluate.presets import PRESETS
from veilset.model import Model, from_pretrained
from veilset.report.vault import read_scores
from veilset.run import execute
from veilset.run_folder import FINGERPRINTS, RunFolder
from veilset.scoring import Request, _slowness, overlap_warnings, score_run

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier that takes no time."""
    fit = lambda train, ctx: ctx.tick("fitted") or (lambda images: torch.zeros(len(images), dtype=torch.int64))  # noqa: E731
    monkeypatch.setitem(CLASSIFIERS, "constant", Classifier(fit=fit))


def joined(*parts: ImageSet) -> ImageSet:
    return replace(
        parts[0],
        pixels=torch.cat([part.pixels for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        valid=torch.cat([part.valid for part in parts]),
    )


def others(count: int = 60) -> ImageSet:
    return make_images((count // 3,) * 3, seed=99)


def score(run: RunFolder, test: ImageSet, real: ImageSet | None = None, **options: Any) -> list[Any]:
    request = Request(**{"number": 12, "classifiers": ("constant",), **options})
    return score_run(run, test, request, real=real, device=CPU, progress=lambda *_: None)


@pytest.mark.parametrize(
    ("preset", "metric"),
    [
        ("gs-wgan", "gen2real/calibrated"),
        ("quick", "gen2real/quick-calibrated"),
        (None, "gen2real/mean-calibrated"),
    ],
)
def test_a_calibrated_mean_is_named_by_the_classifiers_it_is_made_of(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, preset: str | None, metric: str
) -> None:
    """The paper's name stands for its thirteen classifiers alone."""
    if preset is not None:
        monkeypatch.setitem(PRESETS, preset, replace(PRESETS[preset], classifiers=("constant",)))
    real = make_images(seed=98)
    (found,) = (one for one in score(run, others(), real, preset=preset) if one.metric.endswith("calibrated"))
    assert found.metric == metric
    assert found.details["classifiers"] == {"gen2real/constant": 1.0}


def forbid_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("images were sampled")

    monkeypatch.setattr(Model, "sample", refuse)


def test_evaluation_on_the_training_images_is_refused_before_anything_is_sampled(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_sampling(monkeypatch)
    with pytest.raises(DataError, match="15 of 15 test images are training images") as caught:
        score(run, make_images())
    assert "kept back" in caught.value.expected
    assert "--split test" in caught.value.todo
    assert not (run.vault / "scores.json").exists()


def test_a_model_that_is_a_set_of_images_is_judged_by_each_of_them_once(finished_runs: dict[str, Path]) -> None:
    judged = {
        method: Request(number=50, classifiers=("constant",)).images_of(
            from_pretrained(finished_runs[method]), CPU, lambda *_: None
        )
        for method in ("psg", "dp-merf")
    }
    assert len(judged["dp-merf"]) == 50
    assert len(judged["psg"]) == len(judged["psg"].pixels.flatten(1).unique(dim=0)) == 12


def test_training_images_in_another_order_with_other_labels_are_still_caught(run: RunFolder) -> None:
    images = make_images().subset(torch.arange(15).flip(0))
    with pytest.raises(DataError, match="training images"):
        score(run, replace(images, labels=(images.labels + 1) % 3))


@pytest.mark.parametrize("benchmark", [None, "toy"])
def test_public_benchmarks_are_checked_too_and_a_clean_test_set_has_no_warning(
    run: RunFolder, benchmark: str | None
) -> None:
    source = Source(benchmark=benchmark)
    (found,) = score(run, replace(others(), source=source))
    assert not any("training" in text for text in found.details["warnings"])
    with pytest.raises((DataError, PrivacyError), match="training images"):
        score(run, replace(make_images(), source=source))


def test_one_image_of_a_private_run_is_enough_to_refuse_a_benchmark_whatever_is_measured(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_sampling(monkeypatch)
    test = replace(joined(others(300), make_images().subset(torch.arange(1))), source=Source(benchmark="toy"))
    for options in ({}, {"classifiers": (), "fidelity": ("nearest-real",)}):
        with pytest.raises(PrivacyError, match="1 of them among the training images of this run, which is private"):
            score(run, test, **options)


def test_a_run_on_a_benchmark_has_no_training_images_to_hide(tmp_path: Path) -> None:
    public = Source(benchmark="toy")
    images = replace(make_images(), source=public)
    execute(images, tiny_plan(images, "dp-merf"), tmp_path / "run")
    test = replace(joined(others(300), images.subset(torch.arange(1))), source=public)
    (found,) = score(RunFolder.open(tmp_path / "run"), test)
    assert any("1 of 301" in text for text in found.details["warnings"])


def test_a_handful_of_repeated_images_is_a_warning_on_every_score_and_for_the_owner(run: RunFolder) -> None:
    test = joined(others(300), make_images().subset(torch.arange(3)))
    told: list[str] = []
    request = Request(number=12, classifiers=("constant",), fidelity=("duplicates",))
    scores = score_run(run, test, request, device=CPU, progress=lambda *_: None, warn=told.append)
    for found in scores:
        assert any("3 of 303 test images are training images" in text for text in found.details["warnings"])
    assert any("3 of 303" in text for text in told)


def test_one_image_more_than_one_in_a_hundred_is_refused(run: RunFolder) -> None:
    known = make_images()
    assert overlap_warnings(run, joined(others(297), known.subset(torch.arange(3))), judged=True)
    with pytest.raises(DataError, match="4 of 301"):
        overlap_warnings(run, joined(others(297), known.subset(torch.arange(4))), judged=True)


def test_copies_of_training_images_can_be_looked_for_without_classifiers(run: RunFolder) -> None:
    (found,) = score(run, make_images(), classifiers=(), fidelity=("nearest-real",))
    assert found.metric == "nearest-real"
    assert any("15 of 15" in text for text in found.details["warnings"])


def test_a_run_that_kept_no_hashes_says_that_nothing_was_checked(run: RunFolder) -> None:
    (run.vault / FINGERPRINTS).unlink()
    (found,) = score(run, others())
    assert any("unknown" in text for text in found.details["warnings"])


def test_damaged_hashes_are_an_error_and_not_a_clean_result(run: RunFolder) -> None:
    path = run.vault / FINGERPRINTS
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RunError, match="damaged"):
        score(run, make_images())


def test_hashes_lie_in_the_vault_for_the_owner_alone_and_differ_between_runs(tmp_path: Path) -> None:
    images = make_images()
    contents = []
    for name in ("a", "b"):
        execute(images, tiny_plan(images, "dp-merf"), tmp_path / name)
        path = tmp_path / name / "vault" / FINGERPRINTS
        assert path.stat().st_mode & 0o777 == 0o600
        assert not list((tmp_path / name / "release").glob("*hashes*"))
        contents.append(path.read_bytes())
    assert len(contents[0]) == 32 + 8 * len(images)
    assert not set(contents[0][i : i + 8] for i in range(0, len(contents[0]), 8)) & set(
        contents[1][i : i + 8] for i in range(0, len(contents[1]), 8)
    )


def test_sabotage_a_run_that_forgot_its_training_images_would_not_be_caught(run: RunFolder) -> None:
    """The refusal rests on the hashes: with those of other images it is silent, so the tests above test them."""
    path = run.vault / FINGERPRINTS
    path.write_bytes(path.read_bytes()[:32])
    assert score(run, make_images())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "gswgan"}, "one of the presets"),
        ({"classifiers": ("constant", "svm")}, "distinct classifiers"),
        ({"classifiers": ()}, "distinct classifiers"),
        ({"fidelity": ("fid", "beauty")}, "distinct metrics"),
        ({"seeds": ()}, "at least one seed"),
    ],
    ids=str,
)
def test_a_wrong_name_is_noticed_when_the_request_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Request(**{"number": 12, "classifiers": ("constant",), **options})


def test_a_preset_brings_its_own_classifiers() -> None:
    assert Request(number=12, classifiers=("constant",), preset="psg").classifiers == ("convnet-aug",)


@pytest.mark.parametrize(
    ("test", "options", "message"),
    [
        (make_images(height=9, seed=9), {}, r"size=\(8, 8\)"),
        (make_images(channels=3, seed=9), {}, 'color="grey"'),
        (make_images((4, 4), seed=9), {}, "class_names"),
        (make_images(seed=9), {"number": 2}, "at least one synthetic image for each of 3 classes"),
        (make_images(height=9, seed=9), {"classifiers": (), "fidelity": ("duplicates",)}, r"size=\(8, 8\)"),
    ],
    ids=["size", "colour", "classes", "number", "fidelity alone"],
)
def test_what_does_not_fit_is_refused_before_sampling_and_says_what_to_do(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, test: ImageSet, options: dict[str, Any], message: str
) -> None:
    forbid_sampling(monkeypatch)
    with pytest.raises((DataError, ConfigError), match=message):
        score(run, test, **options)


def test_a_missing_package_is_noticed_before_any_classifier_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingExtra, match=r"veilset\[eval\]"):
        Request(number=12, classifiers=("constant", "xgboost"))


def test_wrong_weights_are_noticed_before_sampling_and_the_scores_of_before_stay(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    score(run, others())
    before = (run.vault / "scores.json").read_bytes()
    (tmp_path / "fid-inception-2015.safetensors").write_bytes(b"other weights")
    monkeypatch.setenv("VEILSET_DATA", str(tmp_path))
    forbid_sampling(monkeypatch)
    with pytest.raises(ConfigError, match="veilset weights"):
        score(run, others(), fidelity=("fid",))
    assert (run.vault / "scores.json").read_bytes() == before


def test_a_failure_half_way_leaves_the_scores_of_before(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    score(run, others())
    before = sorted(path.name for path in run.vault.iterdir()), (run.vault / "scores.json").read_bytes()

    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("veilset.scoring.fidelity", fails)
    with pytest.raises(MemoryError):
        score(run, others(), fidelity=("duplicates",))
    assert (sorted(path.name for path in run.vault.iterdir()), (run.vault / "scores.json").read_bytes()) == before


def test_inception_on_a_cpu_is_announced_with_the_time_it_takes() -> None:
    slow = InceptionExtractor.__new__(InceptionExtractor)  # without its weights
    slow.device = CPU
    assert "about 467 minutes" in _slowness(slow, 70_000)[0]
    slow.device = torch.device("cuda")
    assert _slowness(slow, 70_000) == _slowness("auto", 70_000) == []


def placed(images: ImageSet, path: str) -> ImageSet:
    return replace(images, source=Source(path=path))


def test_scores_on_the_same_test_images_stay_unless_they_are_measured_again(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CLASSIFIERS, "another", CLASSIFIERS["constant"])
    test, real = placed(others(), "held-out"), make_images(seed=98)
    score(run, test, real, classifiers=("constant", "another"))
    (again,) = score(run, placed(others(30), "held-out"), classifiers=("constant",))
    kept = {one.metric: one for one in read_scores(run.vault)}
    assert kept.keys() == {
        "gen2real/constant", "gen2real/another", "real2real/constant", "real2real/another", "real2gen/constant",
        "real2gen/another",
    }, "a mean over classifiers would be one over others"  # fmt: skip
    assert kept["gen2real/constant"].details["confusion"] == again.details["confusion"]


@pytest.mark.parametrize("path", ["another", None])
def test_scores_on_other_test_images_do_not_stay(run: RunFolder, path: str | None) -> None:
    score(run, placed(others(), "held-out"))
    score(run, replace(others(), source=Source(path=path)), classifiers=(), fidelity=("duplicates",))
    assert [one.metric for one in read_scores(run.vault)] == ["duplicates"]


def test_scores_are_written_for_the_owner_alone(run: RunFolder) -> None:
    (found,) = score(run, others())
    path = run.vault / "scores.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == [found.to_json()]
