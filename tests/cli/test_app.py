"""The command line as a user meets it: the whole way, then everything that can be typed wrongly."""

from __future__ import annotations

import itertools
import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from veilset.cli import app as command_line
from veilset.cli.order import ORDER
from veilset.methods.base import all_methods
from veilset.version import __version__

TINY = ["--steps", "3", "--frequencies", "8", "--hidden-size", "8", "--map-channels", "8"]
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve 8x8 grey images in two classes."""
    values = np.random.default_rng(0)
    for name in ("cat", "dog"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(6):
            Image.fromarray(values.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"


def fitted(cli: Cli, photos: Path, out: Path, *more: str) -> None:
    code, _, err = cli("fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", out, *TINY, *more)
    assert code == 0, err


def test_a_command_that_is_advised_can_be_copied_where_a_path_has_spaces(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    run = tmp_path / "my run"
    _, _, err = cli("fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", run, *TINY)
    assert shlex.split(err.partition("next: ")[2]) == ["veilset", "report", str(run)]


def test_the_way_of_the_readme_works_from_folder_to_verified_export(cli: Cli, photos: Path, tmp_path: Path) -> None:
    run, shared = tmp_path / "runs" / "a", tmp_path / "for-sharing"
    assert cli("plan", photos, "--method", "dp-merf", "--epsilon", "1")[0] == 0
    fitted(cli, photos, run)
    assert cli("sample", run, "-n", "20", "--out", tmp_path / "synthetic")[0] == 0
    assert len(list((tmp_path / "synthetic").glob("*/*.png"))) == 20
    code, out, err = cli("evaluate", run, "--test", tmp_path / "synthetic", "--classifiers", "cnn", "-n", "20")
    assert code == 0, err
    assert json.loads(out)["scores"][0]["metric"] == "gen2real/cnn"
    assert cli("report", run)[0] == 0
    assert cli("export", run, "--out", shared)[0] == 0
    code, out, _ = cli("verify", shared)
    assert code == 0
    assert json.loads(out)["epsilon"] == pytest.approx(1.0)
    assert (shared / "report.html").is_file()
    assert not (shared / "vault").exists()


def test_verify_speaks_to_people_in_words_and_four_digits(cli: Cli, photos: Path, tmp_path: Path) -> None:
    fitted(cli, photos, tmp_path / "a")
    _, out, err = cli("verify", tmp_path / "a")
    assert json.loads(out)["epsilon"] != 1  # programs get every digit
    told = dict(line.split("  ", 1) for line in err.splitlines())
    assert told["epsilon"].strip() == "1"
    assert told["epsilon by Renyi accounting"].strip() == "1.093"


def test_images_that_differ_are_refused_with_the_options_of_this_command(cli: Cli, photos: Path) -> None:
    picture = sorted(photos.glob("*/*.png"))[-1]
    with Image.open(picture) as image:
        image.resize((9, 7)).save(picture)
    words = ("plan", photos, "--epsilon", "1")
    assert "--size 64x64 --fit crop" in cli(*words)[2]
    assert "--fit crop" in cli(*words, "--size", "8")[2]
    Image.new("RGB", (8, 8)).save(picture)
    assert "--color grey" in cli(*words)[2]
    (photos / "void").mkdir()
    assert "--class-names" in cli(*words)[2]


def test_stdout_is_one_json_line_and_people_read_stderr(cli: Cli, photos: Path) -> None:
    _, out, err = cli("plan", photos, "--method", "dp-merf", "--epsilon", "1")
    assert json.loads(out)["epsilon_planned"] == pytest.approx(1.0)
    assert out.count("\n") == 1
    assert "add-remove of one record" in err
    assert "delta 1e-05" in err
    assert "cat, dog" in err


def test_quiet_leaves_only_the_result(cli: Cli, photos: Path) -> None:
    _, out, err = cli("plan", photos, "--method", "dp-merf", "--epsilon", "1", "--quiet")
    assert err == ""
    assert json.loads(out)


def test_without_a_method_the_sketch_is_taken(cli: Cli, photos: Path) -> None:
    code, out, err = cli("plan", photos, "--epsilon", "1")
    assert code == 0, err
    assert json.loads(out)["method"] == "sketch"


def test_plan_reads_no_pixel(cli: Cli, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pixels were read")

    monkeypatch.setattr(Image.Image, "load", refuse)
    code, _, err = cli("plan", photos, "--method", "dp-merf", "--epsilon", "1")
    assert code == 0, err


def test_a_plan_file_is_what_fit_spends(cli: Cli, photos: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    cli("plan", photos, "--method", "dp-merf", "--epsilon", "2", "--out", plan, *TINY)
    code, out, err = cli("fit", photos, "--plan", plan, "--out", tmp_path / "run")
    assert code == 0, err
    claim = json.loads(out)["claim"]
    assert claim["epsilon"] == pytest.approx(2.0)
    assert any("the declared size was taken from the data" in text for text in claim["assumptions"])


def test_budget_is_spent_once_and_then_refuses(cli: Cli, photos: Path, tmp_path: Path) -> None:
    assert cli("budget", "init", photos, "--epsilon", "1.2")[0] == 0
    fitted(cli, photos, tmp_path / "a")
    code, _, err = cli("fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "b", *TINY)
    assert code == 2
    assert "BudgetExceeded" in err
    assert json.loads(cli("budget", "show", photos)[1])["epsilon_charged"] == pytest.approx(1.0)


@pytest.mark.parametrize("words", [["init", "mnist", "--epsilon", "1"], ["show", "mnist"]], ids=" ".join)
def test_a_public_data_set_is_told_apart_from_a_folder_that_is_not_there(cli: Cli, words: list[str]) -> None:
    code, _, err = cli("budget", *words)
    assert code == 2
    assert "expected images of your own" in err
    assert "found mnist, a public data set" in err


def test_a_plan_that_is_written_reserves_and_its_fit_settles(cli: Cli, photos: Path, tmp_path: Path) -> None:
    cli("budget", "init", photos, "--epsilon", "3")
    cli("plan", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "plan.json", *TINY)
    assert json.loads(cli("budget", "show", photos)[1])["runs_unsettled"] == 1
    cli("fit", photos, "--plan", tmp_path / "plan.json", "--out", tmp_path / "a")
    after = json.loads(cli("budget", "show", photos)[1])
    assert (after["runs_settled"], after["runs_unsettled"]) == (1, 0)


def test_the_budget_names_runs_that_nothing_counts(cli: Cli, photos: Path, tmp_path: Path) -> None:
    cli("budget", "init", photos, "--epsilon", "3")
    assert "no proven epsilon" not in cli("budget", "show", photos)[2]
    void = ["--method", "dp-merf", "--accounting", "none", "--out", tmp_path / "a"]
    assert cli("fit", photos, *void, *TINY)[0] == 0
    _, out, err = cli("budget", "show", photos)
    assert "no proven epsilon, which nothing counts: 1" in err
    assert json.loads(out)["runs_unproven"] == 1


def test_a_plan_that_cannot_be_written_reserves_nothing(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("budget", "init", photos, "--epsilon", "3")
    words = ["plan", photos, "--method", "dp-merf", "--epsilon", "1", *TINY, "--out"]
    (tmp_path / "plan.json").write_text("{}")
    for out in (tmp_path / "plan.json", tmp_path / "nowhere" / "plan.json"):
        code, _, err = cli(*words, out)
        assert code == 2, err
    assert (tmp_path / "plan.json").read_text() == "{}", "what is there is kept"
    monkeypatch.setattr("veilset.reserved_plans.write_atomically", full_disk)
    assert cli(*words, tmp_path / "new.json")[0] == 2
    status = json.loads(cli("budget", "show", photos)[1])
    assert (status["epsilon_charged"], status["runs_unsettled"]) == (0.0, 0)


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_published_accounting_on_private_data_needs_the_named_override(cli: Cli, photos: Path, tmp_path: Path) -> None:
    words = ["fit", photos, "--method", "dp-merf", "--epsilon", "1", "--accounting", "published", *TINY]
    code, _, err = cli(*words, "--out", tmp_path / "a")
    assert code == 2
    assert "--allow-published-accounting" in err
    assert not (tmp_path / "a").exists()
    code, out, err = cli(*words, "--out", tmp_path / "b", "--allow-published-accounting")
    assert code == 0, err
    claim = json.loads(out)["claim"]
    assert claim["published"]["status"] == "conservative"
    assert claim["epsilon"] < claim["published"]["epsilon"] <= 1.0


def test_no_noise_is_stamped_and_cannot_be_exported(cli: Cli, photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "a"
    assert cli("fit", photos, "--method", "dp-merf", "--accounting", "none", "--out", run, *TINY)[0] == 0
    assert "NOT PRIVATE" in (run / "release" / "README.md").read_text()
    assert cli("verify", run)[0] == 1
    code, _, err = cli("export", run, "--out", tmp_path / "x")
    assert code == 2
    assert "NOT PRIVATE" in err


def test_a_finished_run_resumes_to_itself(cli: Cli, photos: Path, tmp_path: Path) -> None:
    fitted(cli, photos, tmp_path / "a")
    before = (tmp_path / "a" / "release" / "model.safetensors").read_bytes()
    assert cli("fit", photos, "--out", tmp_path / "a", "--resume")[0] == 0
    assert (tmp_path / "a" / "release" / "model.safetensors").read_bytes() == before


def test_an_interrupted_fit_says_how_to_continue_and_continues(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("veilset.methods.dp_merf.matching_loss", interrupt)
        words = ["fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "a", *TINY]
        code, _, err = cli(*words)
    assert code == 130
    assert "--resume" in err
    code, out, err = cli("fit", photos, "--out", tmp_path / "a", "--resume")
    assert code == 0, err
    assert json.loads(out)["claim"]["epsilon"] == pytest.approx(1.0)


def interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch, photos: Path, out: Path, *words: object) -> None:
    """A fit of `photos` that is stopped after its release."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("veilset.methods.dp_merf.matching_loss", interrupt)
        code, _, err = cli("fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", out, *words, *TINY)
        assert code == 130, err


def test_a_resumed_fit_reads_its_images_as_it_did_at_first(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (20, 11)).save(photos / "cat" / "other.png")
    both = tmp_path / "both"
    for part in ("train", "test"):
        shutil.copytree(photos, both / part)
    (both / "test" / "cat" / "0.png").unlink()
    words = ["--size", "9x10", "--fit", "crop", "--color", "grey", "--split", "test", "--class-names", "dog,cat,bird"]
    interrupted(cli, monkeypatch, both, tmp_path / "a", *words)
    code, _, err = cli("fit", both, "--out", tmp_path / "a", "--resume")
    assert code == 0, err


@pytest.mark.parametrize(
    ("option", "other"),
    [("--size", "9"), ("--fit", "stretch"), ("--color", "rgb"), ("--split", "test"), ("--class-names", "dog,cat")],
)
def test_a_resumed_fit_refuses_to_read_its_images_in_another_way(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, other: str
) -> None:
    words = ["--size", "9x10", "--fit", "crop", "--color", "grey", "--split", "train", "--class-names", "cat, dog"]
    interrupted(cli, monkeypatch, photos, tmp_path / "a", *words)
    code, _, err = cli("fit", photos, "--out", tmp_path / "a", "--resume", option, other)
    assert code == 2
    assert f"{option.strip('-').replace('-', '_')} " in err
    assert "begun" in err
    code, _, err = cli("fit", photos, "--out", tmp_path / "a", "--resume", *words)
    assert code == 0, err


def test_a_resumed_fit_says_which_images_it_was_begun_with(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(cli, monkeypatch, photos, tmp_path / "a", "--benchmark", "toys")
    code, _, err = cli("fit", photos, "--out", tmp_path / "a", "--resume")
    assert code == 2
    assert "toys" in err
    assert "--benchmark" in err
    assert cli("fit", photos, "--out", tmp_path / "a", "--resume", "--benchmark", "toys")[0] == 0


def test_a_resumed_fit_refuses_other_images_before_it_reads_them(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(cli, monkeypatch, photos, tmp_path / "a")
    monkeypatch.setattr("veilset.cli.app.open_images", None)
    for other in (tmp_path, "mnist"):
        code, _, err = cli("fit", other, "--out", tmp_path / "a", "--resume")
        assert code == 2
        assert f"the images this run was started on: {photos}\n  found {other}\n  Resume it with the same ones" in err


def test_a_resumed_fit_is_not_to_be_given_the_classes_of_images_that_came_later(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(cli, monkeypatch, photos, tmp_path / "a")
    shutil.copytree(photos / "cat", photos / "cow")
    code, _, err = cli("fit", photos, "--out", tmp_path / "a", "--resume")
    assert code == 2
    assert "--class-names" not in err
    assert "Resume with the images it was begun with" in err


def test_images_that_are_not_as_planned_are_told_as_people_type_them(cli: Cli, photos: Path, tmp_path: Path) -> None:
    assert cli("plan", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "plan", *TINY)[0] == 0
    words = ["--plan", tmp_path / "plan", "--size", "9x10", "--fit", "crop", "--color", "rgb"]
    code, _, err = cli("fit", photos, *words, "--out", tmp_path / "a")
    assert code == 2
    assert "as planned: 8x8 grey, classes cat, dog\n  found 9x10 rgb, classes cat, dog" in err


def test_an_interrupt_before_there_is_a_run_does_not_promise_that_it_can_be_resumed(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("veilset.cli.app.open_images", interrupt)
    code, _, err = cli("fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "a")
    assert code == 130
    assert "--resume" not in err
    assert "Nothing was released" in err


def test_declared_class_names_may_have_spaces_around_them(cli: Cli, photos: Path) -> None:
    words = ["plan", photos, "--method", "dp-merf", "--epsilon", "1", "--class-names", "dog, cat"]
    code, _, err = cli(*words)
    assert code == 0, err
    assert "class names: dog, cat" in err


def test_more_samples_than_a_set_has_images_are_a_warning(
    cli: Cli, finished_runs: dict[str, Path], tmp_path: Path
) -> None:
    for number, warned in ((12, False), (13, True)):
        code, _, said = cli("sample", finished_runs["psg"], "-n", number, "--out", tmp_path / str(number))
        assert code == 0
        assert ("a set of 12 images" in said) == warned


def test_samples_follow_a_declared_mix_and_npz_is_written(cli: Cli, photos: Path, tmp_path: Path) -> None:
    fitted(cli, photos, tmp_path / "a")
    out = tmp_path / "s.npz"
    assert cli("sample", tmp_path / "a", "-n", "8", "--mix", "cat=3,dog=1", "--out", out)[0] == 0
    assert np.bincount(np.load(out)["y"]).tolist() == [6, 2]


def test_samples_that_could_not_be_written_are_not_drawn(
    cli: Cli, photos: Path, finished_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilset.model.Model.sample", full_disk)
    archive = tmp_path / "s.npz"
    archive.touch()
    for words, expected in (
        (["--out", photos], "new or empty"),
        (["--out", archive], "a new file"),
    ):
        code, _, err = cli("sample", finished_runs["dp-merf"], *words)
        assert code == 2
        assert expected in err


def test_the_version_is_shown(cli: Cli) -> None:
    code, out, _ = cli("--version")
    assert code == 0
    assert out == f"veilset {__version__}\n"


WRONG = {
    "unknown method": (["--method", "dp-mref", "--epsilon", "1"], "Did you mean 'dp-merf'?"),
    "no epsilon": (["--method", "dp-merf"], "has no default"),
    "epsilon zero": (["--method", "dp-merf", "--epsilon", "0"], "epsilon above 0"),
    "epsilon negative": (["--method", "dp-merf", "--epsilon", "-1"], "epsilon above 0"),
    "epsilon NaN": (["--method", "dp-merf", "--epsilon", "nan"], "epsilon above 0"),
    "epsilon infinite": (["--method", "dp-merf", "--epsilon", "inf"], "epsilon above 0"),
    "epsilon text": (["--method", "dp-merf", "--epsilon", "one"], "valid number"),
    "delta one": (["--method", "dp-merf", "--epsilon", "1", "--delta", "1"], "delta"),
    "delta too large for the size": (["--method", "dp-merf", "--epsilon", "1", "--delta", "0.1"], "1 / declared size"),
    "unknown option": (["--method", "dp-merf", "--epsilon", "1", "--frequences", "9"], "Did you mean '--frequencies'?"),
    "unknown option of the command": (["--method", "dp-merf", "--epsiln", "1"], "Did you mean '--epsilon'?"),
    "option like no other": (["--epsilon", "1", "--zzzz", "1"], "--help` and `veilset methods sketch` list them"),
    "option without value": (["--method", "dp-merf", "--epsilon", "1", "--frequencies"], "a value after"),
    "option of a wrong type": (["--method", "dp-merf", "--epsilon", "1", "--frequencies", "many"], "type int"),
    "option out of range": (["--method", "dp-merf", "--epsilon", "1", "--steps", "0"], "at least 1"),
    "stray word": (["--method", "dp-merf", "--epsilon", "1", "more"], "--name value"),
    "wrong adjacency": (["--method", "dp-merf", "--epsilon", "1", "--adjacency", "swap"], "replace"),
    "user without users": (["--method", "dp-merf", "--epsilon", "1", "--unit", "user"], "--images-per-user"),
    "size nonsense": (["--method", "dp-merf", "--epsilon", "1", "--size", "axb"], "--size 64x48"),
    "missing plan": (["--plan", "nowhere.json"], "plan file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_explained_and_lose_nothing(cli: Cli, photos: Path, tmp_path: Path, name: str) -> None:
    words, expected = WRONG[name]
    code, out, err = cli("fit", photos, "--out", tmp_path / "run", *words)
    assert code == 2
    assert out == ""
    assert expected in err.replace("\n", " ").replace("│", " ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["unknown method", "no epsilon", "delta one", "unknown option", "option out of range"])
@pytest.mark.parametrize("verb", ["fit", "continual"])
def test_wrong_options_are_refused_before_any_image_is_looked_for(
    cli: Cli, tmp_path: Path, name: str, verb: str
) -> None:
    words, expected = WRONG[name]
    code, _, err = cli(verb, tmp_path / "nowhere", "--out", tmp_path / "run", *words)
    assert code == 2
    assert expected in err.replace("\n", " ")


def test_output_folders_are_never_overwritten(cli: Cli, photos: Path, tmp_path: Path) -> None:
    fitted(cli, photos, tmp_path / "a")
    before = sorted(path.name for path in (tmp_path / "a").rglob("*"))
    for words in (
        ["fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "a"],
        ["sample", tmp_path / "a", "--out", photos],
        ["export", tmp_path / "a", "--out", tmp_path / "a"],
    ):
        assert cli(*words)[0] == 2
    assert sorted(path.name for path in (tmp_path / "a").rglob("*")) == before


@pytest.mark.parametrize(("accounting", "word"), [("proven", "to share"), ("none", "NOT to share")])
def test_the_page_of_a_run_without_noise_is_not_offered_for_sharing(
    accounting: str, word: str, cli: Cli, photos: Path, tmp_path: Path
) -> None:
    epsilon = ["--epsilon", "2"] if accounting == "proven" else []
    run = tmp_path / "run"
    code, _, err = cli("fit", photos, *epsilon, "--accounting", accounting, "--method", "dp-merf", *TINY, "--out", run)
    assert code == 0, err
    code, _, err = cli("report", run)
    assert code == 0, err
    assert err.startswith(f"{word}: ")


@pytest.mark.parametrize("verb", ["sample", "evaluate", "report", "export", "verify"])
def test_a_folder_that_is_no_run_gives_a_clear_error(cli: Cli, photos: Path, tmp_path: Path, verb: str) -> None:
    needs = {"sample": ["--out", tmp_path / "x"], "export": ["--out", tmp_path / "x"], "evaluate": ["--test", photos]}
    code, _, err = cli(verb, tmp_path / "nowhere", *needs.get(verb, []))
    assert code == 2
    assert "expected" in err
    assert "found" in err


def test_a_full_disk_is_an_error_not_a_traceback(
    cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilset.files.os.fsync", full_disk)
    code, _, err = cli("fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "a", *TINY)
    assert code == 2
    assert "No space left" in err


words = st.lists(
    st.sampled_from(
        ["--epsilon", "--delta", "--size", "--fit", "--mix", "-n", "--seed", "--unit", "mnist", "--out", "--"]
    )
    | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=6),
    max_size=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(verb=st.sampled_from(["plan", "sample", "verify", "export", "budget", "methods", "report"]), more=words)
def test_random_words_end_in_an_exit_code_never_in_a_traceback(
    cli: Cli, tmp_path: Path, verb: str, more: list[str]
) -> None:
    code, _, _ = cli(verb, *more)
    assert code in (0, 1, 2)


@pytest.mark.parametrize("verb", ["plan", "fit", "sketch", "synthesize", "continual"])
def test_help_of_verbs_that_take_options_of_a_method_says_how_to_list_them(cli: Cli, verb: str) -> None:
    words = " ".join(cli(verb, "--help")[1].replace("│", " ").split())
    assert re.search(r"ptions of the method|own options", words)
    assert re.search("`veilset methods (NAME|sketch)` lists", words)


def test_help_of_every_verb_teaches() -> None:
    for verb in ("plan", "fit", "sample", "evaluate", "report", "export", "verify", "budget", "methods"):
        answer = subprocess.run(
            [sys.executable, "-m", "veilset", verb, "--help"], capture_output=True, text=True, check=True
        )
        assert "Usage" in answer.stdout
        assert len(answer.stdout) > 200


def test_the_same_command_with_resume_is_accepted_and_other_options_are_not(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    fitted(cli, photos, tmp_path / "a")
    same = ["fit", photos, "--method", "dp-merf", "--epsilon", "1", "--out", tmp_path / "a", *TINY, "--resume"]
    assert cli(*same)[0] == 0
    for other in (["--epsilon", "2"], ["--unit", "user"], ["--steps", "4"], ["--delta", "1e-6"]):
        code, _, err = cli("fit", photos, "--out", tmp_path / "a", "--resume", *other)
        assert code == 2
        assert other[0].strip("-") in err


def test_a_run_is_resumed_with_its_own_plan_and_no_other(cli: Cli, photos: Path, tmp_path: Path) -> None:
    for name, epsilon in (("own", "1"), ("other", "2")):
        words = ["--method", "dp-merf", "--epsilon", epsilon, *TINY, "--out", tmp_path / name]
        assert cli("plan", photos, *words)[0] == 0
    assert cli("fit", photos, "--plan", tmp_path / "own", "--out", tmp_path / "a")[0] == 0
    assert cli("fit", photos, "--plan", tmp_path / "own", "--out", tmp_path / "a", "--resume")[0] == 0
    code, _, err = cli("fit", photos, "--plan", tmp_path / "other", "--out", tmp_path / "a", "--resume")
    assert code == 2
    assert "the plan this run was begun with" in err


def test_a_plan_that_lacks_an_option_says_so_where_that_option_is_typed(cli: Cli, photos: Path, tmp_path: Path) -> None:
    words = ["--method", "dp-merf", "--epsilon", "1", *TINY, "--out", tmp_path / "plan"]
    assert cli("plan", photos, *words)[0] == 0
    plan = json.loads((tmp_path / "plan").read_text())
    del plan["config"]["steps"]
    (tmp_path / "plan").write_text(json.dumps(plan))
    code, _, err = cli("fit", photos, "--plan", tmp_path / "plan", "--steps", "3", "--out", tmp_path / "a")
    assert code == 2
    assert "steps" in err
    assert "Traceback" not in err


def test_noisy_scores_that_cannot_be_had_leave_no_run_behind(cli: Cli, photos: Path, tmp_path: Path) -> None:
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name},{path.name}" for path in sorted(photos.glob("*/*.png"))]
    (tmp_path / "photos.csv").write_text("\n".join(["path,label,user", *rows]))
    words = ["--method", "gs-wgan", "--epsilon", "1", "--unit", "user", "--dp-scores", "1", "--test", photos]
    code, _, err = cli("fit", tmp_path / "photos.csv", *words, "--out", tmp_path / "a")
    assert code == 2
    assert "a cap of test images per user" in err
    assert not (tmp_path / "a").exists()


def test_options_beside_a_plan_are_understood_together_with_those_of_the_plan(
    cli: Cli, photos: Path, tmp_path: Path
) -> None:
    turns = ["--method", "gs-wgan", "--epsilon", "1", "--teachers", "in-turn", "--schedule", "round-robin"]
    assert cli("plan", photos, *turns, "--out", tmp_path / "plan.json")[0] == 0
    for schedule, complaint in (("round-robin", "nowhere"), ("uniform", "other values for schedule")):
        words = ["--plan", tmp_path / "plan.json", "--schedule", schedule, "--out", tmp_path / "run"]
        code, _, err = cli("fit", tmp_path / "nowhere", *words)
        assert code == 2
        assert complaint in err


def test_a_cap_per_user_at_record_level_is_refused(cli: Cli, photos: Path) -> None:
    code, _, err = cli("plan", photos, "--method", "dp-merf", "--epsilon", "1", "--images-per-user", "5")
    assert code == 2
    assert "--unit user" in err


@pytest.mark.parametrize(
    ("device", "preset", "hinted"), [("cuda", "fast", True), ("cuda", "best", False), ("cpu", "fast", False)]
)
def test_a_plan_for_two_cores_on_a_machine_with_a_gpu_says_what_it_could_do(
    cli: Cli, photos: Path, monkeypatch: pytest.MonkeyPatch, device: str, preset: str, hinted: bool
) -> None:
    monkeypatch.setattr("veilset.api.pick_device", lambda _: torch.device(device))
    _, _, err = cli("plan", photos, "--method", "sketch", "--epsilon", "1", "--preset", preset)
    assert ("--preset balanced" in err) == hinted


@pytest.mark.parametrize(("device", "hinted"), [("cuda", False), ("cpu", True)])
def test_a_plan_that_is_long_without_a_gpu_says_so(
    cli: Cli, photos: Path, monkeypatch: pytest.MonkeyPatch, device: str, hinted: bool
) -> None:
    monkeypatch.setattr("veilset.api.pick_device", lambda _: torch.device(device))
    command = ("plan", photos, "--method", "sketch", "--epsilon", "1")
    assert "work for a GPU" not in cli(*command)[2]
    monkeypatch.setattr("veilset.cli.plans.LONG_ON_A_CPU", 0)
    assert ("work for a GPU" in cli(*command)[2]) == hinted


def test_help_lists_every_command_in_the_order_of_use() -> None:
    found = typer.main.get_command(command_line.app).list_commands(None)
    assert tuple(found) == ORDER


def test_a_method_shows_its_presets(cli: Cli) -> None:
    _, out, err = cli("methods", "psg")
    assert "--preset small" in err
    assert json.loads(out)["presets"]["small"]["runs"] == 40


@pytest.mark.parametrize("name", [*all_methods(), "dp-sgd"])
def test_every_option_of_a_method_is_explained(name: str, cli: Cli) -> None:
    _, out, err = cli("methods", name)
    for option in json.loads(out)["options"]:
        assert re.search(rf"^--{option.replace('_', '-')} +\S.{{9,}} \(default .+\)$", err, re.MULTILINE), option


def test_the_classifier_of_courses_shows_its_options_though_it_makes_no_images(cli: Cli) -> None:
    code, out, err = cli("methods", "dp-sgd")
    assert code == 0, err
    assert "learning_rate" in json.loads(out)["options"]
    assert "dp-sgd" not in json.loads(cli("methods")[1])["methods"]


def test_hints_of_the_accountants_library_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command_line, "app", lambda: logging.getLogger("absl").warning("an order was left out"))
    command_line.main()
    assert not caplog.records


@pytest.mark.parametrize("verb", ["evaluate", "compare", "continual"])
def test_paragraphs_of_the_help_flow_with_the_width_of_the_terminal(
    verb: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, err = cli(verb, "--help")
    prose = [line.strip() for line in (out + err).split("╭")[0].splitlines()]
    for line, following in itertools.pairwise(prose):
        # A word that would have fitted was sent to the next line: the width is that of the source.
        assert not (line and following) or len(line) + 1 + len(following.split()[0]) >= 78


@pytest.mark.parametrize("verb", ["fit", "sketch"])
def test_where_a_run_cannot_be_written_no_image_is_read(verb: str, cli: Cli, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "a"
    out.mkdir()
    (out / "something").touch()
    code, _, err = cli(verb, photos, "--epsilon", "1", "--out", out)
    assert code == 2
    assert "a new or empty output folder" in err
    assert "reading images" not in err  # a million of them take their time


@pytest.mark.parametrize("verb", ["plan", "fit"])
def test_an_option_of_the_command_behind_a_bare_dash_is_refused(cli: Cli, verb: str, tmp_path: Path) -> None:
    more = ("--out", tmp_path / "run") if verb == "fit" else ()
    code, _, err = cli(verb, "mnist", *more, "--", "--epsilon", "1")
    assert code == 2
    assert "--epsilon behind a bare --" in err
