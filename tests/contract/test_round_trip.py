"""A release comes back bit for bit, in this process or another; one that was touched does not come back at all."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

import veilset
from veilset.artifact import MANIFEST, RELEASED, update_manifest
from veilset.errors import ArtifactError, LedgerError, VeilsetError
from veilset.model import Model, from_pretrained
from veilset.run import execute
from veilset.sharing import verify

from .cases import METHODS, digest, make_images, rewrite_bytes, rewrite_json, tiny_plan

FRESH = """
import sys, veilset
sys.path.insert(0, sys.argv[1])
from contract.cases import digest
for path in sys.argv[2:]:
    model = veilset.from_pretrained(path)
    samples = model.sample(9, seed=3)
    print(digest({"pixels": samples.pixels, "labels": samples.labels, **model._module.state_dict()}))
"""


def fingerprint(model: Model) -> str:
    samples = model.sample(9, seed=3)
    return digest({"pixels": samples.pixels, "labels": samples.labels, **model._module.state_dict()})


@pytest.mark.parametrize("method", METHODS)
def test_a_model_is_loaded_as_it_was_fitted_bit_for_bit(method: str, tmp_path: Path) -> None:
    fitted = {}
    kind = type(veilset.all_methods()[method])
    honest = kind.fit

    def watching(self: object, *arguments: object) -> torch.nn.Module:
        module = honest(self, *arguments)
        fitted.update({name: tensor.clone() for name, tensor in module.state_dict().items()})
        return module

    images = make_images()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "fit", watching)
        execute(images, tiny_plan(images, method), tmp_path / "run")
    loaded = from_pretrained(tmp_path / "run")._module.state_dict()
    assert set(loaded) == set(fitted)
    assert all(torch.equal(loaded[name], fitted[name]) for name in fitted)


@pytest.mark.parametrize("method", METHODS)
def test_saving_and_loading_again_changes_no_byte(method: str, finished_runs: dict[str, Path], tmp_path: Path) -> None:
    model = from_pretrained(finished_runs[method])
    copied = model.save(tmp_path / "saved")
    for name in (*RELEASED, MANIFEST):
        original = finished_runs[method] / "release" / name
        assert original.exists() == (copied / name).exists()
        assert not original.exists() or original.read_bytes() == (copied / name).read_bytes()
    again = from_pretrained(copied)
    assert fingerprint(again) == fingerprint(model)
    assert (again.claim, again.spec, again.method) == (model.claim, model.spec, model.method)


def test_every_model_is_the_same_in_a_fresh_process(finished_runs: dict[str, Path]) -> None:
    arguments = [str(Path(__file__).parents[1]), *map(str, finished_runs.values())]
    done = subprocess.run([sys.executable, "-c", FRESH, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [fingerprint(from_pretrained(path)) for path in finished_runs.values()]


def assert_refused(release: Path) -> None:
    for use in (from_pretrained, verify):
        with pytest.raises((ArtifactError, LedgerError)):
            use(release)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "privacy.json", "README.md", "samples.png"])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_changed_byte_in_any_file_is_noticed(
    method: str, name: str, where: str, copy_of_run: Callable[[str], Path]
) -> None:
    path = copy_of_run(method) / "release" / name
    data = bytearray(path.read_bytes())
    data[{"first": 0, "middle": len(data) // 2, "last": -1}[where]] ^= 1
    path.write_bytes(bytes(data))
    assert_refused(path.parent)


@pytest.mark.parametrize("method", METHODS)
def test_a_changed_manifest_is_noticed_whatever_byte_it_is(method: str, copy_of_run: Callable[[str], Path]) -> None:
    path = copy_of_run(method) / "release" / MANIFEST
    original = path.read_bytes()
    spared = 0
    for place in range(0, len(original), 7):
        path.write_bytes(original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :])
        try:
            from_pretrained(path.parent)
            spared += 1  # white space between two values
        except VeilsetError:
            pass
    assert spared <= original.count(b" ")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "privacy.json", "README.md", "samples.png"])
def test_a_removed_file_is_noticed(method: str, name: str, copy_of_run: Callable[[str], Path]) -> None:
    release = copy_of_run(method) / "release"
    (release / name).unlink()
    assert_refused(release)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "privacy.json"])
def test_a_removed_file_is_noticed_even_if_the_manifest_forgets_it(
    method: str, name: str, copy_of_run: Callable[[str], Path]
) -> None:
    release = copy_of_run(method) / "release"
    (release / name).unlink()
    update_manifest(release)
    assert_refused(release)


@pytest.mark.parametrize("method", METHODS)
def test_a_release_without_manifest_is_not_one(method: str, copy_of_run: Callable[[str], Path]) -> None:
    release = copy_of_run(method) / "release"
    (release / MANIFEST).unlink()
    with pytest.raises(VeilsetError):
        from_pretrained(release)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stranger", ["critic.safetensors", ".hidden", "model.pkl"])
def test_an_added_file_is_noticed(method: str, stranger: str, copy_of_run: Callable[[str], Path]) -> None:
    release = copy_of_run(method) / "release"
    (release / stranger).write_bytes(b"x")
    assert_refused(release)


@pytest.mark.parametrize("method", METHODS)
def test_an_added_file_is_noticed_even_if_the_manifest_names_it(
    method: str, copy_of_run: Callable[[str], Path]
) -> None:
    release = copy_of_run(method) / "release"
    (release / "critic.safetensors").write_bytes(b"x")
    manifest = json.loads((release / MANIFEST).read_text())
    manifest["sha256"]["critic.safetensors"] = hashlib.sha256(b"x").hexdigest()
    (release / MANIFEST).write_text(json.dumps(manifest))
    assert_refused(release)


@pytest.mark.parametrize("method", METHODS)
def test_an_added_folder_or_link_is_noticed(
    method: str, copy_of_run: Callable[[str], Path], finished_runs: dict[str, Path]
) -> None:
    release = copy_of_run(method) / "release"
    (release / "more").mkdir()
    assert_refused(release)
    (release / "more").rmdir()
    (release / "README.md").unlink()
    (release / "README.md").symlink_to(finished_runs[method] / "release" / "README.md")
    assert_refused(release)


@pytest.mark.parametrize("method", METHODS)
def test_every_ledger_line_counts(method: str, copy_of_run: Callable[[str], Path]) -> None:
    path = copy_of_run(method) / "release" / "privacy.json"
    lines = json.loads(path.read_text())["ledger"]
    for number in range(len(lines)):
        rewrite_json(path, ledger=lines[:number] + lines[number + 1 :])
        assert_refused(path.parent)
        rewrite_json(path, ledger=[*lines[:number], lines[number].replace("0", "1", 1), *lines[number + 1 :]])
        assert_refused(path.parent)
    rewrite_json(path, ledger=[*lines, lines[-1]])
    assert_refused(path.parent)
    rewrite_json(path, ledger=lines)
    from_pretrained(path.parent)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(method: str, value: float, copy_of_run: Callable[[str], Path]) -> None:
    path = copy_of_run(method) / "release" / "model.safetensors"
    tensors = load(path.read_bytes())
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name].flatten()[-1] = value
    rewrite_bytes(path, save(tensors))
    assert_refused(path.parent)


@pytest.mark.parametrize("method", METHODS)
def test_tensors_of_another_model_are_refused(method: str, copy_of_run: Callable[[str], Path]) -> None:
    path = copy_of_run(method) / "release" / "model.safetensors"
    tensors = load(path.read_bytes())
    first = next(iter(tensors))
    variants = {
        "another method's": {"critic.weight": torch.zeros(3, 3)},
        "one missing": {name: tensor for name, tensor in tensors.items() if name != first},
        "one more": {**tensors, "critic.weight": torch.zeros(2)},
        "another shape": {**tensors, first: torch.zeros(*tensors[first].shape, 2)},
        "another type": {**tensors, first: tensors[first].to(torch.float64)},
        "a type we do not use": {**tensors, first: tensors[first].to(torch.bfloat16)},
        "none": {},
    }
    for changed in variants.values():
        rewrite_bytes(path, save(changed))
        assert_refused(path.parent)
    rewrite_bytes(path, save(tensors))
    from_pretrained(path.parent)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_needs_nothing_but_its_release(
    method: str, copy_of_run: Callable[[str], Path], finished_runs: dict[str, Path]
) -> None:
    run = copy_of_run(method)
    shutil.rmtree(run / "vault")
    assert fingerprint(from_pretrained(run)) == fingerprint(from_pretrained(finished_runs[method]))
    assert fingerprint(from_pretrained(run / "release")) == fingerprint(from_pretrained(finished_runs[method]))
