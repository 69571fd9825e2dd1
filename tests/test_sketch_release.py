"""Released sketches, honest and forged. Forgers repair the manifest: hashes of files are no signature."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images, rewrite_bytes, rewrite_json, tiny_plan
from safetensors.torch import load, save
from sketch_cases import continued, measured

from veilset.artifact import MANIFEST
from veilset.errors import ArtifactError, LedgerError, VeilsetError
from veilset.model import from_pretrained
from veilset.privacy.claim import Claim, shown
from veilset.privacy.gaussian import gaussian_epsilon
from veilset.privacy.noise import SeededNoise
from veilset.run import execute
from veilset.sharing import export, verify
from veilset.sketch_release import SketchRelease, card_of, open_sketch

KINDS = ("first", "merged", "second", "run")
Copy = Callable[[str], Path]


def refused(release: Path) -> None:
    with pytest.raises((ArtifactError, LedgerError)):
        verify(release)


def privacy_of(release: Path) -> dict[str, Any]:
    return json.loads((release / "privacy.json").read_text())


def repair_card(release: Path) -> None:
    """A forger who knows the tool writes the card that goes with the forged claim."""
    config = json.loads((release / "config.json").read_text())
    card = card_of(config, Claim.from_json(privacy_of(release)["claim"]))
    rewrite_bytes(release / "README.md", card.encode())


def forge(release: Path, parts: Any, **claim: Any) -> None:
    """privacy.json with other ledgers, in the form their number asks for."""
    value = privacy_of(release)
    single = [len(part) for part in parts] == [1]
    ledgers = {"ledger": parts[0][0]} if single else {"parts": parts}
    forged = {"claim": {**value["claim"], **claim}, **ledgers}
    rewrite_bytes(release / "privacy.json", json.dumps(forged).encode())
    repair_card(release)


@pytest.mark.parametrize("name", ["first", "merged", "second"])
def test_a_sketch_holds_its_five_files_and_nothing_of_the_vault(name: str, made: Path) -> None:
    found = {path.name for path in (made / name / "release").iterdir()}
    assert found == {"config.json", "sketch.safetensors", "privacy.json", "README.md", MANIFEST}


@pytest.mark.parametrize("name", KINDS)
def test_everything_made_from_sketches_verifies_and_can_be_exported(name: str, made: Path, tmp_path: Path) -> None:
    checked = export(made / name, tmp_path / "out")
    assert checked["epsilon_renyi"] >= checked["epsilon"]
    assert verify(tmp_path / "out")["epsilon"] == open_sketch(tmp_path / "out").claim.epsilon


def test_a_sketch_tells_its_price_for_adding_replacing_and_several_images_of_one_person(made: Path) -> None:
    card, claim = (made / "first" / "release" / "README.md").read_text(), open_sketch(made / "first").claim
    assert claim.mu == pytest.approx(0.26805, rel=1e-4)
    told = (
        "(1, 1e-05)-differentially private for adding or removing one image (mu = 0.2681)",
        f"replacing one image by another the epsilon is {shown(claim.as_replace or 0.0)}",
        "at most 1.979 %",
        "at most 1.012",
    )
    for text in told:
        assert text in card
    assert gaussian_epsilon(8 * claim.mu, 1e-5) == pytest.approx(10.9, abs=0.05)
    assert "epsilon 10.9" in card
    assert all(assumption in card for assumption in claim.assumptions)


def test_a_sketch_is_no_model_and_says_what_to_do(made: Path) -> None:
    with pytest.raises(ArtifactError, match="veilset synthesize"):
        from_pretrained(made / "first")


@pytest.mark.parametrize("options", [{"accounting": "none", "epsilon": None}, {"noise": SeededNoise(0)}])
def test_a_sketch_without_secret_noise_is_stamped_and_not_exported(options: dict[str, Any], tmp_path: Path) -> None:
    sketch = measured(tmp_path / "bare", **options)
    assert sketch.claim.epsilon is None
    assert sketch.claim.stamps[0].startswith("NOT PRIVATE")
    assert "No privacy can be claimed" in (tmp_path / "bare" / "release" / "README.md").read_text()
    assert "epsilon" not in verify(tmp_path / "bare")
    with pytest.raises(ArtifactError):
        export(tmp_path / "bare", tmp_path / "out")


def test_two_collections_give_releases_that_differ_in_noisy_sums_and_their_hashes_only(tmp_path: Path) -> None:
    for name, counts in (("a", (40, 8, 2)), ("b", (39, 8, 2))):
        measured(tmp_path / name, make_images(counts=counts), declared_size=50)
    one, other = (json.loads((tmp_path / name / "release" / "config.json").read_text()) for name in "ab")
    for config in (one, other):
        assert len(config["sketch"].pop("parts")[0][0]["sums"]) == len(config["sketch"].pop("sha256")) == 64
    assert one == other
    assert privacy_of(tmp_path / "a" / "release") == privacy_of(tmp_path / "b" / "release")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("field", ["epsilon", "mu"])
def test_a_claim_below_the_price_of_its_ledgers_is_refused(name: str, field: str, copy_of: Copy) -> None:
    release = copy_of(name) / "release"
    value = privacy_of(release)
    value["claim"][field] *= 0.9
    rewrite_bytes(release / "privacy.json", json.dumps(value).encode())
    repair_card(release)
    with pytest.raises(ArtifactError, match="as its ledger is priced"):
        verify(release)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_dropped_part_is_noticed_whatever_the_claim_then_says(kept: int, copy_of: Copy, made: Path) -> None:
    release = copy_of("merged") / "release"
    parts = privacy_of(release)["parts"]
    alone = open_sketch(made / ("first", "other")[kept]).claim
    forge(release, [parts[kept]], epsilon=alone.epsilon, mu=alone.mu)
    refused(release)
    forge(release, [parts[kept], parts[kept]], epsilon=alone.epsilon, mu=alone.mu)
    refused(release)


def test_parts_in_another_order_or_counted_as_one_are_noticed(copy_of: Copy) -> None:
    release = copy_of("merged") / "release"
    parts = privacy_of(release)["parts"]
    for forged in (parts[::-1], [[*parts[0], *parts[1]]], [*parts, parts[0]], [*parts, []], []):
        forge(release, forged)
        refused(release)
    forge(release, parts)
    verify(release)


def test_a_dropped_swapped_or_separated_round_is_noticed(copy_of: Copy, made: Path) -> None:
    release = copy_of("second") / "release"
    (rounds,) = privacy_of(release)["parts"]
    first = open_sketch(made / "first").claim
    honest = privacy_of(release)["claim"]
    for forged in ([rounds[::-1]], [rounds[:1]], [rounds[1:]], [[rounds[0]], [rounds[1]]], [[rounds[0]] * 2]):
        forge(release, forged, epsilon=first.epsilon, mu=first.mu)
        refused(release)
    forge(release, [rounds], epsilon=honest["epsilon"], mu=honest["mu"])
    verify(release)


def test_rounds_passed_off_as_parts_are_noticed_even_if_the_listing_agrees(copy_of: Copy, made: Path) -> None:
    """Then the larger of two losses would stand where their composition belongs."""
    release = copy_of("second") / "release"
    (rounds,) = privacy_of(release)["parts"]
    sketch = json.loads((release / "config.json").read_text())["sketch"]
    first = open_sketch(made / "first").claim
    forge(release, [[lines] for lines in rounds], epsilon=first.epsilon, mu=first.mu)
    rewrite_json(release / "config.json", sketch={**sketch, "parts": [[one] for one in sketch["parts"][0]]})
    repair_card(release)
    with pytest.raises(ArtifactError, match="as many as its ledgers paid for"):
        verify(release)


def test_one_file_cannot_show_one_ledger_and_hide_others(copy_of: Copy) -> None:
    release = copy_of("second") / "release"
    rewrite_json(release / "privacy.json", ledger=privacy_of(release)["parts"][0][0])
    refused(release)
    rewrite_bytes(release / "privacy.json", json.dumps({"claim": privacy_of(release)["claim"]}).encode())
    refused(release)


def test_the_ledgers_of_another_sketch_are_refused(copy_of: Copy, made: Path) -> None:
    release = copy_of("first") / "release"
    rewrite_bytes(release / "privacy.json", (made / "other" / "release" / "privacy.json").read_bytes())
    refused(release)


@pytest.mark.parametrize("name", ["first", "second", "run"])
def test_other_sums_than_the_listed_ones_are_refused(name: str, copy_of: Copy) -> None:
    path = copy_of(name) / "release" / "sketch.safetensors"
    tensors = load(path.read_bytes())
    tensors["round.0.sums"][0, 0] += 1
    rewrite_bytes(path, save(tensors))
    refused(path.parent)


@pytest.mark.parametrize("name", ["second", "merged", "third"])
def test_networks_prototypes_and_sums_that_were_exchanged_are_noticed(
    name: str, made: Path, finished_runs: dict[str, Path], tmp_path: Path
) -> None:
    if name == "third":  # a fit has kinds of a class, and their prototypes
        continued(tmp_path / name, finished_runs["sketch"], made / "networks")
    else:
        shutil.copytree(made / name, tmp_path / name)
    path = tmp_path / name / "release" / "sketch.safetensors"
    honest = load(path.read_bytes())
    assert any("prototypes" in exchanged for exchanged in honest) == (name == "third")
    for exchanged, tensor in honest.items():
        rewrite_bytes(path, save({**honest, exchanged: tensor.flip(0)}))
        refused(path.parent)
    rewrite_bytes(path, save(honest))
    verify(path.parent)


@pytest.mark.parametrize("name", KINDS)
def test_tensors_the_layout_does_not_name_are_refused(name: str, copy_of: Copy) -> None:
    path = copy_of(name) / "release" / "sketch.safetensors"
    tensors = load(path.read_bytes())
    rewrite_bytes(path, save({**tensors, "images": torch.zeros(2, 3)}))
    refused(path.parent)
    rewrite_bytes(path, save({**tensors, "round.0.sums": torch.full_like(tensors["round.0.sums"], torch.nan)}))
    refused(path.parent)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("field", ["parts", "later", "networks", "width", "total_weight", "sha256"])
def test_a_description_without_one_of_its_fields_is_our_error(name: str, field: str, copy_of: Copy) -> None:
    path = copy_of(name) / "release" / "config.json"
    sketch = json.loads(path.read_text())["sketch"]
    for value in (None, "x", -1, [], [[]], [["x"]]):
        rewrite_json(path, sketch={**sketch, field: value})
        if sketch[field] != value:
            refused(path.parent)
    del sketch[field]
    rewrite_json(path, sketch=sketch)
    refused(path.parent)


@pytest.mark.parametrize(("name", "words"), [("merged", "different people"), ("second", "networks of a later round")])
def test_a_combined_claim_without_the_assumption_it_rests_on_is_refused(name: str, words: str, copy_of: Copy) -> None:
    release = copy_of(name) / "release"
    value = privacy_of(release)
    kept = [text for text in value["claim"]["assumptions"] if words not in text]
    assert len(kept) == len(value["claim"]["assumptions"]) - 1
    forge(release, value["parts"], assumptions=kept)
    with pytest.raises(ArtifactError, match="every assumption"):
        verify(release)


@pytest.mark.parametrize("method", ["dp-merf", "sketch"])
def test_a_fit_with_several_ledgers_is_refused(method: str, copy_of_run: Copy) -> None:
    release = copy_of_run(method) / "release"
    ledger = privacy_of(release)["ledger"]
    for parts in ([[ledger], [ledger]], [[ledger, ledger]]):
        forge(release, parts)
        refused(release)


@pytest.mark.parametrize("name", KINDS)
def test_another_card_is_refused(name: str, copy_of: Copy) -> None:
    path = copy_of(name) / "release" / "README.md"
    rewrite_bytes(path, path.read_bytes().replace(b"mu=", b"mu =", 1))
    refused(path.parent)


def test_a_model_cannot_shed_its_model_and_pass_as_a_sketch(copy_of: Copy, finished_runs: dict[str, Path]) -> None:
    release = copy_of("run") / "release"
    (release / "model.safetensors").unlink()
    rewrite_json(release / "config.json", kind="sketch")
    refused(release)


def test_a_method_without_sketch_may_not_carry_one(copy_of_run: Copy, made: Path) -> None:
    release = copy_of_run("dp-merf") / "release"
    rewrite_bytes(release / "sketch.safetensors", (made / "first" / "release" / "sketch.safetensors").read_bytes())
    refused(release)
    config = json.loads((made / "first" / "release" / "config.json").read_text())
    rewrite_json(release / "config.json", sketch=config["sketch"])
    with pytest.raises(ArtifactError, match="a method with a sketch"):
        verify(release)


def precisions(sketch: SketchRelease) -> list[float]:
    """Shares of the rounds by 1 / noise variance."""
    squares = [noise**-2 for noise in sketch.noises]
    return [square / sum(squares) for square in squares]


def test_rounds_with_equal_noise_are_told_apart_by_their_order(tmp_path: Path) -> None:
    execute(make_images(), tiny_plan(make_images(), "sketch", rounds=3), tmp_path / "run")
    sketch = open_sketch(tmp_path / "run")
    assert len(sketch.rounds) == 3
    assert precisions(sketch) == pytest.approx([0.2, 0.4, 0.4])


def test_a_fit_of_the_method_carries_its_sketch_and_loses_none_of_it_unnoticed(copy_of_run: Copy) -> None:
    run = copy_of_run("sketch")
    sketch = open_sketch(run)
    assert len(sketch.rounds) == 2
    assert precisions(sketch) == pytest.approx([0.2, 0.8])
    (run / "release" / "sketch.safetensors").unlink()
    (run / "release" / MANIFEST).unlink()
    with pytest.raises(VeilsetError):
        verify(run)
