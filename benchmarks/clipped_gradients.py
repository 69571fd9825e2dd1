"""Milliseconds of one clipped and noised gradient of the ConvNet of PSG, beside Opacus in the same run.

python benchmarks/clipped_gradients.py --batch 256 --threads 2

Where Opacus is not installed, its algorithm stands in for it: hooks that keep activations and output gradients, one
product for each layer over the whole batch at once, norms, and a weighted sum. Attempts alternate, and the fastest of
each counts. Our step is a whole release: sample, gradients, exact sum, charge on disk and secret noise.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import results
import torch
import torch.nn.functional as F
from speed import best_of
from torch import Tensor, nn

from veilset.api import pick_device
from veilset.data.spec import ImageSet, ImageSpec, to_unit_range
from veilset.engines.clipped_gradients import ClippedGradients, GradientTerms
from veilset.engines.per_sample_gradients import PerSampleGradients
from veilset.nets.classifiers import ConvNet
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import NOTHING, Repeated
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.release import Door
from veilset.randomness import named_generator

SPEC = ImageSpec(height=28, width=28, channels=1, class_names=tuple("0123456789"))
CLIP, NOISE = 0.1, 1.0
Step = Callable[[], object]


def some_images(number: int) -> ImageSet:
    """Generated noise: the time depends on the shape alone."""
    draws = named_generator(0, "clipped gradients")
    pixels = torch.randint(0, 256, (number, *SPEC.shape), dtype=torch.uint8, generator=draws)
    return ImageSet(spec=SPEC, pixels=pixels, labels=torch.randint(0, 10, (number,), generator=draws))


def network_on(device: torch.device) -> ConvNet:
    return ConvNet(SPEC, named_generator(0, "weights", device))


def our_steps(images: ImageSet, device: torch.device, folder: Path) -> dict[str, Step]:
    """A release, and two parts of it. At rate 1 every sample has all the images, as the other side has."""
    terms = GradientTerms(declared_size=len(images), expected_batch=len(images), clip_norm=CLIP)
    ledger = PrivacyLedger.open_new(
        folder / "ledger.jsonl", planned=Repeated(10**6, terms.event(NOISE, Adjacency.ADD_REMOVE)), reserve=NOTHING,
        adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD, delta=1e-5,
    )  # fmt: skip
    door, gradients = Door(ledger, NoiseSource()), PerSampleGradients(network_on(device), replayed=True)
    engine, everybody = ClippedGradients(images, terms, device=device), torch.arange(len(images))

    def rows_alone() -> None:
        for places in everybody.to(device).split(engine.records_at_once):
            engine._rows(gradients, places)

    return {
        "veilset": lambda: engine.release(gradients, door, NOISE),
        "veilset, without noise": lambda: engine.clipped_sum(gradients, everybody),
        "veilset, gradients alone": rows_alone,
    }


def plain_step(images: ImageSet, device: torch.device) -> Step:
    network = network_on(device)
    inputs, labels = to_unit_range(images.pixels).to(device), images.labels.to(device)
    return lambda: torch.autograd.grad(F.cross_entropy(network(inputs), labels), list(network.parameters()))


def other_step(images: ImageSet, device: torch.device) -> tuple[str, Step]:
    try:
        import opacus
        from opacus.optimizers import DPOptimizer
    except ImportError:
        return "hooks, all records at once", hooked_step(images, device)
    # It says that the first layer's input needs no gradient, at every step.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    network = opacus.GradSampleModule(network_on(device))
    inputs, labels = to_unit_range(images.pixels).to(device), images.labels.to(device)
    optimiser = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=1e-9), noise_multiplier=NOISE, max_grad_norm=CLIP,
        expected_batch_size=len(images),
    )  # fmt: skip

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(network(inputs), labels).backward()
        optimiser.step()

    return f"opacus {opacus.__version__}", step


def hooked_step(images: ImageSet, device: torch.device) -> Step:
    network = network_on(device)
    inputs, labels = to_unit_range(images.pixels).to(device), images.labels.to(device)
    draws = named_generator(0, "noise", device)
    taken: dict[nn.Module, Tensor] = {}
    rows: list[Tensor] = []

    def keep(layer: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        taken[layer] = arguments[0].detach()
        output.register_hook(lambda given: rows.extend(gradients_of(layer, taken[layer], given)))

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.GroupNorm | nn.Linear):
            layer.register_forward_hook(keep)

    def step() -> list[Tensor]:
        rows.clear()
        F.cross_entropy(network(inputs), labels, reduction="sum").backward()
        norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
        factors = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        sums = [torch.einsum("n,n...->...", factors, row) for row in rows]
        return [value + CLIP * NOISE * torch.randn(value.shape, generator=draws, device=value.device) for value in sums]

    return step


def gradients_of(layer: nn.Module, taken: Tensor, given: Tensor) -> list[Tensor]:
    if isinstance(layer, nn.Linear):
        return [torch.einsum("no,ni->noi", given, taken), given]
    if isinstance(layer, nn.Conv2d):
        patches = F.unfold(taken, layer.kernel_size, padding=layer.padding)
        return [torch.einsum("nol,nkl->nok", given.flatten(2), patches), given.sum(dim=(2, 3))]
    assert isinstance(layer, nn.GroupNorm)
    normalised = F.group_norm(taken, layer.num_groups, eps=layer.eps)
    return [torch.einsum("nchw,nchw->nc", normalised, given), given.sum(dim=(2, 3))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--attempts", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--commit", help="where there is no git checkout")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started, device, images = time.perf_counter(), pick_device(options.device), some_images(options.batch)
    with tempfile.TemporaryDirectory() as folder:
        other, step = other_step(images, device)
        steps = {other: step, **our_steps(images, device, Path(folder)), "no privacy": plain_step(images, device)}
        best = dict.fromkeys(steps, float("inf"))
        for _ in range(options.attempts):
            for name, work in steps.items():
                best[name] = min(best[name], best_of(1, work, device))
    print(f"{options.batch} images, {results.device_name(device)}, best of {options.attempts}")
    for name, seconds in best.items():
        print(f"{1e3 * seconds:9.1f} ms  {name}")
    ratio = best[other] / best["veilset"]
    print(f"{ratio:9.2f} times as fast as {other}")
    settings = {"batch": options.batch, "beside": other, "times_as_fast": float(f"{ratio:.3g}")}
    results.append(
        options.results, method="clipped gradients", dataset="generated noise", accounting="cost", claim=None,
        epsilon_target=None, protocol=f"best of {options.attempts}, in turn with the other",
        settings=settings | {f"milliseconds, {name}": round(1e3 * value, 1) for name, value in best.items()},
        metric="milliseconds/release", values=[1e3 * best["veilset"]], seeds=[0],
        seconds=time.perf_counter() - started, device=results.device_name(device), commit=options.commit,
    )  # fmt: skip


if __name__ == "__main__":
    main()
