"""Gradients of a batch, record by record, are those of a loop over single records, whatever the network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import DEVICES
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.engines import per_sample_gradients
from veilset.engines.cuda_graphs import PLAIN_STEPS, GraphedStep
from veilset.engines.per_sample_gradients import Forward, Losses, PerSampleGradients, cross_entropies
from veilset.errors import ConfigError
from veilset.nets.classifiers import ConvNet, LeNet5, restart
from veilset.randomness import initialise, named_generator

SPEC = ImageSpec(height=8, width=8, channels=3, class_names=("a", "b", "c"))


class Twice(nn.Module):
    """Calls one layer twice, shares a weight between two, skips one, and has one that nothing needs."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.tied, self.unused = nn.Linear(192, 192), nn.Linear(192, 192, bias=False), nn.Linear(2, 2)
        self.tied.weight = self.mix.weight
        self.idle, self.last = nn.Linear(192, 3), nn.Linear(192, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.mix(F.relu(self.mix(images.flatten(1))))
        self.idle(hidden)
        return self.last(F.relu(self.tied(hidden)))


class Sequences(nn.Module):
    """A dense layer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.each_row, self.last = nn.Linear(24, 5), nn.Linear(40, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(torch.tanh(self.each_row(images.transpose(1, 2).flatten(2))).flatten(1))


class FreeParameter(nn.Module):
    """A weight that belongs to no layer with a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.last = nn.Parameter(torch.full((192,), 0.5)), nn.Linear(192, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(images.flatten(1) * self.gain)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, (3, 2), stride=(1, 2), padding=(2, 1), groups=3),
        nn.InstanceNorm2d(6, affine=True),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 3, dilation=(2, 1), bias=False),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LeNet": lambda: LeNet5(SPEC, named_generator(0, "weights")),
    "strides, dilation, groups and layers in place": convolutions,
    "a layer called twice and a shared weight": Twice,
    "a dense layer over sequences": Sequences,
    "a weight outside of layers": FreeParameter,
    "padding by reflection": lambda: nn.Sequential(
        nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.LazyLinear(3)
    ),
}
WITHOUT_FORMULA = {"a weight outside of layers", "padding by reflection"}


def batch(number: int = 5, spec: ImageSpec = SPEC) -> tuple[Tensor, Tensor]:
    draws = named_generator(1, "batch")
    return torch.rand(number, *spec.shape, generator=draws), torch.randint(3, (number,), generator=draws)


def made(name: str) -> nn.Module:
    network = NETWORKS[name]()
    network(batch()[0])  # gives lazy layers their shapes
    return initialise(network, named_generator(0, "weights"))


def by_loop(network: nn.Module, inputs: Tensor, labels: Tensor, losses: Losses = cross_entropies) -> Tensor:
    """One record at a time, by the plainest means and in float64: the ground truth."""
    network = copy.deepcopy(network).double()
    parameters = list(network.parameters())
    rows = []
    for one, label in zip(inputs.double(), labels, strict=True):
        loss = losses(network, one[None], label[None]).sum()
        rows.append(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))
    return torch.stack([torch.cat([value.flatten() for value in row]) for row in rows])


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    assert (found - expected).norm(dim=1).div(expected.norm(dim=1)).max() < 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_are_those_of_a_loop_over_single_records(name: str) -> None:
    network = made(name)
    gradients = PerSampleGradients(network)
    assert gradients.layerwise == (name not in WITHOUT_FORMULA)
    assert_close(gradients(*batch()), by_loop(network, *batch()))


def test_rows_of_the_network_of_psg_are_those_of_a_loop_over_single_records() -> None:
    spec = ImageSpec(height=28, width=28, channels=1, class_names=("a", "b", "c"))
    network = ConvNet(spec, named_generator(0, "weights"))
    gradients = PerSampleGradients(network)
    assert gradients.layerwise
    assert_close(gradients(*batch(3, spec)), by_loop(network, *batch(3, spec)))


@pytest.mark.parametrize(
    "name", ["LeNet", "strides, dilation, groups and layers in place", "a weight outside of layers"]
)
def test_rows_record_by_record_are_those_of_the_same_loop(name: str) -> None:
    network = made(name)
    assert_close(PerSampleGradients(network, layerwise=False)(*batch()), by_loop(network, *batch()))


def test_a_gradient_penalty_goes_record_by_record() -> None:
    def penalised(network: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        slope = torch.func.grad(lambda values: network(values).sum())(inputs)
        return (slope.flatten(1).norm(dim=1) - 1).square()

    network = made("LeNet")
    found = PerSampleGradients(network, losses=penalised, layerwise=False)(*batch())
    assert_close(found, by_loop(network, *batch(), losses=penalised))


def test_only_the_parameters_asked_for_are_differentiated_by() -> None:
    network = made("LeNet")
    gradients = PerSampleGradients(network, [network.dense3.weight, network.conv1.bias])
    whole = dict(zip(dict(network.named_parameters()), PerSampleGradients(network).shaped(
        PerSampleGradients(network)(*batch())[0]), strict=True))  # fmt: skip
    found = gradients.shaped(gradients(*batch())[0])
    assert torch.allclose(found[0], whole["dense3.weight"])
    assert torch.allclose(found[1], whole["conv1.bias"])


def test_a_call_leaves_no_hook_and_no_gradient_behind() -> None:
    network = made("LeNet")
    PerSampleGradients(network)(*batch())
    assert all(value.grad is None for value in network.parameters())
    assert not any(layer._forward_hooks for layer in network.modules())


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm2d(3), nn.BatchNorm2d(3).eval(), nn.SyncBatchNorm(3), nn.InstanceNorm2d(3, track_running_stats=True)],
)
def test_a_network_with_batch_statistics_is_refused(layer: nn.Module) -> None:
    with pytest.raises(ConfigError, match="every record is treated alone") as error:
        PerSampleGradients(nn.Sequential(nn.Conv2d(3, 3, 1), layer, nn.Flatten(), nn.Linear(192, 3)))
    assert f"{type(layer).__name__} '1'" in error.value.found
    assert "GroupNorm" in error.value.todo


@pytest.mark.parametrize("layerwise", [True, False])
def test_a_loss_that_is_reduced_over_records_is_refused(layerwise: bool) -> None:
    def reduced(network: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(network(inputs), labels)

    with pytest.raises(ConfigError, match="one loss for each"):
        PerSampleGradients(made("LeNet"), losses=reduced, layerwise=layerwise)(*batch())


def test_parameters_of_another_network_are_refused() -> None:
    network = made("LeNet")
    frozen = nn.Sequential(nn.Linear(2, 2)).requires_grad_(False)
    for parameters, where in ((list(made("LeNet").parameters()), network), ([], network), (None, frozen)):
        with pytest.raises(ConfigError):
            PerSampleGradients(where, parameters)


def test_a_network_that_folds_an_axis_into_the_records_is_refused_by_layers_and_served_by_records() -> None:
    class Folds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each_row, self.last = nn.Linear(24, 2), nn.Linear(16, 3)

        def forward(self, images: Tensor) -> Tensor:
            rows = images.transpose(1, 2).flatten(2).flatten(0, 1)
            return self.last(self.each_row(rows).reshape(len(images), -1))

    network = initialise(Folds(), named_generator(0, "weights"))
    with pytest.raises(ConfigError, match="layerwise=False"):
        PerSampleGradients(network)(*batch())
    assert_close(PerSampleGradients(network, layerwise=False)(*batch()), by_loop(network, *batch()))


@pytest.mark.parametrize("device", DEVICES)
def test_replayed_rows_follow_new_weights_and_new_images(device: str) -> None:
    network = ConvNet(SPEC, named_generator(0, "weights", device), width=16)
    plain, replayed = PerSampleGradients(network), PerSampleGradients(network, replayed=True)
    draws = named_generator(0, "images", device)
    for round_ in range(9):  # beyond the plain steps before a graph
        restart(network, draws)
        images = torch.rand(4, *SPEC.shape, generator=draws, device=device)
        labels = torch.randint(3, (4,), generator=draws, device=device)
        expected, found = plain(images, labels), replayed(images, labels)
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5), round_
    assert torch.allclose(replayed(images[:3], labels[:3]), expected[:3], rtol=1e-3, atol=1e-5)
    images = images.flip(3)
    # A batch of another size in between must not leave its rows, or earlier ones, to those that come after.
    assert torch.allclose(replayed(images, labels), plain(images, labels), rtol=1e-3, atol=1e-5)


class StandInGraph:
    """Writes where it wrote first, as a CUDA graph does, whatever the owner keeps by then."""

    def __init__(self, owner: PerSampleGradients, step: GraphedStep) -> None:
        self.owner, self.step, self.memory = owner, step, owner._kept

    def replay(self) -> None:
        self.memory.copy_(self.owner._rows(*self.step.inputs))


def column_or_row(network: Forward, inputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropies(network, inputs, labels.reshape(len(inputs)))


def test_labels_of_another_shape_leave_no_rows_of_earlier_batches_to_a_graph() -> None:
    network = nn.Linear(3, 2)
    replayed = PerSampleGradients(network, losses=column_or_row, replayed=True)
    inputs, labels = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    replayed(inputs, labels)
    step = replayed._replay
    assert step is not None
    step.plain_only, step.plain_steps = False, PLAIN_STEPS
    step.graph = StandInGraph(replayed, step)  # type: ignore[assignment]
    for given in (inputs, 1 - inputs):
        assert_close(replayed(given, labels), by_loop(network, given, labels))
    replayed(inputs, labels[:, None])
    assert_close(replayed(inputs / 2, labels), by_loop(network, inputs / 2, labels))


def test_a_graph_is_made_on_zeros_before_it_sees_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many batches came before depends on how many records there are; no row may depend on that."""
    seen: list[float] = []

    class OnPaper(GraphedStep):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.plain_only = False

        def _on_a_side_stream(self, inputs: Sequence[Tensor]) -> None:
            seen.append(float(inputs[0].abs().sum()))
            self.step(*inputs)

        def _replay(self) -> None:
            seen.append(float(self.inputs[0].abs().sum()))
            self.step(*self.inputs)

    monkeypatch.setattr(per_sample_gradients, "GraphedStep", OnPaper)
    inputs, labels = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
    PerSampleGradients(nn.Linear(3, 2), replayed=True)(inputs, labels)
    assert seen == [0.0] * (PLAIN_STEPS + 1) + [12.0]
