"""What a release may hold, seen from outside: its files are opened and searched for what must not be there."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import veilset
from veilset.artifact import MANIFEST, RELEASED, read_release
from veilset.data.spec import ImageSet, Source
from veilset.errors import VaultLeak
from veilset.methods.base import FitContext
from veilset.privacy.noise import SeededNoise
from veilset.privacy.sides import seal
from veilset.run import execute
from veilset.sharing import export

from .cases import METHODS, make_images, tiny_plan

SENTINEL = 12345.678
"""A value no trained weight has; exactly representable ones would be harder to tell from accidents."""


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".json", ".md", ".html")}


def numbers(text: str) -> set[str]:
    """Whole numbers that stand on their own: not parts of hashes, names or longer numbers."""
    return set(re.findall(r"(?<![0-9A-Za-z._-])\d+(?![0-9A-Za-z._])", text))


@pytest.mark.parametrize("method", METHODS)
def test_a_release_holds_only_the_files_that_may_be_released(method: str, finished_runs: dict[str, Path]) -> None:
    found = {path.name for path in (finished_runs[method] / "release").iterdir()}
    assert found <= {*RELEASED, MANIFEST}
    assert {"config.json", "model.safetensors", "privacy.json", "README.md", "samples.png", MANIFEST} <= found


@pytest.mark.parametrize("method", METHODS)
def test_a_released_model_holds_only_the_tensors_of_its_public_architecture(
    method: str, finished_runs: dict[str, Path]
) -> None:
    data = (finished_runs[method] / "release" / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert "__metadata__" not in header
    model = veilset.from_pretrained(finished_runs[method])
    assert set(header) == set(model._module.state_dict())


@pytest.mark.parametrize("method", METHODS)
def test_the_sample_picture_carries_no_text_chunks(method: str, finished_runs: dict[str, Path]) -> None:
    data = (finished_runs[method] / "release" / "samples.png").read_bytes()
    place, kinds = 8, []
    while place < len(data):
        kinds.append(data[place + 4 : place + 8])
        place += 12 + int.from_bytes(data[place : place + 4], "big")
    assert set(kinds) <= {b"IHDR", b"IDAT", b"IEND", b"PLTE"}


@pytest.mark.parametrize("method", METHODS)
def test_a_release_names_no_path_person_id_count_or_hash_of_the_images(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "zaphod-the-owner")
    monkeypatch.setenv("LOGNAME", "zaphod-the-owner")
    (tmp_path / "hospital-images").mkdir()
    counts = (61, 53, 23)
    plain = make_images(counts=counts, null_rows=(5,))
    images = ImageSet(
        spec=plain.spec,
        pixels=plain.pixels,
        labels=plain.labels,
        valid=plain.valid,
        ids=tuple(f"scan-{row:04d}-secret" for row in range(137)),
        users=tuple(f"patient-{row}" for row in range(137)),
        source=Source(path=str(tmp_path / "hospital-images")),
        warnings=("5 files could not be read: scan-0005-secret",),
    )
    run = tmp_path / "very-distinct-run-name"
    execute(images, tiny_plan(images, method, declared_size=100), run)
    pixels = images.pixels.numpy().tobytes()
    hashes = [hashlib.new(kind, pixels).hexdigest() for kind in ("md5", "sha1", "sha256", "blake2b")]
    hashes += [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images.pixels[:5]]
    secret = [str(tmp_path), "very-distinct-run-name", "hospital-images", "zaphod", "patient-", "-secret", *hashes]
    for name, data in all_bytes(run / "release").items():
        assert [word for word in secret if word.encode() in data] == [], name
        # any stretch of a private image, as bytes or as the floats a network would see
        for image in images.pixels[:3]:
            assert image.numpy().tobytes()[:16] not in data, name
            assert (image.float() / 255).numpy().tobytes()[:16] not in data, name
    for name, text in texts(run / "release").items():
        assert numbers(text) & {"137", "136", *map(str, counts)} == set(), name
    assert "137" in numbers((run / "vault" / "log.jsonl").read_text()), "the search would find it where it is allowed"


@pytest.mark.parametrize("method", METHODS)
def test_a_release_depends_on_one_record_through_its_noisy_weights_only(method: str, tmp_path: Path) -> None:
    images = make_images(counts=(40, 8, 2))
    fewer = images.subset(torch.arange(1, len(images)))
    for name, world in (("a", images), ("b", fewer)):
        execute(world, tiny_plan(images, method, declared_size=50), tmp_path / name)
    one, other = (read_release(tmp_path / name / "release") for name in "ab")
    assert set(one) == set(other)
    for name in ("config.json", "privacy.json", "README.md"):
        assert one[name] == other[name], name
    assert len(one["model.safetensors"]) == len(other["model.safetensors"])


@pytest.mark.parametrize("method", METHODS)
def test_the_ledger_says_the_same_for_every_collection(method: str, tmp_path: Path) -> None:
    lines = set()
    for name, counts in (("none", (0, 0, 0)), ("few", (2, 1, 0)), ("many", (600, 3, 0))):
        images = make_images(counts=counts)
        lines.add(execute(images, tiny_plan(images, method), tmp_path / name).privacy.ledger_lines)
    assert len(lines) == 1


@pytest.mark.parametrize("method", METHODS)
def test_the_vault_is_closed_to_other_users_and_holds_no_noise_key(method: str, finished_runs: dict[str, Path]) -> None:
    vault = finished_runs[method] / "vault"
    assert vault.stat().st_mode & 0o777 == 0o700
    hashes = {"training-images.hashes", "training-records.hash"}
    known = {"plan.json", "images.json", "ledger.jsonl", "log.jsonl", "shard.key", *hashes}
    assert {path.name for path in vault.iterdir() if path.is_file()} <= known


@pytest.mark.parametrize("method", METHODS)
def test_an_export_holds_the_release_and_nothing_of_the_vault(
    method: str, finished_runs: dict[str, Path], tmp_path: Path
) -> None:
    export(finished_runs[method], tmp_path / "out")
    assert all_bytes(tmp_path / "out") == all_bytes(finished_runs[method] / "release")


class Critic(nn.Module):
    """A vault-side network, poisoned with the sentinel as if it had memorised an image."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, SENTINEL))
        with torch.no_grad():
            self.weight.flatten()[0] += 1  # not constant, so that a copy can be told from an untrained tensor


Leak = Callable[[nn.Module, str, Critic], None]


def _replace(model: nn.Module, name: str, value: Any) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, value)


def _share(model: nn.Module, name: str, critic: Critic) -> None:
    _replace(model, name, critic.weight)


def _share_a_view(model: nn.Module, name: str, critic: Critic) -> None:
    _replace(model, name, nn.Parameter(critic.weight.detach().t().contiguous().t(), requires_grad=False))
    critic.weight = nn.Parameter(model.get_parameter(name).detach().t())


def _copy(model: nn.Module, name: str, critic: Critic) -> None:
    with torch.no_grad():
        model.get_parameter(name).copy_(critic.weight)


def _add_the_module(model: nn.Module, name: str, critic: Critic) -> None:
    model.add_module("critic", critic)


LEAKS = {"shared": _share, "shared view": _share_a_view, "copied": _copy, "added whole": _add_the_module}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("leak", LEAKS)
def test_a_fit_that_puts_a_critic_into_its_model_releases_nothing(
    method: str, leak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The critic dies with the fit, as critics do: the gate must still know its tensors."""
    kind = type(veilset.all_methods()[method])
    honest = kind.fit

    def leaking(self: Any, config: Any, images: ImageSet, context: FitContext) -> nn.Module:
        model = honest(self, config, images, context)
        name, weight = next((n, p) for n, p in model.named_parameters() if p.dim() == 2)
        critic = seal(Critic(tuple(weight.shape)))
        assert isinstance(critic, Critic)
        LEAKS[leak](model, name, critic)
        return model

    monkeypatch.setattr(kind, "fit", leaking)
    images = make_images()
    with pytest.raises(VaultLeak):
        execute(images, tiny_plan(images, method), tmp_path / "run")
    poison = struct.pack("<f", SENTINEL)
    assert not (tmp_path / "run" / "release" / MANIFEST).exists()
    assert not any(poison in data for data in all_bytes(tmp_path / "run").values())


@pytest.mark.parametrize("method", METHODS)
def test_a_critic_that_stays_in_the_vault_leaves_no_byte_in_the_release(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(veilset.all_methods()[method])
    honest = kind.fit

    def with_critic(self: Any, config: Any, images: ImageSet, context: FitContext) -> nn.Module:
        critic = seal(Critic((4, 4)))
        context.checkpoints.save("critic", critic.state_dict())  # vault side: allowed
        return honest(self, config, images, context)

    monkeypatch.setattr(kind, "fit", with_critic)
    images = make_images()
    execute(images, tiny_plan(images, method), tmp_path / "run", noise=SeededNoise(0))
    poison = struct.pack("<f", SENTINEL)
    assert any(poison in path.read_bytes() for path in (tmp_path / "run" / "vault").rglob("*") if path.is_file())
    assert not any(poison in data for data in all_bytes(tmp_path / "run" / "release").values())
