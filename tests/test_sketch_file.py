"""A sketch as tensors, and networks from strangers: everything is checked before it is believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from contract.cases import make_images
from safetensors.torch import load, save

from veilset.data.spec import ImageSpec
from veilset.errors import ArtifactError, ConfigError
from veilset.nets.feature_bank import FeatureBank
from veilset.nets.kinds import Kinds
from veilset.nets.measurement import PROTOTYPES, Measurement
from veilset.nets.mixed_features import MIXTURES, MixedBank
from veilset.nets.tone_bank import ToneBank
from veilset.randomness import named_generator
from veilset.sketch_file import (
    CENTRES,
    Layout,
    Round,
    networks_bytes,
    read_networks,
    read_rounds,
    round_tensors,
    sketch_bytes,
)

SPEC = ImageSpec(height=16, width=16, channels=1, class_names=("a", "b"))
LAYOUT = Layout(networks=2, width=3, network_seed=5, total_weight=0.2, tone_share=0.1, later=((3, 4, 2),))
TONES = 7 * 7 * 25
FIRST, SECOND = (f"networks.networks.weight_{block}" for block in range(2))


def networks(count: int = 3, width: int = 4) -> Measurement:
    bank = MixedBank(FeatureBank.draw(SPEC, count, width, named_generator(0, "test")))
    prototypes = torch.randint(-99, 99, (2, 2, count * MIXTURES + TONES), generator=named_generator(0, "prototypes"))
    return Measurement(bank, ToneBank(1), 0.1, Kinds(prototypes))


def some_rounds() -> list[Round]:
    first, second = torch.randn(2, 54 + TONES + 1), torch.randn(4, 3 * MIXTURES + TONES + 1)
    return [Round(LAYOUT.random_bank(SPEC), first), Round(networks(), second)]


def same(one: Measurement, other: Measurement) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def file_of(rounds: list[Round]) -> dict[str, torch.Tensor]:
    return {name: tensor for number, part in enumerate(rounds) for name, tensor in round_tensors(number, part).items()}


def test_rounds_come_back_as_they_were_written_with_the_same_networks() -> None:
    rounds = some_rounds()
    back = read_rounds(LAYOUT, SPEC, sketch_bytes(LAYOUT, SPEC, file_of(rounds)))
    for one, other in zip(rounds, back, strict=True):
        assert torch.equal(one.sums, other.sums)
        assert same(one.bank, other.bank)


def test_the_first_round_is_its_sums_alone_because_its_networks_follow_from_the_seed() -> None:
    names = set(LAYOUT.expected(SPEC))
    assert {name for name in names if name.startswith("round.0")} == {"round.0.sums"}
    assert {name.removeprefix("round.1.") for name in names - {"round.0.sums"}} == {
        "sums", FIRST, SECOND, "networks.networks.centre", "networks.centre", PROTOTYPES,
    }  # fmt: skip


@pytest.mark.parametrize("change", ["one more", "one missing", "another shape", "another type"])
def test_the_gate_writes_exactly_the_tensors_of_the_layout(change: str) -> None:
    tensors = file_of(some_rounds())
    changed = {
        "one more": {**tensors, "critic.weight": torch.zeros(2)},
        "one missing": {name: tensor for name, tensor in tensors.items() if name != "round.1.networks.centre"},
        "another shape": {**tensors, "round.0.sums": torch.zeros(3, 54 + TONES + 1)},
        "another type": {**tensors, "round.0.sums": tensors["round.0.sums"].double()},
    }[change]
    with pytest.raises(ArtifactError):
        sketch_bytes(LAYOUT, SPEC, changed)


def test_a_layout_survives_json_and_odd_ones_are_refused() -> None:
    assert Layout.from_json(json.loads(json.dumps(LAYOUT.to_json()))) == LAYOUT
    for changes in ({"networks": 0}, {"width": 225}, {"width": True}, {"networks": 2.0}, {"total_weight": 0},
                    {"tone_share": 1.0}, {"later": [[1, 2, 1]] * 10}, {"later": [[1]]},
                    {"later": [[1, 2]]}, {"later": [[1, 2, 0]]}):  # fmt: skip
        with pytest.raises((ConfigError, TypeError, ValueError)):
            Layout.from_json({**LAYOUT.to_json(), **changes})


def test_a_sketch_nobody_can_hold_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(ConfigError, match="at most"):
        Layout(networks=10**9, width=16, network_seed=0, total_weight=0.1, tone_share=0.1).expected(SPEC)


def test_networks_come_back_as_they_were_written() -> None:
    bank = networks()
    assert same(read_networks(networks_bytes(bank), SPEC, 0.1), bank)


def hostile() -> dict[str, dict[str, torch.Tensor]]:
    good = load(networks_bytes(networks()))
    return {
        "none": {},
        "another name": {**good, "critic": torch.zeros(1)},
        "no centre": {name: tensor for name, tensor in good.items() if name != "networks.centre"},
        "a block too many": {**good, "networks.networks.weight_2": good[SECOND].clone()},
        "prototypes of other rows": {**good, PROTOTYPES: good[PROTOTYPES][:, :, 1:].contiguous()},
        "prototypes off the grid": {**good, PROTOTYPES: torch.full_like(good[PROTOTYPES], 9999)},
        "floats": {**good, FIRST: good[FIRST].float()},
        "a flat weight": {**good, FIRST: good[FIRST].flatten()},
        "of colour images": {**good, FIRST: good[FIRST].expand(3, 4, 3, 3, 3).contiguous()},
        "weights off the grid": {**good, SECOND: torch.full_like(good[SECOND], -128)},
        **{f"a far {name}": {**good, name: torch.full_like(good[name], 0.9)} for name in CENTRES},
        **{f"a {name} that is no number": {**good, name: torch.full_like(good[name], torch.nan)} for name in CENTRES},
    }


@pytest.mark.parametrize("lie", hostile())
def test_networks_from_strangers_are_refused_where_their_features_would_not_be_exact(lie: str) -> None:
    with pytest.raises(ArtifactError):
        read_networks(save(hostile()[lie]), SPEC, 0.1)


def test_a_header_that_promises_huge_networks_allocates_nothing() -> None:
    entry = {"dtype": "I8", "shape": [2**40, 4, 1, 3, 3], "data_offsets": [0, 4]}
    text = json.dumps({FIRST: entry}).encode()
    with pytest.raises(ArtifactError):
        read_networks(len(text).to_bytes(8, "little") + text + b"1234", SPEC, 0.1)


def test_networks_for_other_images_are_refused(made: Path) -> None:
    data = (made / "networks").read_bytes()
    assert read_networks(data, make_images().spec, 0.1).networks.count == 2
    with pytest.raises(ArtifactError):
        read_networks(data, make_images(channels=3).spec, 0.1)
