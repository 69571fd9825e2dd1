"""`veilset sketch` and `veilset synthesize` as they are typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .conftest import Cli

SIZES = ["--networks", "2", "--width", "4"]
OPEN = ["--steps", "2", "--channels", "8", "--latent-size", "2", "--images-per-class", "2", "--networks-per-step", "1"]
NETWORKS = ["--trained-networks", "2", "--network-steps", "2", "--training-images", "30"]


def some_photos(folder: Path, seed: int) -> Path:
    values = np.random.default_rng(seed)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(values.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return some_photos(tmp_path / "photos", 0)


def epsilon_of(cli: Cli, *words: object) -> float:
    code, out, err = cli(*words)
    assert code == 0, err
    return float(json.loads(out)["claim"]["epsilon"])


def test_the_way_of_the_docs_from_photos_to_a_merged_model(cli: Cli, photos: Path, tmp_path: Path) -> None:
    first, second, other = tmp_path / "first.sketch", tmp_path / "second.sketch", tmp_path / "other.sketch"
    nets, both, run = tmp_path / "nets.safetensors", tmp_path / "both.sketch", tmp_path / "run"
    assert epsilon_of(cli, "sketch", photos, "--epsilon", "1", "--out", first, *SIZES) == pytest.approx(1.0)
    epsilon_of(cli, "synthesize", first, "--out", run, "--features-out", nets, *OPEN, *NETWORKS)
    total = epsilon_of(cli, "sketch", photos, "--after", first, "--features", nets, "--epsilon", "1", "--out", second)
    assert 1.4 < total < 1.5
    more = some_photos(tmp_path / "more", 1)
    assert epsilon_of(cli, "sketch", *SIZES, more, "--epsilon=2", "--out", other) == pytest.approx(2.0)
    assert epsilon_of(cli, "sketch", "merge", first, other, "--out", both) == pytest.approx(2.0)
    assert epsilon_of(cli, "synthesize", both, "--out", tmp_path / "model", *OPEN) == pytest.approx(2.0)
    for folder in (first, second, both, run, tmp_path / "model"):
        assert cli("verify", folder)[0] == 0
    assert cli("export", second, "--out", tmp_path / "shared")[0] == 0
    assert cli("sample", run, "-n", "4", "--out", tmp_path / "images")[0] == 0
    assert (
        cli("synthesize", tmp_path / "shared", "--per-class", "2", "--steps", "2", "--out", tmp_path / "x.npz")[0] == 0
    )


def test_what_a_round_will_take_and_cost_is_said_before_it_is_measured(cli: Cli, photos: Path, tmp_path: Path) -> None:
    first, nets = tmp_path / "first", tmp_path / "nets"
    code, _, err = cli("sketch", photos, "--epsilon", "1", "--out", first)
    assert code == 0
    assert "expected      about 10 s" in err, "the default 3,000 steps of a generator would take longer"
    epsilon_of(cli, "synthesize", first, "--out", tmp_path / "run", "--features-out", nets, *OPEN, *NETWORKS)
    code, _, err = cli(
        "sketch", photos, "--after", first, "--features", nets, "--epsilon", "1", "--out", tmp_path / "b"
    )
    assert code == 0
    assert re.findall(r"in all +epsilon (\S+)", err) == re.findall(r"eps_proven=(\S+)", err) != []


def test_merging_prints_what_it_assumes(cli: Cli, photos: Path, tmp_path: Path) -> None:
    other = some_photos(tmp_path / "more", 1)
    for name, source in (("a", photos), ("b", other)):
        epsilon_of(cli, "sketch", source, "--epsilon", "1", "--out", tmp_path / name, *SIZES)
    code, _, err = cli("sketch", "merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c")
    assert code == 0
    assert "nobody is in two of them" in err
    assert "--epsilon" not in err


def test_a_stored_plan_is_what_a_sketch_spends(cli: Cli, photos: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    words = ["--method", "sketch", "--rounds", "1", *SIZES, "--epsilon", "3", "--out", plan]
    assert cli("plan", photos, *words)[0] == 0
    out = tmp_path / "a"
    assert epsilon_of(cli, "sketch", photos, "--plan", plan, "--out", out) == pytest.approx(3.0)
    assert epsilon_of(cli, "sketch", photos, "--resume", "--out", out) == pytest.approx(3.0)
    code, _, err = cli("sketch", photos, "--plan", plan, "--epsilon", "1", "--out", tmp_path / "b")
    assert code == 2
    assert "other values for epsilon" in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--epsilon", "1", "--steps", "3"], "veilset synthesize"),
        (["--epsilon", "1", "--rounds", "2"], "options of a sketch"),
        (["more", "--epsilon", "1"], "one collection of images"),
        (["--epsilon", "1", "--after", "x"], "--after together with --features"),
        ([], "an epsilon"),
        (["--epsilon", "1", "--networks"], "a value after --networks"),
        (["--epsilon", "1", "--network", "3"], "Did you mean '--networks'?"),
        (["--epsilon", "1", "--after", "nowhere", "--features", "nowhere"], "finished release"),
    ],
)
def test_what_is_typed_wrongly_is_told(
    words: list[str], complaint: str, cli: Cli, photos: Path, tmp_path: Path
) -> None:
    code, _, err = cli("sketch", photos, *words, "--out", tmp_path / "out")
    assert code == 2
    assert complaint in err
    assert not (tmp_path / "out" / "release").exists()


@pytest.mark.parametrize("words", [[], ["--epsilon", "1", "--networks", "0"], ["--epsilon", "1", "--steps", "3"]])
def test_wrong_options_are_refused_before_any_image_is_looked_for(words: list[str], cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("sketch", tmp_path / "nowhere", *words, "--out", tmp_path / "out")
    assert code == 2
    assert "nowhere" not in err


def test_merge_takes_sketches_and_nothing_else(cli: Cli, photos: Path, tmp_path: Path) -> None:
    for words in (["a", "b", "--epsilon", "1"], ["a", "b", "--networks", "2"], ["a"], [photos, photos]):
        assert cli("sketch", "merge", *words, "--out", tmp_path / "c")[0] == 2
    assert not (tmp_path / "c").exists()


def test_the_help_of_merge_is_about_merge(cli: Cli) -> None:
    code, out, _ = cli("sketch", "merge", "--help")
    assert code == 0
    assert set(re.findall(r"--[a-z-]+", out)) == {"--out", "--quiet", "--help"}
    assert "sketch merge [OPTIONS] {sketches}..." in out


def test_sketches_that_are_given_to_a_measurement_are_told_how_to_be_merged(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("sketch", "--out", tmp_path / "c", "merge", "a", "b")
    assert code == 2
    assert "`veilset sketch merge A B --out C`, in this order" in err


def test_settings_of_the_sketch_cannot_be_changed_afterwards(cli: Cli, photos: Path, tmp_path: Path) -> None:
    epsilon_of(cli, "sketch", photos, "--epsilon", "1", "--out", tmp_path / "a", *SIZES)
    code, _, err = cli("synthesize", tmp_path / "a", "--out", tmp_path / "run", "--networks", "3")
    assert code == 2
    assert "the sketch has settled it" in err
    code, _, err = cli(
        "synthesize", tmp_path / "a", "--out", tmp_path / "run", "--per-class", "1", "--features-out", tmp_path / "x"
    )
    assert code == 2
    assert not (tmp_path / "run").exists()


def test_networks_are_those_of_features_out_and_nothing_else(cli: Cli, photos: Path, tmp_path: Path) -> None:
    epsilon_of(cli, "sketch", photos, "--epsilon", "1", "--out", tmp_path / "a", *SIZES)
    picture = next(photos.rglob("*.png"))
    words = ["sketch", photos, "--after", tmp_path / "a", "--epsilon", "1", "--out", tmp_path / "b"]
    for wrong in (picture, tmp_path / "a" / "release" / "sketch.safetensors"):
        code, _, err = cli(*words, "--features", wrong)
        assert code == 2
        assert "expected networks written by --features-out" in err
    assert not (tmp_path / "b").exists()


def test_an_unfinished_model_is_not_begun_again_unnoticed(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epsilon_of(cli, "sketch", photos, "--epsilon", "1", "--out", tmp_path / "a", *SIZES)
    words = ["synthesize", tmp_path / "a", "--out", tmp_path / "run", *OPEN]
    code, _, err = cli(*words, "--resume")
    assert code == 2
    assert "begun without --resume" in err

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("veilset.synthesis.synthesise", stop)
        assert cli(*words)[0] == 130
    code, _, err = cli(*words)
    assert code == 2
    assert "Go on with it by --resume" in err
    assert cli(*words, "--resume")[0] == 0


def test_a_finished_model_is_not_resumed(cli: Cli, photos: Path, tmp_path: Path) -> None:
    epsilon_of(cli, "sketch", photos, "--epsilon", "1", "--out", tmp_path / "a", *SIZES)
    words = ["synthesize", tmp_path / "a", "--out", tmp_path / "run", "--steps", "3", "--channels", "4"]
    assert cli(*words)[0] == 0
    code, _, err = cli(*words, "--resume")
    assert code != 0
    assert "which is finished" in err
    assert cli(*words, "--resume", "--per-class", "2")[0] == 2


def test_a_further_round_is_resumed_after_its_own_sketch_with_its_own_networks(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other, nets, others = (tmp_path / name for name in ("first", "other", "nets", "others"))
    for sketch in (first, other):
        epsilon_of(cli, "sketch", photos, "--epsilon", "1", "--out", sketch, *SIZES)
    for name, seed in ((nets, "0"), (others, "1")):
        made = ["--out", tmp_path / f"run {seed}", "--features-out", name, "--seed", seed]
        epsilon_of(cli, "synthesize", first, *made, *OPEN, *NETWORKS)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    words = ["sketch", photos, "--out", tmp_path / "a"]
    with monkeypatch.context() as patch:
        patch.setattr("veilset.sketching.measure", stop)
        assert cli(*words, "--epsilon", "1", "--after", first, "--features", nets)[0] == 130
    for typed, named in (
        (["--after", other, "--features", nets], "--after"), (["--features", others], "--features"),
        (["--after", other, "--features", others], "--after, --features"),
    ):  # fmt: skip
        code, _, err = cli(*words, "--resume", *typed)
        assert code == 2
        assert f"found others for {named}\n" in err
    assert epsilon_of(cli, *words, "--resume", "--after", first, "--features", nets) > 1.4
    assert epsilon_of(cli, *words, "--resume", "--features", nets) > 1.4
    code, _, err = cli("sketch", photos, "--out", first, "--resume", "--after", other)
    assert code == 2
    assert "others for --after" in err


def test_the_help_calls_its_argument_images(cli: Cli) -> None:
    _, out, _ = cli("sketch", "--help")
    assert "IMAGES" in out
    assert "words" not in out.lower()
