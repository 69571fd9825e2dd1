"""A sketch as tensors: what its rounds are called, which shapes they have, and the networks they were measured with.

Random networks are made again from their public seed, so the first round is its sums alone; trained networks lie beside
the sums of their round. All of it may come from strangers: sizes are checked before anything is allocated, and weights
against the grid on which features are exact, because a bound that rests on exact sums must not rest on trust.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from veilset.artifact import Shapes, check_shapes, declared_shapes, load_tensors, tensor_bytes
from veilset.data.spec import ImageSpec
from veilset.errors import ArtifactError, ConfigError
from veilset.nets.feature_bank import MAP, WEIGHT_TOP, WIDEST, FeatureBank, shapes
from veilset.nets.kinds import GRID
from veilset.nets.measurement import PROTOTYPES, Measurement
from veilset.nets.mixed_features import MIXTURES
from veilset.nets.tone_bank import ToneBank
from veilset.randomness import named_generator

FILE = "sketch.safetensors"
MAX_ROUNDS = 10
MAX_VALUES = 1 << 28
"""Numbers of one round, over all classes."""
MAX_WEIGHTS = 1 << 28
"""Weights of the networks of one round."""
CENTRES = ("networks.networks.centre", "networks.centre")
"""From which the features of trained networks, and mixtures of these, are seen."""


@dataclass(frozen=True)
class Round:
    """One release and the networks it was measured with."""

    bank: Measurement
    sums: Tensor
    """(classes x kinds, numbers of a row and a weighted count)."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The public shape of a sketch: enough to know every tensor of its file before reading one."""

    networks: int
    width: int
    network_seed: int
    total_weight: float
    tone_share: float
    later: tuple[tuple[int, int, int], ...] = ()
    """Networks, their width and the kinds of a class, of each round after the first."""

    def __post_init__(self) -> None:
        whole = [self.network_seed, *(number for one in self.rounds for number in one)]
        if not all(type(number) is int for number in whole) or any(len(one) != 3 for one in self.later):
            raise ConfigError("whole numbers of networks, width, kinds and seed", f"{self}", "Correct the options.")
        if not (len(self.rounds) <= MAX_ROUNDS and all(1 <= width <= WIDEST for _, width, _ in self.rounds)):
            raise ConfigError(
                f"at most {MAX_ROUNDS} rounds with networks of width 1 to {WIDEST}", f"{self}", "Correct the options."
            )
        shares = 0 < self.total_weight <= 10 and 0 < self.tone_share < 1
        if not (all(count >= 1 and kinds >= 1 for count, _, kinds in self.rounds) and shares):
            raise ConfigError(
                "some networks and kinds, a total_weight up to 10 and a tone_share below 1",
                f"{self}",
                "Correct the options.",
            )

    @property
    def rounds(self) -> tuple[tuple[int, int, int], ...]:
        return ((self.networks, self.width, 1), *self.later)

    def row_lengths(self, spec: ImageSpec) -> list[int]:
        """Numbers that each round measures of an image."""
        first = self.networks * MAP * MAP * self.width + ToneBank(spec.channels).length
        return [first, *(later_row_length(spec, count) for count, _, _ in self.later)]

    def check_size(self, spec: ImageSpec) -> None:
        """Refuses what nobody could hold in memory."""
        for (count, width, kinds), row in zip(self.rounds, self.row_lengths(spec), strict=True):
            numbers = row * spec.num_classes * kinds
            weights = sum(math.prod(shape) for shape in shapes(spec, count, width))
            if numbers > MAX_VALUES or weights > MAX_WEIGHTS:
                raise ConfigError(
                    f"a sketch of at most {MAX_VALUES:,} numbers, by networks of at most {MAX_WEIGHTS:,} weights",
                    f"{numbers:,} for {spec.num_classes} classes, {weights:,} weights",
                    "Lower --networks, --trained-networks, --width or --kinds.",
                )

    def expected(self, spec: ImageSpec) -> Shapes:
        """Every tensor of the file, by name."""
        self.check_size(spec)
        tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for number, row in enumerate(self.row_lengths(spec)):
            count, width, kinds = self.rounds[number]
            tensors[f"round.{number}.sums"] = (torch.float32, (spec.num_classes * kinds, row + 1))
            if number > 0:
                networks = network_shapes(spec, count, width, kinds)
                tensors.update({f"round.{number}.{name}": shape for name, shape in networks.items()})
        return tensors

    def random_bank(self, spec: ImageSpec) -> Measurement:
        """The networks of the first round; the same on every machine."""
        self.check_size(spec)
        draws = named_generator(self.network_seed, "sketch networks")
        networks = FeatureBank.draw(spec, self.networks, self.width, draws)
        return Measurement(networks, ToneBank(spec.channels), self.tone_share)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "later": [list(one) for one in self.later]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        names = ("networks", "width", "network_seed", "total_weight", "tone_share")
        return cls(**{name: value[name] for name in names}, later=tuple(tuple(one) for one in value["later"]))


def row_bound(total_weight: float) -> float:
    """Length of an image's row with its count."""
    return math.hypot(1.0, total_weight)


def later_row_length(spec: ImageSpec, count: int) -> int:
    """Numbers that a round with `count` trained networks measures of an image."""
    return count * MIXTURES + ToneBank(spec.channels).length


def sketch_bytes(layout: Layout, spec: ImageSpec, tensors: Mapping[str, Tensor]) -> bytes:
    """The gate for a sketch: exactly the tensors its layout names, none of a sealed network."""
    data = tensor_bytes(tensors)
    check_shapes(layout.expected(spec), data)
    return data


def round_tensors(number: int, part: Round) -> dict[str, Tensor]:
    """The tensors of one round by their names in the file."""
    networks = part.bank.state_dict() if number > 0 else {}
    return {f"round.{number}.{name}": tensor for name, tensor in {"sums": part.sums, **networks}.items()}


def read_tensors(layout: Layout, spec: ImageSpec, data: bytes) -> dict[str, Tensor]:
    """The tensors of a file, after checking all of it; no more memory than the file itself takes."""
    tensors = load_tensors(layout.expected(spec), data)
    for number in range(1, len(layout.rounds)):
        _check_exact(_of_round(number, tensors))
    return tensors


def read_rounds(layout: Layout, spec: ImageSpec, data: bytes) -> list[Round]:
    """The rounds of a file with their networks."""
    tensors = read_tensors(layout, spec, data)
    later = [_of_round(number, tensors) for number in range(1, len(layout.rounds))]
    rounds = [Round(layout.random_bank(spec), tensors["round.0.sums"])]
    for part in later:
        rounds.append(Round(Measurement.from_tensors(part, spec.channels, layout.tone_share), part["sums"]))
    return rounds


def _of_round(number: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"round.{number}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def networks_bytes(bank: Measurement) -> bytes:
    """Trained networks, and the centres they are seen from, as a file for `--features`."""
    return tensor_bytes(bank.state_dict())


def read_networks(data: bytes, spec: ImageSpec, tone_share: float) -> Measurement:
    """Networks from an untrusted file: names, types and shapes for these images, sizes, and the integer grid."""
    try:
        declared = declared_shapes(data)
    except ArtifactError as error:
        raise ArtifactError("networks written by --features-out", error.found, "Give that file.") from error
    first = declared.get("networks.networks.weight_0", (torch.int8, ()))[1]
    kinds = [*declared.get(PROTOTYPES, (torch.int16, ()))[1], 1, 1][1]
    if len(first) != 5:
        raise ArtifactError("networks written by --features-out", "no such weights", "Give that file.")
    try:
        later = ((first[0], first[1], kinds),)
        Layout(networks=1, width=1, network_seed=0, total_weight=1.0, tone_share=tone_share, later=later).check_size(
            spec
        )
    except ConfigError as error:
        raise ArtifactError(error.expected, error.found, "Train smaller networks.") from error
    tensors = load_tensors(network_shapes(spec, first[0], first[1], kinds), data)
    _check_exact(tensors)
    return Measurement.from_tensors(tensors, spec.channels, tone_share)


def same_networks(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sketches of one layout were measured with the same networks, to the last bit."""
    return one.keys() == other.keys() and all(
        name.endswith(".sums") or torch.equal(tensor, other[name]) for name, tensor in one.items()
    )


def network_shapes(
    spec: ImageSpec, count: int, width: int, kinds: int
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Type and shape of every tensor of trained networks, by name."""
    weights = {
        f"networks.networks.weight_{block}": (torch.int8, shape)
        for block, shape in enumerate(shapes(spec, count, width))
    }
    sizes = (MAP * MAP * width, MIXTURES)
    centres = {name: (torch.float32, (count, size)) for name, size in zip(CENTRES, sizes, strict=True)}
    prototypes = {PROTOTYPES: (torch.int16, (spec.num_classes, kinds, later_row_length(spec, count)))}
    return {**weights, **centres, **(prototypes if kinds > 1 else {})}


def _check_exact(tensors: Mapping[str, Tensor]) -> None:
    """Larger weights or centres would leave the range in which features are exact, and with it the exact bound."""
    largest = max(int(tensor.to(torch.int16).abs().max()) for name, tensor in tensors.items() if "weight_" in name)
    farthest = max(float(tensors[name].double().norm(dim=1).max()) for name in CENTRES)
    if PROTOTYPES in tensors:
        farthest = max(farthest, float((tensors[PROTOTYPES].double() / GRID).norm(dim=2).max()))
    if largest > WEIGHT_TOP or farthest > 1.001:
        raise ArtifactError(
            f"weights of at most {WEIGHT_TOP}, centres and prototypes of length at most 1",
            f"{largest} and {farthest:.4g}",
            "Networks of `--features-out` are within these. Do not use this file.",
        )
