"""From a sketch to a model or a few images, without an image and without a charge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from contract.cases import digest, make_images, rewrite_bytes
from sketch_cases import NETWORKS, OPEN, continued

from veilset.artifact import read_privacy, update_manifest
from veilset.data import load
from veilset.errors import ConfigError, RunError, VeilsetError
from veilset.model import from_pretrained
from veilset.privacy.release import Door
from veilset.report.build import write_reports
from veilset.run import resume
from veilset.run_folder import RunFolder
from veilset.sharing import verify
from veilset.sketch_file import read_networks
from veilset.sketch_release import open_sketch
from veilset.synthesis import open_config, synthesize, synthesize_images


@pytest.fixture(autouse=True)
def _no_noise(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, made: Path) -> None:
    """Whatever happens here, the door stays shut."""

    def refuse(*_: object) -> None:
        raise AssertionError("something was released")

    if "continues" not in request.node.name:
        monkeypatch.setattr(Door, "_noisy", refuse)


def interrupted(source: Path, out: Path) -> None:
    """A run that is stopped in the middle, two steps after its last checkpoint."""

    def stop(message: str, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synthesize(source, out, options={**OPEN, "steps": 8}, progress=stop)


def test_an_interrupted_run_goes_on_to_the_model_it_would_have_been(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilset.engines.sketch_rounds.CHECKPOINT_EVERY", 3)
    starts: list[int] = []
    synthesize(made / "first", tmp_path / "whole", options={**OPEN, "steps": 8})
    interrupted(made / "first", tmp_path / "run")
    synthesize(
        made / "first", tmp_path / "run", options={**OPEN, "steps": 8}, resume=True,
        progress=lambda message, done, total: starts.append(done),
    )  # fmt: skip
    assert starts[0] == 3, "it began again"
    whole, run = (from_pretrained(tmp_path / name).sample(9).pixels for name in ("whole", "run"))
    assert torch.equal(whole, run)
    with pytest.raises(RunError, match="finished"):
        synthesize(made / "first", tmp_path / "run", options={**OPEN, "steps": 8}, resume=True)


def test_a_run_is_not_continued_with_another_sketch_or_other_options(made: Path, tmp_path: Path) -> None:
    interrupted(made / "first", tmp_path / "run")
    for source, options, found in (
        ("second", {"steps": 8}, "the sketch"),
        ("first", {"steps": 9}, "values for config"),
    ):
        with pytest.raises(RunError, match=found):
            synthesize(made / source, tmp_path / "run", options={**OPEN, **options}, resume=True)
    with pytest.raises(RunError, match="a run folder at"):
        synthesize(made / "first", tmp_path / "none", options=OPEN, resume=True)


@pytest.mark.parametrize("name", ["first", "merged", "second"])
def test_a_model_from_an_exported_sketch_has_its_claim_and_ledgers(name: str, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / name / "release", tmp_path / "shared")
    model = synthesize(tmp_path / "shared", tmp_path / "run", options=OPEN)
    sketch = open_sketch(made / name)
    assert (model.claim, model.privacy.parts) == (sketch.claim, sketch.privacy.parts)
    assert len(model.sample(7)) == 7
    assert verify(tmp_path / "run")["epsilon"] == sketch.claim.epsilon
    assert open_sketch(tmp_path / "run").data == sketch.data
    assert (tmp_path / "run" / "vault").stat().st_mode & 0o777 == 0o700


def test_a_fit_can_be_synthesised_again_from_its_release_alone(finished_runs: dict[str, Path], tmp_path: Path) -> None:
    release = finished_runs["sketch"] / "release"
    again = synthesize(release, tmp_path / "again", options={**OPEN, "channels": 4, "jitter": "none"})
    assert again.claim.epsilon == from_pretrained(release).claim.epsilon
    assert verify(tmp_path / "again")["verdict"].startswith("the stated epsilon follows")


def test_the_last_step_of_a_fit_is_synthesis_from_its_sketch(finished_runs: dict[str, Path], tmp_path: Path) -> None:
    """Same seed, same settings: what a fit does after its last release needs nothing but the release."""
    fitted = from_pretrained(finished_runs["sketch"])
    again = synthesize(finished_runs["sketch"] / "release", tmp_path / "again", options=OPEN)
    assert digest(again._module.state_dict()) == digest(fitted._module.state_dict())


def test_other_settings_and_seeds_give_other_models_of_the_same_claim(made: Path, tmp_path: Path) -> None:
    models = [
        synthesize(made / "first", tmp_path / str(place), options={**OPEN, **more}, seed=seed)
        for place, (more, seed) in enumerate([({}, 0), ({}, 0), ({}, 1), ({"steps": 5}, 0)])
    ]
    hashes = [digest(model._module.state_dict()) for model in models]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    assert len({str(model.claim) for model in models}) == 1


@pytest.mark.parametrize("name", ["networks", "width", "network_seed", "total_weight", "rounds", "first_share"])
def test_what_was_settled_when_measuring_cannot_be_changed(name: str, made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the sketch has settled it"):
        synthesize(made / "first", tmp_path / "run", options={**OPEN, name: "1"})
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="option of sketch"):
        synthesize(made / "first", tmp_path / "run", options={"stepps": "1"})


def test_a_preset_changes_the_open_side_only(made: Path) -> None:
    config = open_config(open_sketch(made / "first"), {"preset": "balanced"})
    assert (config.networks, config.width, config.rounds) == (2, 4, 1)
    assert config.channels == 256


def test_a_forged_sketch_is_not_synthesised_from(copy_of: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_of("first")
    path = source / "release" / "privacy.json"
    value = json.loads(path.read_text())
    value["claim"]["epsilon"] = 0.1
    rewrite_bytes(path, json.dumps(value).encode())
    with pytest.raises(VeilsetError):
        synthesize(source, tmp_path / "run", options=OPEN)
    assert not (tmp_path / "run").exists()


def test_a_model_from_a_sketch_is_reported_like_a_fit(copy_of: Callable[[str], Path], made: Path) -> None:
    run = copy_of("run")
    public, owner = write_reports(RunFolder(run))
    assert public.is_file()
    assert owner is not None
    assert verify(run)["files"] == "unchanged"
    assert RunFolder(run).count_training_images(make_images()) == len(make_images())
    with pytest.raises(RunError):
        resume(make_images(), run)


def test_a_report_counts_the_releases_of_all_ledgers(made: Path, tmp_path: Path) -> None:
    synthesize(made / "second", tmp_path / "run", options=OPEN)
    public, _ = write_reports(RunFolder(tmp_path / "run"))
    assert public.read_text().count("a vector with Gaussian noise") == 2


def test_networks_for_a_further_round_are_never_written_over_a_file(made: Path, tmp_path: Path) -> None:
    (tmp_path / "nets").write_text("mine")
    with pytest.raises(RunError, match="exists"):
        synthesize(made / "first", tmp_path / "run", options=NETWORKS, features_out=tmp_path / "nets")
    assert not (tmp_path / "run").exists()


def test_networks_that_could_not_be_written_are_not_trained(made: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no folder"):
        synthesize(made / "first", tmp_path / "run", options=NETWORKS, features_out=tmp_path / "nowhere" / "nets")
    assert not (tmp_path / "run").exists()


def test_a_finished_model_gives_the_networks_it_would_have_given_and_stays_as_it_is(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    synthesize(made / "first", run, options=OPEN)
    (run / "release" / "report.html").write_text("a report that was written since")
    update_manifest(run / "release")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (run / "release").iterdir()}
    synthesize(made / "first", run, options=NETWORKS, features_out=tmp_path / "nets", resume=True)
    assert (tmp_path / "nets").read_bytes() == (made / "networks").read_bytes()
    assert before == {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (run / "release").iterdir()}


def test_a_model_is_finished_once_though_networks_are_asked_for_later(made: Path, tmp_path: Path) -> None:
    synthesize(made / "first", tmp_path / "run", options=OPEN)
    synthesize(made / "first", tmp_path / "run", options=NETWORKS, features_out=tmp_path / "nets", resume=True)
    lines = (tmp_path / "run" / "vault" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines].count("finished") == 1


def test_networks_that_are_asked_for_again_are_trained_as_they_are_asked_for(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name, steps in (("few", 1), ("more", 9)):
        options = {**NETWORKS, "network_steps": steps}
        synthesize(made / "first", run, options=options, features_out=tmp_path / name, resume=name == "more")
    assert (tmp_path / "few").read_bytes() != (tmp_path / "more").read_bytes()


@pytest.mark.parametrize("name", ["trained_networks", "network_steps", "training_images"])
def test_options_that_nothing_would_use_are_refused(name: str, made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"found {name}"):
        synthesize(made / "first", tmp_path / "run", options={**OPEN, name: 3})
    with pytest.raises(ConfigError, match="found channels"):
        synthesize_images(made / "first", tmp_path / "few", 2, options={"steps": 3, "channels": 8})
    assert list(tmp_path.iterdir()) == []


def test_a_model_from_a_sketch_knows_how_its_images_were_read(copy_of: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy_of("first")
    note = source / "vault" / "images.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "fit": "crop"}))
    synthesize(source, tmp_path / "model", options=OPEN)
    assert RunFolder(tmp_path / "model").fit == "crop", "test images are to be read in the same way"
    with pytest.raises(RunError, match="released values"):
        resume(make_images(), tmp_path / "model")
    shutil.rmtree(source / "vault")
    synthesize(source, tmp_path / "elsewhere", options=OPEN)
    assert RunFolder(tmp_path / "elsewhere").fit is None


def test_measuring_continues_from_a_fit_too(finished_runs: dict[str, Path], tmp_path: Path) -> None:
    source = finished_runs["sketch"]
    synthesize(source, tmp_path / "run", options=NETWORKS, features_out=tmp_path / "nets")
    third = continued(tmp_path / "third", source, tmp_path / "nets")
    assert len(third.rounds) == 3
    assert [len(part) for part in third.privacy.parts] == [2]
    assert verify(tmp_path / "third")["epsilon"] > 5.0


@pytest.mark.parametrize(("preset", "kinds"), [("fast", 4), ("balanced", 1)])
def test_networks_for_a_further_round_have_kinds_only_where_the_preset_has_them(
    preset: str, kinds: int, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilset.methods.sketch.clear_kinds", lambda *_: 4)
    synthesize(made / "first", tmp_path / "run", options={**NETWORKS, "preset": preset}, features_out=tmp_path / "nets")
    spec = open_sketch(made / "first").spec
    assert read_networks((tmp_path / "nets").read_bytes(), spec, 0.1).kinds_per_class == kinds


@pytest.mark.parametrize("name", ["few.npz", "few"])
def test_a_few_optimised_images_are_balanced_and_have_the_claim_beside_them(
    name: str, made: Path, tmp_path: Path
) -> None:
    sketch = synthesize_images(made / "second", tmp_path / name, 2, options={"steps": 3})
    images = load(tmp_path / name)
    assert images.labels.bincount().tolist() == [2, 2, 2]
    privacy = read_privacy((tmp_path / f"{name}.privacy.json").read_bytes())
    assert (privacy.claim, privacy.parts) == (sketch.claim, sketch.privacy.parts)
    with pytest.raises(VeilsetError):
        synthesize_images(made / "second", tmp_path / name, 2, options={"steps": 3})
    assert np.asarray(images.pixels).std() > 0
    assert torch.equal(images.labels.sort().values, images.labels)


@pytest.mark.parametrize("name", ["few.npz", "few"])
def test_images_that_could_not_be_written_are_not_optimised(
    name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("work before the check")

    monkeypatch.setattr("veilset.synthesis.match_pixels", refuse)
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.txt").write_text("keep")
    with pytest.raises(VeilsetError):
        synthesize_images(made / "second", tmp_path / name, 2, options={"steps": 3})
