"""From a released sketch to a model or to a few images. Open side: no image is read, nothing is charged.

The result carries the claim and the ledgers of the sketch unchanged, because nothing that is computed from released
values and public settings alone can cost privacy; it can be repeated with other settings for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from veilset.artifact import Privacy, privacy_bytes, write_release
from veilset.data import check_writable, is_archive, write_images
from veilset.data.spec import ImageSet, to_bytes
from veilset.engines.sketch_rounds import synthesise, train_networks
from veilset.engines.sketch_settings import SketchConfig
from veilset.engines.targets import Released
from veilset.errors import ConfigError
from veilset.files import require_new_file, write_atomically
from veilset.goals import model_config, model_files
from veilset.methods.base import Forecast, OpenContext, Progress, make_config
from veilset.methods.plan import Plan
from veilset.methods.sketch import Sketch
from veilset.model import Model, from_pretrained
from veilset.nets.jitter import jitter_of
from veilset.pixel_sets import match_pixels
from veilset.privacy.events import NOTHING
from veilset.randomness import named_generator
from veilset.run_folder import RunFolder
from veilset.sharing import verify
from veilset.sketch_file import FILE, networks_bytes
from veilset.sketch_release import SketchRelease, open_sketch

METHOD = Sketch()
OPTIONS = ("steps", "images_per_class", "networks_per_step", "learning_rate", "jitter", "latent_size", "channels")
"""Settings of making a model from a sketch."""
PIXEL_OPTIONS = ("steps", "networks_per_step", "jitter")
"""Settings of making a few images from it."""
NETWORK_OPTIONS = ("trained_networks", "network_steps", "training_images")
"""Settings of training networks for a further round."""


def synthesize(
    path: Path,
    out: Path,
    *,
    options: Mapping[str, Any],
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
    features_out: Path | None = None,
    resume: bool = False,
) -> Model:
    """Trains a model from the sketch at `path` alone, into a new run folder.

    Args:
        features_out: also trains networks on the synthetic images, for a further round of measuring, and writes them.
        resume: goes on with the interrupted run in `out`; with `features_out`, with a finished one too.
    """
    sketch, config = _opened(path, options, OPTIONS if features_out is None else (*OPTIONS, *NETWORK_OPTIONS))
    if features_out is not None:
        require_new_file(features_out)
    plan = _plan(sketch, config, seed)
    if resume:
        folder = RunFolder.reopen(out, plan, sketch.data, finished_too=features_out is not None)
    else:
        folder = RunFolder.create_open(out, plan, RunFolder(path), sketch.data)
    context = OpenContext(
        facts=sketch.facts, seed=seed, device=torch.device(device), checkpoints=folder,
        progress=folder.logging(progress),
    )  # fmt: skip
    started = time.perf_counter()
    released = _released(sketch, context.generator)
    generator = synthesise(config, released, context, steps=config.steps)
    if features_out is not None:
        # A further round is one round, and taken to be as noisy as the last one.
        further = METHOD.settled(replace(config, rounds=1), sketch.facts, sketch.noise_multipliers[-1])
        number = len(sketch.layout.rounds)
        networks = train_networks(config, generator, number, further.kinds, context)
        write_atomically(features_out, networks_bytes(networks))
        folder.forget(f"networks {number}")  # others may be asked for next
    if not folder.finished:
        release = {**model_config(plan), "sketch": sketch.described()}
        files = model_files(release, sketch.spec, generator, _unpublished(sketch))
        write_release(folder.release, {**files, FILE: sketch.data})
        folder.log(event="finished", seconds=round(time.perf_counter() - started, 3))
    return from_pretrained(out)


def synthesize_images(
    path: Path,
    out: Path,
    per_class: int,
    *,
    options: Mapping[str, Any],
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> SketchRelease:
    """Writes `per_class` optimised images of each class, as a folder or .npz file, and the claim beside them."""
    sketch, config = _opened(path, options, PIXEL_OPTIONS)
    claim_path = claim_beside(out)
    if claim_path.exists():
        raise ConfigError("a new name for images and claim", f"{claim_path} exists", "Choose another name.")
    check_writable(out, archive=is_archive(out))
    released = _released(sketch, partial(named_generator, seed))
    pixels = match_pixels(
        released.of_classes(torch.device(device)), sketch.spec, per_class=per_class, steps=config.steps,
        networks_per_step=config.networks_per_step,
        jitter=jitter_of(config.jitter), seed=seed, device=torch.device(device),
        progress=lambda done, total: progress("optimising images", done, total),
    )  # fmt: skip
    labels = torch.arange(sketch.spec.num_classes).repeat_interleave(per_class)
    images = ImageSet(spec=sketch.spec, pixels=to_bytes(pixels).cpu(), labels=labels)
    write_images(images, out)
    write_atomically(claim_path, privacy_bytes(_unpublished(sketch)))
    return sketch


def claim_beside(images: Path) -> Path:
    """Where the claim of a few optimised images is written."""
    return images.with_name(f"{images.name}.privacy.json")


def open_config(sketch: SketchRelease, options: Mapping[str, Any], used: Sequence[str] = OPTIONS) -> SketchConfig:
    """Settings of the open side beside those the sketch was measured with; kinds are those of a further round.

    Raises: ConfigError for an option that is not `used`, or that belongs to the sketch: it cannot be changed without
        measuring again.
    """
    allowed = ("preset", *used)
    known = asdict(SketchConfig())
    fixed = [name for name in options if name in known and name not in allowed]
    if fixed:
        raise ConfigError(
            f"options that are used here: {', '.join(allowed)}",
            ", ".join(fixed),
            "Drop it: the sketch has settled it, or it is for `veilset fit`, a model or --features-out.",
        )
    config = make_config(METHOD, options)
    assert isinstance(config, SketchConfig)
    return replace(config, **_measured(sketch))


def _measured(sketch: SketchRelease) -> dict[str, Any]:
    layout = sketch.layout
    return {
        "networks": layout.networks, "width": layout.width, "network_seed": layout.network_seed,
        "total_weight": layout.total_weight, "tone_share": layout.tone_share, "rounds": len(layout.rounds),
    }  # fmt: skip


def _released(sketch: SketchRelease, generator: Callable[[str], torch.Generator]) -> Released:
    evening = None if sketch.claim.epsilon is None else generator  # without a claim, without noise
    return Released(sketch.rounds, sketch.noises, sketch.layout.total_weight, sketch.facts.declared_size, evening)


def _opened(path: Path, options: Mapping[str, Any], used: Sequence[str]) -> tuple[SketchRelease, SketchConfig]:
    """The sketch after checking it as anyone can: its claim is going to be repeated."""
    sketch = open_sketch(path)
    config = open_config(sketch, options, used)
    verify(path, second=False)
    return sketch, config


def _unpublished(sketch: SketchRelease) -> Privacy:
    """A paper's formula is about its own fit; beside a model made in another way it would say nothing."""
    return replace(sketch.privacy, claim=replace(sketch.claim, published=None))


def _plan(sketch: SketchRelease, config: SketchConfig, seed: int) -> Plan:
    """What this run may release: nothing that was not released before."""
    values = asdict(config)
    return Plan(
        method=METHOD.name,
        config={
            **{name: values[name] for name in (*_measured(sketch), *OPTIONS)},
            "kinds": sketch.layout.rounds[-1][2],
        },
        facts=sketch.facts,
        accounting="none" if sketch.claim.epsilon is None else "proven",
        epsilon_target=None,
        epsilon_planned=sketch.claim.epsilon,
        delta=sketch.claim.delta,
        noise_multiplier=1.0,  # never used: there is no door
        planned=NOTHING,
        reserve=NOTHING,
        published=None,
        forecast=Forecast(signal_to_noise=1.0, seconds=0.0, megabytes=0.0, released="nothing new"),
        seed=seed,
    )
