"""What a step of a critic costs in a stack of them, against the same critics in a loop of torch's own layers.

python benchmarks/critics.py --critics 16 --widths 8 16        # on a GPU: --critics 1000 --widths 16 64

Images are generated noise: cost depends on their shape alone. Both ways have the same precision (bfloat16 products on
CUDA), and their arithmetic is set beside the most this device reached in the same run, by one large matrix product.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import results
import torch
from speed import best_of, most_operations
from table import table
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from veilset.api import pick_device
from veilset.data.spec import ImageSet, ImageSpec
from veilset.engines.critic_training import BETAS, DRIFT, PENALTY, RATE, CriticStack, PooledFakes
from veilset.engines.cuda_graphs import PLAIN_STEPS
from veilset.engines.shard_batches import ImageShards
from veilset.nets.critics import ConvBlock, Critics, conv_critics, dense_critics
from veilset.randomness import named_generator

KINDS = {"conv": conv_critics, "dense": dense_critics}
RECORDS = 60
"""Of a shard: 60,000 images for 1,000 critics."""
POOL = 64
ATTEMPTS = 3
STEPS = 5
"""Critic steps between two looks at the generator, as in the paper."""
LOOPED = 4
"""Critics that are timed one by one."""
COLUMNS = ("critics", "width", "ms/step, stacked", "ms/step, in a loop", "times as fast", "share of the most")


def operations(net: Critics, batch: int) -> int:
    """Multiplications and additions of one critic's step, as they are needed.

    Scores of real and fake images take one product forwards and two back, except to the images; slopes take one
    forwards, one back to the images, and two more for the gradient of that.
    """
    first = net.blocks[0].inputs * math.prod(net.blocks[0].out_shape)
    return 2 * batch * (2 * (3 * net.products - first) + 4 * net.products)


class PlainCritic(nn.Module):
    """The same critic in torch's own layers, with autograd for the slopes."""

    def __init__(self, net: Critics) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for block in net.blocks:
            if isinstance(block, ConvBlock):
                layers += [spectral_norm(nn.Conv2d(block.channels, block.outputs, 5, 2, 2)), nn.ReLU()]
            else:
                layers += [nn.Flatten(), spectral_norm(nn.Linear(block.inputs, block.outputs)), nn.ReLU()]
        last = net.matrices[-1][1]
        self.blocks = nn.Sequential(*layers, nn.Flatten())
        self.linear = spectral_norm(nn.Linear(last, 1))
        self.embedding = spectral_norm(nn.Embedding(net.spec.num_classes, last))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = self.blocks(images)
        return (self.linear(hidden).squeeze(1) + (self.embedding(labels) * hidden).sum(1)).float()


def plain_step(critic: PlainCritic, optimiser: torch.optim.Adam, real: Tensor, fake: Tensor, labels: Tensor) -> None:
    between = torch.lerp(fake, real, 0.5).requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=real.is_cuda), parametrize.cached():
        of_real, of_fake = critic(real, labels), critic(fake, labels)
        (slopes,) = torch.autograd.grad(critic(between, labels).sum(), between, create_graph=True)
        penalty = (slopes.float().flatten(1).norm(dim=1) - 1).square()
        loss = (of_fake - of_real + PENALTY * penalty + DRIFT * of_real.square()).mean()
        optimiser.zero_grad()
        loss.backward()
    optimiser.step()


def looped_seconds(net: Critics, batch: int, device: torch.device) -> float:
    """Of one step of one critic, in a loop over critics."""
    critics = [PlainCritic(net).to(device) for _ in range(LOOPED)]
    optimisers = [torch.optim.Adam(critic.parameters(), lr=RATE, betas=BETAS, fused=True) for critic in critics]
    draws = named_generator(0, "critics", device)
    real, fake = (torch.rand(batch, *net.spec.shape, generator=draws, device=device) for _ in range(2))
    labels = torch.randint(0, net.spec.num_classes, (batch,), generator=draws, device=device)

    def work() -> None:
        for critic, optimiser in zip(critics, optimisers, strict=True):
            for _ in range(STEPS):
                plain_step(critic, optimiser, real, fake, labels)

    return best_of(ATTEMPTS, work, device) / (LOOPED * STEPS)


def stacked_seconds(net: Critics, count: int, batch: int, device: torch.device) -> float:
    """Of one step of one critic, in a stack; drawing the batches and moving the critics in and out is part of it."""
    draws = named_generator(0, "critics")
    records = RECORDS * count
    images = ImageSet(
        spec=net.spec,
        pixels=torch.randint(0, 256, (records, *net.spec.shape), dtype=torch.uint8, generator=draws),
        labels=torch.randint(0, net.spec.num_classes, (records,), generator=draws),
    )
    shards = ImageShards(images, torch.arange(records) % count, count, seed=0, device=device)
    stack = CriticStack(net, shards, batch=batch, draws=draws)
    pool = torch.rand(net.spec.num_classes, POOL, *net.spec.shape, generator=draws)
    fakes = PooledFakes(pool.to(device))
    stack.train(fakes, PLAIN_STEPS + 1 if device.type == "cuda" else 1)
    return best_of(ATTEMPTS, lambda: stack.train(fakes, STEPS), device) / (count * STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--critics", type=int, default=16)
    parser.add_argument("--widths", type=int, nargs="+", default=[16])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--kind", choices=tuple(KINDS), default="conv")
    parser.add_argument("--side", type=int, default=28)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--commit", help="where there is no git checkout")
    options = parser.parse_args()
    device = pick_device(options.device)
    names = tuple(f"c{label}" for label in range(10))
    spec = ImageSpec(height=options.side, width=options.side, channels=options.channels, class_names=names)
    # In the precision of the critics.
    most = most_operations(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    rows = [measured(KINDS[options.kind](spec, width), width, most, device, options) for width in options.widths]
    print(f"{most / 1e12:.3g} T operations a second at most\n{table(COLUMNS, rows)}")


def measured(
    net: Critics, width: int, most: float, device: torch.device, options: argparse.Namespace
) -> list[int | str]:
    """One line of the results; returns its row of the table."""
    started = time.perf_counter()
    stacked = stacked_seconds(net, options.critics, options.batch, device)
    looped = looped_seconds(net, options.batch, device)
    share = operations(net, options.batch) / stacked / most
    settings = {
        "kind": options.kind, "critics": options.critics, "width": width, "batch": options.batch,
        "side": options.side, "channels": options.channels, "share_of_arithmetic": float(f"{share:.3g}"),
        "loop_milliseconds": float(f"{1e3 * looped:.3g}"),
    }  # fmt: skip
    results.append(
        options.results, method="gs-wgan", dataset="generated noise", accounting="cost", claim=None,
        epsilon_target=None, protocol=f"best of {ATTEMPTS}, {STEPS} steps of every critic", settings=settings,
        metric="milliseconds/critic step", values=[1e3 * stacked], seeds=[0], seconds=time.perf_counter() - started,
        device=results.device_name(device), commit=options.commit,
    )  # fmt: skip
    found = (1e3 * stacked, 1e3 * looped, looped / stacked, share)
    return [options.critics, width, *(f"{value:.3g}" for value in found)]


if __name__ == "__main__":
    main()
