"""`veilset evaluate` as a user meets it: the test set is read like the model's images, noisy scores, wrong words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from veilset.evaluate.presets import PRESETS, Preset
from veilset.model import Model

Cli = Callable[..., tuple[int, str, str]]
TINY = ["--steps", "3", "--frequencies", "8", "--hidden-size", "8", "--map-channels", "8"]
QUICK = ["--classifiers", "gaussian-nb", "-n", "20"]


def write_photos(folder: Path, *, seed: int, count: int = 6, size: int = 8, color: bool = False) -> Path:
    values = np.random.default_rng(seed)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            shape = (size, size, 3) if color else (size, size)
            Image.fromarray(values.integers(0, 256, shape, dtype=np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", seed=0)


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "held out", seed=1, count=40)


@pytest.fixture
def run(cli: Cli, photos: Path, tmp_path: Path) -> Path:
    code, _, err = cli("fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "run", *TINY)
    assert code == 0, err
    return tmp_path / "run"


def evaluated(cli: Cli, run: Path, test: object, *more: object) -> dict[str, Any]:
    code, out, err = cli("evaluate", run, "--test", test, *QUICK, *more)
    assert code == 0, err
    return json.loads(out)


def test_the_training_images_are_refused_as_test_images(cli: Cli, run: Path, photos: Path) -> None:
    code, out, err = cli("evaluate", run, "--test", photos, *QUICK)
    assert (code, out) == (2, "")
    assert "12 of 12 test images are training images" in err
    assert "kept back" in err
    assert not (run / "vault" / "scores.json").exists()


def test_test_images_are_read_in_the_models_size_and_colour(cli: Cli, run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "large colour", seed=2, size=16, color=True)
    scores = evaluated(cli, run, photos, "--fit", "crop")["scores"]
    assert scores[0]["metric"] == "gen2real/gaussian-nb"
    code, _, err = cli("evaluate", run, "--test", photos, *QUICK)
    assert code == 2
    assert 'fit="crop"' in err


@pytest.fixture
def wide_photos(tmp_path: Path) -> Path:
    values = np.random.default_rng(5)
    for name in ("cat", "dog"):
        (tmp_path / "wide" / name).mkdir(parents=True)
        for number in range(6):
            pixels = values.integers(0, 256, (12, 20), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "wide" / name / f"{number}.png")
    return tmp_path / "wide"


def test_test_images_are_brought_to_size_as_the_training_images_were(
    cli: Cli, wide_photos: Path, tmp_path: Path
) -> None:
    """Else the same file would have other pixels, and a training image would pass for a stranger's."""
    words = ["--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "run", *TINY]
    code, _, err = cli("fit", wide_photos, *words, "--size", "8", "--fit", "crop")
    assert code == 0, err
    for more in ([], ["--fit", "crop"], ["--dp-scores", "1"]):
        code, _, err = cli("evaluate", tmp_path / "run", "--test", wide_photos, *QUICK, *more)
        assert code == 2
        assert "training images" in err
        assert "not recognised" not in err
    code, _, err = cli("evaluate", tmp_path / "run", "--test", wide_photos, *QUICK, "--fit", "stretch")
    assert code == 0, err
    assert "not recognised" in err


def test_a_class_without_test_images_is_a_warning(cli: Cli, run: Path, held_out: Path) -> None:
    for path in (held_out / "dog").iterdir():
        path.unlink()
    (held_out / "dog").rmdir()
    code, _, err = cli("evaluate", run, "--test", held_out, *QUICK)
    assert code == 0, err
    assert "'dog' has no test images" in err


def test_numbered_test_images_take_the_models_names_and_named_ones_keep_their_own(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    values = np.random.default_rng(3).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    labels = np.arange(20) % 2
    np.savez(tmp_path / "numbers.npz", x=values, y=labels)
    np.savez(tmp_path / "turned.npz", x=values, y=labels, class_names=np.array(["dog", "cat"]))
    assert evaluated(cli, run, tmp_path / "numbers.npz")
    code, _, err = cli("evaluate", run, "--test", tmp_path / "turned.npz", *QUICK)
    assert code == 2
    assert "Renumber" in err


def test_test_images_of_other_classes_are_to_be_left_out_and_not_listed(cli: Cli, run: Path, held_out: Path) -> None:
    (held_out / "dog").rename(held_out / "cow")
    np.savez(held_out / "four.npz", x=np.zeros((4, 8, 8), dtype=np.uint8), y=np.arange(4))
    (held_out / "list.csv").write_text("path,label\ncat/0.png,cat\ncow/0.png,cow\n")
    for test in (held_out, held_out / "four.npz", held_out / "list.csv"):
        for more in ([], ["--class-names", "cat,dog"]):
            code, _, err = cli("evaluate", run, "--test", test, *QUICK, *more)
            assert code == 2
            assert "leave images of other classes out" in err
            assert "list" not in err.replace("list.csv", "").lower()


def test_what_is_to_be_typed_for_images_of_another_size_is_said(cli: Cli, run: Path, held_out: Path) -> None:
    words = ["--size", "9x10", "--fit", "crop", "--color", "rgb"]
    code, _, err = cli("evaluate", run, "--test", held_out, *QUICK, *words)
    assert code == 2
    assert "8x8 grey" in err
    assert "found 9x10 rgb" in err
    assert "--size 8x8 --color grey" in err


def test_digits_are_not_taken_for_cats_and_dogs(cli: Cli, run: Path) -> None:
    code, _, err = cli("evaluate", run, "--test", "mnist", *QUICK, "--fit", "crop")
    assert code == 2
    assert "are unknown" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--preset", "gswgan"], "one of the presets"),
        (["--classifiers", "cnn,svm"], "distinct classifiers"),
        (["--classifiers", "none"], "something to measure"),
        (["--classifiers", "cnnn"], "Did you mean 'cnn'?"),
        (["--fidelity", "fidd"], "Did you mean 'fid'?"),
        (["--fidelity", "beauty"], "distinct metrics"),
        (["--seeds", "0"], "at least one seed"),
        (["-n", "1"], "at least one synthetic image for each"),
        (["--dp-scores", "1", "--fidelity", "fid"], "only scores that can be bought"),
        (["--dp-scores", "0"], "epsilon above 0"),
        (["--size", "9"], "images of 9x9"),
        (["--quick", "--preset", "gs-wgan"], "--quick or --preset"),
        (["--dp-scores", "1", "--real", "photos"], "cannot be bought"),
        (["--real-benchmark", "mine"], "together with --real"),
    ],
    ids=str,
)
def test_wrong_words_are_explained_before_anything_is_sampled(
    cli: Cli, run: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("images were sampled")

    monkeypatch.setattr(Model, "sample", refuse)
    code, out, err = cli("evaluate", run, "--test", held_out, *QUICK, *words)
    assert (code, out) == (2, "")
    assert expected in err.replace("\n", " ")
    assert not (run / "vault" / "scores.json").exists()


def test_real_training_images_show_what_there_is_to_reach(cli: Cli, run: Path, held_out: Path, photos: Path) -> None:
    scores = evaluated(cli, run, held_out, "--real", photos)["scores"]
    names = [score["metric"] for score in scores]
    assert names == [
        "gen2real/gaussian-nb",
        "gen2real/mean-calibrated",
        "real2real/gaussian-nb",
        "real2gen/gaussian-nb",
    ]
    assert all(score["touched_private_data"] for score in scores)
    gen, ratio, real, _ = (score["mean"] for score in scores)
    assert ratio == pytest.approx(gen / real)


def test_a_public_test_set_does_not_make_the_training_images_public(
    cli: Cli, run: Path, held_out: Path, photos: Path
) -> None:
    scores = evaluated(cli, run, held_out, "--benchmark", "a public test", "--real", photos)["scores"]
    private = {score["metric"] for score in scores if score["touched_private_data"]}
    assert private == {"gen2real/mean-calibrated", "real2real/gaussian-nb", "real2gen/gaussian-nb"}
    assert cli("report", run)[0] == 0
    page = (run / "release" / "report.html").read_text()
    assert "gen2real/gaussian-nb" in page
    assert "was asked without noise" in page
    assert not any(metric in page for metric in private)


def test_training_images_of_a_private_run_cannot_be_declared_public(
    cli: Cli, run: Path, held_out: Path, photos: Path
) -> None:
    for words in (
        ["--test", held_out, "--real", photos, "--real-benchmark", "b"],
        ["--test", photos, "--benchmark", "b"],
    ):
        code, out, err = cli("evaluate", run, *words, *QUICK)
        assert (code, out) == (2, "")
        assert "12 of them among the training images of this run, which is private" in " ".join(err.split())
    assert not (run / "vault" / "scores.json").exists()


def test_other_real_images_can_be_declared_public(cli: Cli, run: Path, held_out: Path, tmp_path: Path) -> None:
    strangers = write_photos(tmp_path / "strangers", seed=3)
    words = ["--benchmark", "b", "--real", strangers, "--real-benchmark", "c"]
    assert not any(score["touched_private_data"] for score in evaluated(cli, run, held_out, *words)["scores"])


def test_quick_is_short_for_its_preset(cli: Cli, run: Path, held_out: Path) -> None:
    scores = evaluated(cli, run, held_out, "--quick")["scores"]
    assert {score["details"].get("preset") for score in scores} == {"quick", None}
    assert len(scores) == 9, "eight classifiers and their mean"


def test_a_preset_says_whose_protocol_it_is(cli: Cli, run: Path, held_out: Path) -> None:
    code, _, err = cli("evaluate", run, "--test", held_out, "--quick", "--device", "cpu")
    assert code == 0, err
    assert PRESETS["quick"].description in err


def test_notes_of_scores_are_shown(cli: Cli, run: Path, held_out: Path) -> None:
    code, _, err = cli("evaluate", run, "--test", held_out, *QUICK, "--fidelity", "fid", "--device", "cpu")
    assert code == 0, err
    assert "rank-deficient" in err
    assert re.search(r"^fid .*, by \S+ [0-9a-f]{12}, touched private data", err, re.MULTILINE)


def test_noisy_scores_go_all_the_way_to_the_shared_page(cli: Cli, run: Path, held_out: Path, tmp_path: Path) -> None:
    assert cli("budget", "init", held_out, "--epsilon", "3")[0] == 0
    code, out, err = cli("evaluate", run, "--test", held_out, *QUICK, "--dp-scores", "2")
    assert code == 0, err
    assert "may be shared" in err
    assert "standard deviation" in err, "80 images are few"
    assert json.loads(out)["noisy_scores"]["claim"]["epsilon"] == pytest.approx(2.0)
    assert json.loads(cli("budget", "show", held_out)[1])["epsilon_charged"] == pytest.approx(2.0)
    assert cli("report", run)[0] == 0
    assert cli("export", run, "--out", tmp_path / "shared")[0] == 0
    page = (tmp_path / "shared" / "report.html").read_text()
    assert "Noisy accuracies" in page
    assert "epsilon 2 at delta 1e-05 for adding or removing one image" in page
    code, out, _ = cli("verify", tmp_path / "shared")
    assert code == 0
    assert json.loads(out)["noisy_scores"]


def test_noisy_scores_can_be_reserved_with_the_fit(cli: Cli, photos: Path, held_out: Path, tmp_path: Path) -> None:
    cli("budget", "init", held_out, "--epsilon", "3")
    words = ["fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "run", *TINY]
    code, _, err = cli(*words, "--dp-scores", "2", "--test", held_out)
    assert code == 0, err
    assert json.loads(cli("budget", "show", held_out)[1])["runs_unsettled"] == 1
    bought = evaluated(cli, tmp_path / "run", held_out, "--dp-scores", "2")["noisy_scores"]
    assert bought["reserved_before_fit"] is True
    after = json.loads(cli("budget", "show", held_out)[1])
    assert (after["runs_settled"], after["runs_unsettled"]) == (1, 0)


def test_a_fit_whose_noisy_scores_exceed_their_budget_leaves_nothing(
    cli: Cli, photos: Path, held_out: Path, tmp_path: Path
) -> None:
    cli("budget", "init", held_out, "--epsilon", "1")
    words = ["fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "run", *TINY]
    code, _, err = cli(*words, "--dp-scores", "2", "--test", held_out)
    assert (code, "BudgetExceeded" in err) == (2, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("budget", [True, False])
def test_a_resumed_fit_keeps_the_noisy_scores_it_reserved_and_refuses_others(
    budget: bool, cli: Cli, photos: Path, held_out: Path, tmp_path: Path
) -> None:
    assert not budget or cli("budget", "init", held_out, "--epsilon", "3")[0] == 0
    words, run = ["fit", photos, "--method", "dp-merf", "--epsilon", "1", *TINY, "--out"], tmp_path / "run"
    assert cli(*words, run, "--dp-scores", "2", "--test", held_out)[0] == 0
    for bought in (False, True):
        for same in (["--dp-scores", "2.0", "--test", f"{held_out}/"], ["--dp-scores", "2"], ["--test", held_out]):
            code, _, err = cli(*words, run, "--resume", *same)
            assert code == 0, err
        for other in (["--dp-scores", "1", "--test", held_out], ["--dp-scores", "2", "--test", "mnist"]):
            code, _, err = cli(*words, run, "--resume", *other)
            assert code == 2
            assert "expected the noisy scores this run reserved: epsilon 2 of" in err
        assert bought or evaluated(cli, run, held_out, "--dp-scores", "2")["noisy_scores"]["reserved_before_fit"]
    assert not budget or json.loads(cli("budget", "show", held_out)[1])["runs_settled"] == 1
    assert cli(*words, tmp_path / "without")[0] == 0
    code, _, err = cli(*words, tmp_path / "without", "--resume", "--dp-scores", "2")
    assert code == 2
    assert "this run reserved: none" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--dp-scores", "2"],
        ["--test", "mnist"],
        ["--dp-scores", "2", "--test", "nowhere"],
        ["--dp-scores", "-1", "--test", "mnist"],
    ],
    ids=str,
)
def test_half_a_reservation_is_refused_before_anything_is_written(
    cli: Cli, photos: Path, tmp_path: Path, words: list[str]
) -> None:
    fit = ["fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "run", *TINY]
    assert cli(*fit, *words)[0] == 2
    assert not (tmp_path / "run").exists()


def test_a_preset_is_run_with_its_own_seeds_and_says_so_where_others_are_given(
    cli: Cli, run: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Preset(description="", classifiers=("gaussian-nb",), seeds=(0, 1, 2))
    monkeypatch.setitem(PRESETS, "psg", quick)
    score = evaluated(cli, run, held_out, "--preset", "psg")["scores"][0]
    assert (score["n"], score["details"]["notes"]) == (3, [])
    fewer = evaluated(cli, run, held_out, "--preset", "psg", "--seeds", "1")["scores"][0]
    assert (fewer["n"], fewer["details"]["notes"]) == (1, ["1 seeds, where the protocol asks for 3"])


def test_no_more_than_a_gigabyte_of_images_is_drawn_unasked(
    cli: Cli, run: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilset.cli.evaluate.MOST_BYTES", 64 * 30)
    code, _, err = cli("evaluate", run, "--test", held_out, "--classifiers", "gaussian-nb")
    assert code == 0, err
    assert "drawing 30 synthetic images" in err
