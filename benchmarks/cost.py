"""What a sketch costs on this machine: the pass over the images and a step of the generator, against each setting.

python benchmarks/cost.py --preset fast            # on a GPU: --preset balanced

Images are generated noise: cost depends on their shape alone. The arithmetic of a pass is set beside the most this
device reached in the same run, by one large matrix product and one large copy; on a CPU a step is set beside one in
float32.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import results
import torch
from speed import best_of, most_operations, wait_for

from veilset.api import pick_device
from veilset.data.spec import ImageSet, ImageSpec
from veilset.engines.checkpointing import Checkpoints
from veilset.engines.feature_sums import sum_by_label
from veilset.engines.matching import Effort, Streams, Target, match
from veilset.engines.sketch_costs import rows_at_once
from veilset.methods.base import get_method, make_config
from veilset.nets import half_precision
from veilset.nets.feature_bank import num_blocks
from veilset.nets.measurement import Measurement
from veilset.privacy.bounds import Unit, normalise_rows
from veilset.randomness import named_generator

SKETCH = get_method("sketch")
ATTEMPTS = 4
STEPS = 30


@dataclass(frozen=True)
class Case:
    """One point of the cost model."""

    side: int = 28
    channels: int = 1
    classes: int = 10
    networks: int = 4
    width: int = 32

    @property
    def spec(self) -> ImageSpec:
        names = tuple(f"c{label}" for label in range(self.classes))
        return ImageSpec(height=self.side, width=self.side, channels=self.channels, class_names=names)

    @property
    def operations(self) -> int:
        """Multiplications and additions of the convolutions, for one image."""
        inputs = [self.channels, *[self.width] * (num_blocks(self.spec) - 1)]
        pixels = [(self.side >> block) ** 2 for block in range(len(inputs))]
        products = sum(9 * before * self.width * area for before, area in zip(inputs, pixels, strict=True))
        return 2 * products * self.networks


def cases(config: Any) -> list[Case]:
    base = Case(networks=config.networks, width=config.width)
    return [
        base, *(replace(base, side=side, channels=3) for side in (32, 64, 128)),
        *(replace(base, classes=classes) for classes in (100, 1000)),
        replace(base, networks=2 * base.networks), replace(base, width=base.width // 2),
    ]  # fmt: skip


def pass_seconds(case: Case, bank: Measurement, number: int, device: torch.device) -> float:
    """Per image."""
    draws = named_generator(0, "cost")
    pixels = torch.randint(0, 256, (number, *case.spec.shape), dtype=torch.uint8, generator=draws)
    labels = torch.randint(0, case.classes, (number,), generator=draws)
    images = ImageSet(spec=case.spec, pixels=pixels, labels=labels)

    def work() -> None:
        sum_by_label(
            images, lambda batch: normalise_rows(bank.rows(batch)), unit=Unit.RECORD, rows_per_user=None, device=device,
            progress=lambda *_: None, batch=rows_at_once(bank.numbers),
        )  # fmt: skip

    return best_of(ATTEMPTS, work, device) / number


def step_seconds(case: Case, bank: Measurement, config: Any, device: torch.device) -> float:
    """Of the generator; the first steps, which compile and capture, do not count."""
    targets = [
        Target(part, torch.zeros(case.classes, part.count, part.length, device=device), share)
        for part, share in bank.parts
    ]
    groups, each = config.groups_of_a_step(case.classes, kinds=1)
    effort = Effort(
        steps=STEPS, networks_per_step=config.networks_per_step, groups_per_step=groups, images_per_group=each,
        learning_rate=config.learning_rate, checkpoint_every=STEPS,
    )  # fmt: skip
    streams = Streams(draws=named_generator(0, "cost", device), order=named_generator(0, "order"))
    moments = []

    def look(done: int, total: int) -> None:
        if done in (STEPS // 3, STEPS):
            wait_for(device)
            moments.append(time.perf_counter())

    match(
        SKETCH.build(config, case.spec).to(device), targets, effort, streams=streams, checkpoints=Forgetful(),
        name="cost", progress=look,
    )  # fmt: skip
    return (moments[1] - moments[0]) / (STEPS - STEPS // 3)


class Forgetful(Checkpoints):
    """Keeps nothing."""

    def __init__(self) -> None:
        pass

    def save(self, name: str, tensors: Any) -> None:
        pass

    def load(self, name: str) -> None:
        return None


def limits(device: torch.device) -> tuple[float, float]:
    """Operations a second of a float32 product, with the device's fast formats, and bytes a second of a copy."""
    many = torch.ones(1 << (28 if device.type == "cuda" else 25), device=device)
    copying = 2 * 4 * many.numel() / best_of(ATTEMPTS, many.clone, device)
    return most_operations(device, torch.float32), copying


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--number", type=int, default=2000, help="images of a timed pass")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--commit", help="where there is no git checkout")
    options = parser.parse_args()
    device = pick_device(options.device)
    config = make_config(SKETCH, {"preset": options.preset, "kinds": 1})
    operations, bytes_ = limits(device)
    print(f"{operations / 1e12:.3g} T operations and {bytes_ / 1e9:.3g} GB a second at most")
    for case in cases(config):
        bank = SKETCH.layout(replace(config, networks=case.networks, width=case.width)).random_bank(case.spec)
        bank = bank.to(device)
        started = time.perf_counter()
        image = pass_seconds(case, bank, options.number, device)
        step = step_seconds(case, bank, config, device)
        settings = {
            **asdict(case), "preset": options.preset,
            "share_of_arithmetic": _three_digits(case.operations / image / operations),
            "share_of_bandwidth": _three_digits(4 * case.networks * case.width * case.side**2 / image / bytes_),
            "sketch_megabytes": _three_digits(4 * case.classes * bank.numbers / 1e6),
        }  # fmt: skip
        if device.type == "cpu":
            with mock.patch.object(half_precision, "multiplies_bfloat16", return_value=False):
                settings["step_against_float32"] = _three_digits(step / step_seconds(case, bank, config, device))
        for metric, value, protocol in (
            ("microseconds/image", 1e6 * image, f"best of {ATTEMPTS}, {options.number} images"),
            ("milliseconds/step", 1e3 * step, f"mean of {STEPS - STEPS // 3} steps"),
        ):
            results.append(
                options.results, method="sketch", dataset="generated noise", accounting="cost", claim=None,
                epsilon_target=None,
                protocol=protocol, settings=settings, metric=metric,
                values=[value], seeds=[0], seconds=time.perf_counter() - started, device=results.device_name(device),
                commit=options.commit,
            )  # fmt: skip


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


if __name__ == "__main__":
    main()
