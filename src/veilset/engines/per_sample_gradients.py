"""Gradients of single records with respect to the parameters of a network, for all records of a batch at once.

Vault side: rows made here are private, and leave through `clipped_gradients` alone. Common layers have formulas that
need one forward and one backward pass of the whole batch; other networks go through `torch.func`, record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from veilset.engines.cuda_graphs import GraphedStep
from veilset.errors import ConfigError
from veilset.nets.half_precision import half_on_cuda

Forward = Callable[[Tensor], Tensor]
Losses = Callable[[Forward, Tensor, Tensor], Tensor]
"""(network, inputs, labels) -> one loss for each record, from that record alone."""


def cross_entropies(network: Forward, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(network(inputs), labels, reduction="none")


class PerSampleGradients:
    """Called with inputs and labels of n records, gives their gradients as (n, parameters) float32.

    A row depends on its own record and the weights alone, because layers that mix records are refused; a loss must
    not mix them either. On CUDA forward and backward pass run in bfloat16, and rows are float32 before their norms are
    taken.

    Args:
        parameters: what to differentiate by; by default all that require gradients.
        layerwise: False for losses that reach a weight on other ways than through the output of its layer, as gradient
            penalties do. By default True where every layer concerned has a formula.
        replayed: True where the losses are made of inputs, labels, weights and constants alone: batches of the size of
            the first are then one CUDA graph, whose rows are overwritten by the next batch.
    """

    def __init__(
        self,
        network: nn.Module,
        parameters: Sequence[nn.Parameter] | None = None,
        losses: Losses = cross_entropies,
        *,
        layerwise: bool | None = None,
        replayed: bool = False,
    ) -> None:
        _refuse_batch_statistics(network)
        self.network, self.losses = network, losses
        wanted = [value for value in network.parameters() if value.requires_grad] if parameters is None else parameters
        names = {value: name for name, value in network.named_parameters()}
        if not wanted or any(value not in names or not value.requires_grad for value in wanted):
            raise ConfigError(
                "parameters of the network that require gradients",
                "others among them" if wanted else "none",
                "Pass parameters of this very network.",
            )
        self.parameters = {names[value]: value for value in wanted}
        self._layers = [
            layer for layer in network.modules() if not set(wanted).isdisjoint(layer.parameters(recurse=False))
        ]
        self.layerwise = all(map(_has_rule, self._layers)) if layerwise is None else layerwise
        self.replayed = replayed
        self._replay: GraphedStep | None = None

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        if self.replayed and self._replay is None:
            self._replay = GraphedStep(self._keep_rows, [inputs, labels], [])
            # Plain steps may round otherwise than a graph, and how many batches came before says how many records are.
            self._replay.rehearse()
        # A graph goes on writing where it wrote at first, so batches of another shape must not touch what it keeps.
        if self._replay is None or not self._replay.fits(inputs, labels):
            return self._rows(inputs, labels)
        self._replay(inputs, labels)
        return self._kept

    def _keep_rows(self, inputs: Tensor, labels: Tensor) -> None:
        self._kept = self._rows(inputs, labels)

    def _rows(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return self._by_layers(inputs, labels) if self.layerwise else self._by_records(inputs, labels)

    def shaped(self, row: Tensor) -> list[Tensor]:
        """A vector over all parameters, as tensors in their shapes and types."""
        pieces = row.split([value.numel() for value in self.parameters.values()])
        return [
            piece.reshape(value.shape).to(value.dtype)
            for piece, value in zip(pieces, self.parameters.values(), strict=True)
        ]

    def _by_layers(self, inputs: Tensor, labels: Tensor) -> Tensor:
        calls = []

        def note(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            # The edge stays that of this output when the next layer works in place; that of a view would not.
            output = output.clone() if output._is_view() else output
            calls.append((layer, arguments[0].detach(), get_gradient_edge(output)))
            return output

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        try:
            with torch.enable_grad(), half_on_cuda(inputs.device):
                losses = _one_for_each(self.losses(self.network, inputs, labels), len(inputs))
        finally:
            for hook in hooks:
                hook.remove()
        edges = [edge for _, _, edge in calls]
        output_gradients = torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True)
        rows = _Rows(list(self.parameters.values()), len(inputs), inputs.device)
        with torch.no_grad():
            for (layer, taken, _), given in zip(calls, output_gradients, strict=True):
                if given is not None:
                    rows.add(layer, taken.float(), given.float())
            return rows.finished()

    def _by_records(self, inputs: Tensor, labels: Tensor) -> Tensor:
        def loss(parameters: dict[str, Tensor], one_input: Tensor, one_label: Tensor) -> Tensor:
            def forward(batch: Tensor) -> Tensor:
                return functional_call(self.network, parameters, (batch,))

            return _one_for_each(self.losses(forward, one_input[None], one_label[None]), 1).sum()

        parameters = {name: value.detach() for name, value in self.parameters.items()}
        with half_on_cuda(inputs.device):
            found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, labels)
        return torch.cat([found[name].flatten(1).float() for name in self.parameters], dim=1)


class _Rows:
    """Rows into which the gradients of one layer after the other are written, without a copy, at the place of each
    parameter."""

    def __init__(self, parameters: list[nn.Parameter], number: int, device: torch.device) -> None:
        sizes = [value.numel() for value in parameters]
        self.values = torch.empty(number, sum(sizes), device=device)
        places = zip(parameters, self.values.split(sizes, dim=1), strict=True)
        self.places = {value: place.unflatten(1, value.shape) for value, place in places}
        self.missing = set(parameters)

    def add(self, layer: nn.Module, taken: Tensor, given: Tensor) -> None:
        """A layer that is called twice, or a weight that two layers share, has the sum of its gradients."""
        if not len(self.values) == len(taken) == len(given):
            raise ConfigError(
                f"one entry for each of {len(self.values)} records in every layer",
                f"{len(taken)} in {type(layer).__name__}",
                "Pass layerwise=False for a network that folds other axes into the first.",
            )
        pair = [value for value in (layer.weight, layer.bias) if isinstance(value, nn.Parameter)]
        outs = {value: self._out(value) for value in pair if value in self.places}
        RULES[type(layer)](layer, taken, given, outs.get(layer.weight), outs.get(layer.bias))  # type: ignore[call-overload]
        for parameter, out in outs.items():
            if parameter not in self.missing:
                self.places[parameter] += out
        self.missing -= outs.keys()

    def _out(self, parameter: nn.Parameter) -> Tensor:
        place = self.places[parameter]
        return place if parameter in self.missing else torch.empty_like(place)

    def finished(self) -> Tensor:
        for parameter in self.missing:
            self.places[parameter].zero_()
        return self.values


def _refuse_batch_statistics(network: nn.Module) -> None:
    for name, layer in network.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False):
            raise ConfigError(
                "a network in which every record is treated alone",
                f"{type(layer).__name__} '{name}', which takes statistics over a batch",
                "Use nn.GroupNorm: a clipped gradient that depends on other records bounds nothing.",
            )


def _one_for_each(losses: Tensor, number: int) -> Tensor:
    if losses.shape != (number,):
        raise ConfigError(
            f"one loss for each of {number} records",
            f"losses of shape {tuple(losses.shape)}",
            "Do not reduce them: a mean over records scales each by how many others there are.",
        )
    return losses


Rule = Callable[[nn.Module, Tensor, Tensor, Tensor | None, Tensor | None], None]
"""Takes a layer, its input and the gradient of the losses by its output, of n records; writes the gradients by its
weight and by its bias, (n, ...), where they are wanted."""


def _linear(layer: nn.Module, taken: Tensor, given: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    taken, given = (value.reshape(len(value), -1, value.shape[-1]) for value in (taken, given))
    if weight is not None:
        torch.bmm(given.mT, taken, out=weight)
    if bias is not None:
        torch.sum(given, dim=1, out=bias)


def _convolution(layer: nn.Module, taken: Tensor, given: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    """The product of output gradients with the patches they came from, summed over places (groups stay apart)."""
    assert isinstance(layer, nn.Conv2d)
    if weight is not None:
        left, right, out = (
            value.chunk(layer.groups, dim=1)
            for value in (given.flatten(2), _patches(layer, taken, given.shape[2:]), weight)
        )
        for group in range(layer.groups):
            torch.bmm(left[group], right[group].mT, out=out[group].flatten(2))
    if bias is not None:
        torch.sum(given, dim=(2, 3), out=bias)


def _patches(layer: nn.Conv2d, taken: Tensor, size: torch.Size) -> Tensor:
    """(n, channels * kernel, places): what each weight was multiplied with at each place of an output of this size.

    The same as `F.unfold`, by strides: one copy, which is faster on a CPU.
    """
    up, left = map(int, layer.padding)
    padded = F.pad(taken, (left, left, up, up)).contiguous()
    record, channel, row, column = padded.stride()
    within = (layer.dilation[0] * row, layer.dilation[1] * column)
    between = (layer.stride[0] * row, layer.stride[1] * column)
    shape = (*padded.shape[:2], *layer.kernel_size, *size)
    return padded.as_strided(shape, (record, channel, *within, *between)).reshape(len(taken), -1, size.numel())


def _group_norm(layer: nn.Module, taken: Tensor, given: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    assert isinstance(layer, nn.GroupNorm)
    _affine(lambda: F.group_norm(taken, layer.num_groups, eps=layer.eps), given, weight, bias)


def _instance_norm(layer: nn.Module, taken: Tensor, given: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    assert isinstance(layer, nn.InstanceNorm2d)
    _affine(lambda: F.instance_norm(taken, eps=layer.eps), given, weight, bias)


def _affine(normalised: Callable[[], Tensor], given: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    given = given.flatten(2)
    if weight is not None:
        torch.sum(normalised().flatten(2) * given, dim=2, out=weight)
    if bias is not None:
        torch.sum(given, dim=2, out=bias)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.InstanceNorm2d: _instance_norm,
}
"""By exact type: a subclass may do something else."""


def _has_rule(layer: nn.Module) -> bool:
    padded_otherwise = isinstance(layer, nn.Conv2d) and (
        layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    )
    return type(layer) in RULES and not padded_otherwise
