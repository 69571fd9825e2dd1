"""Published evaluation protocols by name: which classifiers, how many images, how many seeds, and which mean."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from veilset.data.spec import ImageSet
from veilset.engines.contexts import Progress
from veilset.errors import ConfigError
from veilset.evaluate.classifiers import THIRTEEN
from veilset.evaluate.scores import Score, average
from veilset.evaluate.utility import gen2real


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A protocol. No score of it is chosen on test images: all classifiers count, and their mean."""

    description: str
    classifiers: tuple[str, ...]
    num_samples: int | None = None
    """Synthetic images the protocol asks for; None where the set has the size it has."""
    seeds: tuple[int, ...] = (0,)
    mean: str | None = None
    """Name of the mean over the classifiers, or None for no such score."""


PRESETS: dict[str, Preset] = {
    "veilset": Preset(
        description="Our own: the 32/64 CNN and an MLP, last epoch, 60,000 balanced images, three seeds.",
        classifiers=("cnn", "mlp"),
        num_samples=60_000,
        seeds=(0, 1, 2),
    ),
    "quick": Preset(
        description="The eight fastest of GS-WGAN's thirteen. It leaves out the CNN, the boosted trees and the linear "
        "SVC.",
        classifiers=(
            *("gaussian-nb", "bernoulli-nb", "lda", "decision-tree"),
            *("bagging", "logistic-regression", "random-forest", "mlp"),
        ),
        num_samples=60_000,
        mean="quick",
    ),
    "gs-wgan": Preset(
        description="GS-WGAN (Chen et al. 2020): thirteen classifiers, 60,000 images, five runs. Its CNN is the "
        "LeNet-5 of the paper's code; the paper's text describes the network that is 'cnn' here.",
        classifiers=tuple("lenet" if name == "cnn" else name for name in THIRTEEN),
        num_samples=60_000,
        seeds=(0, 1, 2, 3, 4),
        mean="average",
    ),
    "psg": Preset(
        description="PSG (Chen et al. 2022): its ConvNet with its augmentation, last epoch, three networks.",
        classifiers=("convnet-aug",),
        seeds=(0, 1, 2),
    ),
    "dpimagebench": Preset(
        description="DPImageBench (Gong et al. 2025): ResNet-110, WideResNet-40-4 and ResNeXt-29, epoch chosen on "
        "held-out synthetic images, and the mean of the three. Its published tables show the best of the three by "
        "test accuracy, which is higher.",
        classifiers=("resnet-110", "wrn-40-4", "resnext-29"),
        num_samples=60_000,
        mean="dpimagebench",
    ),
}


def get_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f"one of the presets {', '.join(PRESETS)}", repr(name), "Choose one of them.")
    return PRESETS[name]


def run_preset(
    name: str,
    synthetic: ImageSet,
    test: ImageSet,
    *,
    seeds: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[Score]:
    """gen2real by a published protocol: a score per classifier, then their mean where the protocol has one.

    Raises: ConfigError for an unknown preset, and what `gen2real` raises.
    """
    preset = get_preset(name)
    seeds = preset.seeds if seeds is None else seeds

    measured = gen2real(synthetic, test, classifiers=preset.classifiers, seeds=seeds, device=device, progress=progress)
    scores = [_stamp(score, name, synthetic, len(seeds)) for score in measured]
    return scores if preset.mean is None else [*scores, average(scores, f"gen2real/{preset.mean}")]


def calibrated_metric(preset: str | None) -> str:
    """The name of the calibrated mean over the classifiers of a preset, or over others.

    The paper's name stands for its thirteen classifiers alone.
    """
    return "gen2real/calibrated" if preset == "gs-wgan" else f"gen2real/{preset or 'mean'}-calibrated"


def _stamp(score: Score, name: str, synthetic: ImageSet, num_seeds: int) -> Score:
    """Says in the score which protocol it follows, and where the given images or seeds are not what that asks for."""
    wanted = PRESETS[name].num_samples
    counts = torch.bincount(synthetic.labels, minlength=synthetic.spec.num_classes)
    notes = list(score.details["notes"])
    if wanted is not None and len(synthetic) != wanted:
        notes.append(f"{len(synthetic):,} synthetic images, where the protocol asks for {wanted:,}")
    if num_seeds != len(PRESETS[name].seeds):
        notes.append(f"{num_seeds} seeds, where the protocol asks for {len(PRESETS[name].seeds)}")
    if int(counts.max() - counts.min()) > 1:
        notes.append("the classes of the synthetic images are not balanced, which the protocol asks for")
    return replace(score, details={**score.details, "preset": name, "notes": notes})
