"""An exponential moving average over the weights of a network, kept on its device."""

import torch


class WeightAverage:
    """Follows ``weights`` with a decay of at most ``decay``: min(decay, (1 + n) / (10 + n)) at update n.

    The second term is the warm-up of the helper that DPDM and DPImageBench use. Without it an average of decay 0.9999
    would still be nine tenths random start after 1,000 steps; with it, n updates remember about the last n / 9 of them,
    so that a tiny set is judged by weights that were trained.
    """

    def __init__(self, weights: list[torch.nn.Parameter], decay: float) -> None:
        self.weights, self.decay = weights, decay
        self.values = [weight.detach().clone() for weight in weights]
        self.updates = torch.zeros((), device=weights[0].device)

    @torch.no_grad()
    def update(self) -> None:
        # Counted on the device: a number of the host would be frozen into a CUDA graph.
        self.updates += 1
        share = 1 - ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        change = torch._foreach_sub([weight.detach() for weight in self.weights], self.values)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(self.values, change)

    @torch.no_grad()
    def put_in_place(self) -> None:
        """The network has its average for weights from now on."""
        for weight, value in zip(self.weights, self.values, strict=True):
            weight.copy_(value)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps of it, by name."""
        return {**{f"average {place}": value for place, value in enumerate(self.values)}, "updates": self.updates}
