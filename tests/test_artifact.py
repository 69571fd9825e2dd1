"""The gate out and the check in. Forged releases have a repaired manifest: hashes are no signature."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import rewrite_bytes, rewrite_json
from torch import nn

from veilset.artifact import MANIFEST, RELEASED, load_into, model_bytes, read_release, write_release
from veilset.errors import ArtifactError, LedgerError, VaultLeak, VeilsetError
from veilset.methods.dp_merf import DpMerf
from veilset.model import from_pretrained
from veilset.privacy.sides import seal
from veilset.sharing import verify


def small_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(6.0).reshape(2, 3) / 10)
    return model


def with_header(header: Any, body: bytes = b"", *, length: int | None = None) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def test_bytes_of_a_model_fill_another_of_the_same_shape() -> None:
    model, other = small_model(), nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    load_into(other, model_bytes(model))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_the_gate_refuses_sealed_networks_their_parts_and_their_copies() -> None:
    critic = small_model()
    assert model_bytes(critic)
    seal(critic)
    copy = small_model()
    view = nn.Module()
    view.register_buffer("transposed", critic[0].weight.detach().t())
    part = nn.Sequential(critic[0])
    for leaking in (critic, nn.Sequential(nn.ReLU(), critic), copy, view, part):
        with pytest.raises(VaultLeak):
            model_bytes(leaking)


def test_the_gate_refuses_files_that_are_not_on_the_list(tmp_path: Path) -> None:
    with pytest.raises(VaultLeak, match=r"critic\.safetensors"):
        write_release(tmp_path / "release", {"config.json": b"{}", "critic.safetensors": b"x"})
    assert not (tmp_path / "release").exists()


def test_a_release_is_read_back_as_written(tmp_path: Path) -> None:
    files = {name: name.encode() for name in RELEASED}
    write_release(tmp_path / "release", files)
    assert read_release(tmp_path / "release") == files


LYING_FILES = {
    "empty": b"",
    "seven bytes": b"1234567",
    "no header": (0).to_bytes(8, "little"),
    "header longer than the file": with_header({}, length=1000),
    "header of 2^63": with_header({}, length=2**63),
    "oversize header": with_header(b" " * ((1 << 20) + 1)),
    "not json": with_header(b"{nonsense"),
    "not utf-8": with_header(b"\xff\xfe\xfd"),
    "a list": with_header([1, 2]),
    "a number": with_header(b"17"),
    "deep nesting": with_header(b'{"a":' * 50_000),
    "entries that are no objects": with_header({"a": 3}),
    "unknown type": with_header({"a": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
    "type that is no name": with_header({"a": {"dtype": [], "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
    "huge shape": with_header({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, b"1234"),
    "negative shape": with_header({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, b"1234"),
    "shape of text": with_header({"a": {"dtype": "F32", "shape": "12", "data_offsets": [0, 4]}}, b"1234"),
    "nested shape": with_header({"a": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]}}, b"1234"),
    "no shape": with_header({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"1234"),
    "body too long": with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345678"),
    "no body": with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
}


@pytest.mark.parametrize("lie", LYING_FILES)
def test_a_lying_safetensors_file_is_our_error_and_changes_no_weight(lie: str) -> None:
    model = small_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ArtifactError):
        load_into(model, LYING_FILES[lie])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("offsets", [[0, 8], [4, 8], [-4, 0], [0, 2**62], ["0", "4"], None, [0], [8, 0]])
def test_offsets_that_lie_are_our_error(offsets: object) -> None:
    model = nn.Module()
    model.register_buffer("a", torch.zeros(1))
    with pytest.raises(ArtifactError):
        load_into(model, with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}, b"\0\0\0\0"))


def test_two_tensors_over_the_same_bytes_are_our_error() -> None:
    model = nn.Module()
    model.register_buffer("a", torch.zeros(1))
    model.register_buffer("b", torch.zeros(1))
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    with pytest.raises(ArtifactError):
        load_into(model, with_header({"a": entry, "b": entry}, b"\0" * 8))


NONSENSE: list[Any] = [
    None, True, -1, 0, 3.5, 10**12, 10**400, float("nan"), float("inf"), "", "x", [], {}, [[]], [None], {"a": None},
]  # fmt: skip


def forged_documents(value: dict[str, Any], rounds: int, seed: int) -> list[str]:
    """The document with one leaf or branch replaced by nonsense, or removed, at random places."""
    draws = random.Random(seed)
    documents = []
    for _ in range(rounds):
        forged = json.loads(json.dumps(value))
        node, key = forged, draws.choice(list(forged))
        while isinstance(node[key], dict | list) and node[key] and draws.random() < 0.8:
            node = node[key]
            key = draws.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if draws.random() < 0.2:
            del node[key]
        else:
            node[key] = draws.choice(NONSENSE)
        documents.append(json.dumps(forged))
    return documents


@pytest.mark.parametrize("name", ["config.json", "privacy.json"])
def test_forged_json_is_our_error_or_harmless(name: str, copy_of_run: Callable[[], Path]) -> None:
    path = copy_of_run() / "release" / name
    original = json.loads(path.read_text())
    refused = 0
    for document in forged_documents(original, rounds=150, seed=1):
        rewrite_bytes(path, document.encode())
        try:
            verify(path.parent)
        except VeilsetError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(
    "document",
    [b"", b"null", b"[]", b'"x"', b"\xff", b"[" * 100_000, b'{"a":' * 100_000],
    ids=["empty", "null", "list", "text", "bytes", "deep list", "deep object"],
)
@pytest.mark.parametrize("name", ["config.json", "privacy.json", MANIFEST])
def test_documents_that_are_no_objects_are_our_error(
    name: str, document: bytes, copy_of_run: Callable[[], Path]
) -> None:
    path = copy_of_run() / "release" / name
    if name == MANIFEST:
        path.write_bytes(document)
    else:
        rewrite_bytes(path, document)
    with pytest.raises(VeilsetError):
        from_pretrained(path.parent)


def test_a_deeply_nested_ledger_line_is_our_error(copy_of_run: Callable[[], Path]) -> None:
    path = copy_of_run() / "release" / "privacy.json"
    rewrite_json(path, ledger=["[" * 100_000])
    with pytest.raises(VeilsetError):
        from_pretrained(path.parent)


@pytest.mark.parametrize("option", ["hidden_size", "latent_size", "map_channels"])
@pytest.mark.parametrize("size", [10**6, 10**12, 10**18, 10**30])
def test_a_configuration_that_asks_for_a_huge_model_is_refused_before_it_is_made(
    option: str, size: int, copy_of_run: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy_of_run() / "release" / "config.json"
    config = json.loads(path.read_text())["config"]
    rewrite_json(path, config={**config, option: size})
    devices = []
    original = DpMerf.build

    def watching(self: DpMerf, *arguments: Any) -> nn.Module:
        devices.append(torch.empty(0).device.type)
        return original(self, *arguments)

    monkeypatch.setattr(DpMerf, "build", watching)
    with pytest.raises(ArtifactError):
        from_pretrained(path.parent)
    assert devices == ["meta"], "shapes only, no memory"


@pytest.mark.parametrize("method", ["", "no-such-method", "../dp_merf", None, 3])
def test_an_unknown_method_is_refused(method: object, copy_of_run: Callable[[], Path]) -> None:
    path = copy_of_run() / "release" / "config.json"
    rewrite_json(path, method=method)
    with pytest.raises(ArtifactError):
        from_pretrained(path.parent)


def test_a_spec_that_is_not_the_models_is_refused(copy_of_run: Callable[[], Path]) -> None:
    path = copy_of_run() / "release" / "config.json"
    spec = json.loads(path.read_text())["spec"]
    for change in ({"height": 512}, {"channels": 3}, {"channels": 4}, {"class_names": ["../../etc"]}):
        rewrite_json(path, spec={**spec, **change})
        with pytest.raises(ArtifactError):
            from_pretrained(path.parent)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.1},
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"epsilon": "5"},
        {"epsilon": None},
        {"epsilon": True},
        {"mu": 0.001},
        {"mu": "x"},
        {"delta": 1e-9},
        {"adjacency": "replace"},
        {"unit": "user"},
    ],
    ids=str,
)
def test_a_claim_that_its_ledger_does_not_support_is_refused(
    change: dict[str, Any], copy_of_run: Callable[[], Path]
) -> None:
    path = copy_of_run() / "release" / "privacy.json"
    claim = json.loads(path.read_text())["claim"]
    rewrite_json(path, claim={**claim, **change})
    with pytest.raises((ArtifactError, LedgerError)):
        verify(path.parent)


def test_an_honest_release_is_verified(finished_runs: dict[str, Path]) -> None:
    found = verify(finished_runs["dp-merf"])
    assert found["verdict"] == "the stated epsilon follows from the ledger"
    assert found["epsilon"] == pytest.approx(5.0, rel=1e-6)
    assert found["epsilon_renyi"] >= found["epsilon"]
