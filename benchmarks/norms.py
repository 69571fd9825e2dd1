"""How long gradients are before and after clipping: GS-WGAN beside a GAN by DP-SGD (GS-WGAN, figures 2 and A1).

    python benchmarks/norms.py
    python benchmarks/norms.py --steps 1000 --set shards=50 warm_up=100

What DP-SGD clips are the gradients of a discriminator in its weights, one for each real image; their lengths vary, so
that any clip norm is too large for some and too small for others. GS-WGAN clips gradients of critics in generated
images, which the critics' own gradient penalty keeps near length 1. Both are private runs, with ledgers and noise; the
figures are made of their norms, which may be looked at because the images are public benchmarks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import results
import torch
import torch.nn.functional as F
from bench import setting
from torch import Tensor

import veilset
from veilset.api import pick_device
from veilset.data.spec import ImageSet
from veilset.engines.clipped_gradients import ASSUMPTIONS, ClippedGradients, GradientTerms, clipped_mean
from veilset.engines.per_sample_gradients import Forward, PerSampleGradients
from veilset.engines.shard_teaching import CLIP, EACH_NORM, NORMS_EVERY
from veilset.engines.training_steps import step_along
from veilset.files import write_atomically
from veilset.nets.classifiers import ConvNet
from veilset.nets.generators import UpsamplingGenerator
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim
from veilset.privacy.events import NOTHING, Repeated
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.release import Door
from veilset.randomness import initialise, named_generator
from veilset.report.plots import NormHistogram, NormPanel, Trace, norm_dynamics, norm_histograms
from veilset.report.vault import read_log
from veilset.run_folder import HISTORY, RunFolder

GAN, GAN_CLIP, GAN_NOISE, GAN_BATCH, GAN_RATE = "dp-sgd gan", 1.1, 1.0, 64, 2e-4
"""The clip norm of GS-WGAN's figure 2; the rest is usual."""
IMAGES = Path(__file__).parent.parent / "docs" / "images"


@dataclass(frozen=True)
class Norms:
    """Of one network over the steps that were looked at: the lengths of all gradients of each."""

    title: str
    clip_norm: float
    by_step: dict[int, list[float]]
    run: dict[str, Any]
    """What a line of results says about the run."""

    @property
    def before(self) -> list[float]:
        return [norm for norms in self.by_step.values() for norm in norms]

    @property
    def after(self) -> list[float]:
        return self._clipped(self.before)

    def panel(self) -> NormPanel:
        steps = list(self.by_step.values())
        traces = (
            self._trace("before clipping", steps),
            self._trace("after clipping", [self._clipped(norms) for norms in steps]),
        )
        return NormPanel(title=self.title, clip_norm=self.clip_norm, traces=traces)

    def _clipped(self, norms: Sequence[float]) -> list[float]:
        return [min(norm, self.clip_norm) for norm in norms]

    def histogram(self) -> NormHistogram:
        return NormHistogram.of(self.title, self.before, self.after, clip_norm=self.clip_norm)

    def _trace(self, label: str, values: Sequence[Sequence[float]]) -> Trace:
        means, sds = tuple(map(statistics.fmean, values)), tuple(map(statistics.pstdev, values))
        return Trace(label=label, steps=tuple(map(float, self.by_step)), mean=means, sd=sds)


class Gan:
    """The standard loss. The discriminator's output for a label says whether an image of that label is a real one."""

    def __init__(self, images: ImageSet, steps: int, folder: Path, device: torch.device) -> None:
        self.terms = GradientTerms(declared_size=len(images), expected_batch=GAN_BATCH, clip_norm=GAN_CLIP)
        event = self.terms.event(GAN_NOISE, Adjacency.ADD_REMOVE)
        self.ledger = PrivacyLedger.open_new(
            folder / "ledger.jsonl", planned=Repeated(steps, event), reserve=NOTHING,
            adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD, delta=1e-5,
        )  # fmt: skip
        self.steps, self.spec, self.door = steps, images.spec, Door(self.ledger, NoiseSource())
        self.private = ClippedGradients(images, self.terms, device=device)
        self.draws = named_generator(0, "gan", device)
        self.network = ConvNet(images.spec, self.draws, width=64).to(device)
        self.generator = UpsamplingGenerator(images.spec, latent_size=32, channels=64).to(device)
        initialise(self.generator, self.draws)
        self.of_real, self.of_fake = (PerSampleGradients(self.network, losses=loss) for loss in (real_loss, fake_loss))
        self.critic, self.artist = (
            torch.optim.Adam(one.parameters(), lr=GAN_RATE, betas=(0.5, 0.999))
            for one in (self.network, self.generator)
        )

    def train(self) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Lengths of gradients of real and of generated images, by step."""
        real: dict[int, list[float]] = {}
        fake: dict[int, list[float]] = {}
        for step in range(1, self.steps + 1):
            draw = self.private.draw(self.door)
            labels, images = self._fakes()
            if step % NORMS_EVERY == 0:
                fake[step] = lengths(self.of_fake, images.detach(), labels)
                if len(draw.indices):
                    real[step] = lengths(self.of_real, *self.private.batch(draw))
            gradient = self.private.release_mean(self.of_real, draw, self.door, GAN_NOISE).float()
            gradient = gradient + clipped_mean(self.of_fake, images.detach(), labels, GAN_CLIP)
            step_along(self.critic, self.of_real.shaped(gradient))
            self._learn()
        self.ledger.close()
        return real, fake

    def _fakes(self) -> tuple[Tensor, Tensor]:
        labels = torch.randint(
            self.spec.num_classes, (GAN_BATCH,), generator=self.draws, device=self.draws.device
        )  # fmt: skip
        return labels, self.generator.sample(labels, self.draws)

    def _learn(self) -> None:
        labels, images = self._fakes()
        self.artist.zero_grad()
        real_loss(self.network, images, labels).mean().backward()
        self.artist.step()

    @property
    def claim(self) -> Claim:
        return Claim.from_parts([[self.ledger]], assumptions=ASSUMPTIONS, published=None, stamps=())


def real_loss(network: Forward, images: Tensor, labels: Tensor) -> Tensor:
    return F.softplus(-network(images).gather(1, labels[:, None])[:, 0])


def fake_loss(network: Forward, images: Tensor, labels: Tensor) -> Tensor:
    return F.softplus(network(images).gather(1, labels[:, None])[:, 0])


def lengths(gradients: PerSampleGradients, images: Tensor, labels: Tensor) -> list[float]:
    return [float(norm) for norm in gradients(images, labels).norm(dim=1)]


def main(words: list[str] | None = None) -> None:
    options = parse(words)
    device = pick_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        found = of_gan("mnist", options, Path(folder), device)
        found += [of_gs_wgan(name, options, Path(folder, name), device) for name in ("mnist", "fashion-mnist")]
    for norms in found:
        record(norms, options, results.device_name(device))
    figures = {
        "gradient-norms.png": norm_dynamics([norms.panel() for norms in found], image_format="png"),
        "norm-histograms.png": norm_histograms([norms.histogram() for norms in found], image_format="png"),
    }
    for name, figure in figures.items():
        write_atomically(options.out / name, figure)


def of_gan(dataset: str, options: argparse.Namespace, folder: Path, device: torch.device) -> list[Norms]:
    started = time.perf_counter()
    gan = Gan(datasets.load(dataset, "train"), options.steps, folder, device)
    by_kind = dict(zip(("real", "generated"), gan.train(), strict=True))
    settings = {"steps": options.steps, "batch": GAN_BATCH, "clip_norm": GAN_CLIP, "noise_multiplier": GAN_NOISE}
    claim = gan.claim.to_json()
    run = {
        "method": GAN, "dataset": dataset, "accounting": "proven", "claim": claim, "epsilon_target": claim["epsilon"],
        "seconds": time.perf_counter() - started,
    }  # fmt: skip
    return [
        Norms(f"GAN by DP-SGD, {dataset}, {kind}", GAN_CLIP, by_step, {**run, "settings": {**settings, "images": kind}})
        for kind, by_step in by_kind.items()
    ]


def of_gs_wgan(dataset: str, options: argparse.Namespace, folder: Path, device: torch.device) -> Norms:
    started = time.perf_counter()
    settings = {**dict(options.set), "steps": options.steps}
    model = veilset.fit(
        datasets.load(dataset, "train"), method="gs-wgan", epsilon=10.0, accounting="published",
        allow_published_accounting=True, out=folder, device=device, **settings,
    )  # fmt: skip
    by_step: dict[int, list[float]] = {}
    for line in read_log(RunFolder(folder).vault / HISTORY)[0]:
        if line["name"] == EACH_NORM:
            by_step.setdefault(line["step"], []).append(line["value"])
    run = {
        "method": "gs-wgan", "dataset": dataset, "accounting": "published", "claim": model.claim.to_json(),
        "epsilon_target": 10.0, "seconds": time.perf_counter() - started, "settings": settings,
    }  # fmt: skip
    return Norms(f"GS-WGAN, {dataset}, generated", CLIP, by_step, run)


def record(norms: Norms, options: argparse.Namespace, device: str) -> None:
    """Means and spreads over all steps that were looked at."""
    for when, values in (("before", norms.before), ("after", norms.after)):
        for what, value in (("norm", statistics.fmean(values)), ("norm, spread", statistics.pstdev(values))):
            results.append(
                options.results, **norms.run, protocol=f"every {NORMS_EVERY}th step", values=[value], seeds=[0],
                metric=f"gradient {what}, {when} clipping", device=device, commit=options.commit,
            )  # fmt: skip


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="of either generator")
    small = [("shards", "200"), ("warm_up", "500")]
    parser.add_argument(
        "--set", nargs="*", type=setting, default=small, metavar="NAME=VALUE", help="options of gs-wgan"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--commit", help="where there is no git checkout")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the figures")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
