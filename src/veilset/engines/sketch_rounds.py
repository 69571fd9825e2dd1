"""The rounds of a sketch: measuring in the vault, and between and after it generators and networks on the open side.

What a round measures is one Gaussian release, which `measure` makes through the door; all other functions see released
sums alone. `methods/sketch.py` says why its bound holds. Other methods begin with a sketch on the same ledger.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.data.spec import Images, ImageSpec
from veilset.engines.checkpointing import read_checkpoint
from veilset.engines.contexts import FitContext, OpenContext
from veilset.engines.feature_sums import BATCH, sum_by_label
from veilset.engines.matching import Effort, Streams, match
from veilset.engines.prototypes import kinds_among
from veilset.engines.sketch_costs import MOST_ROWS, rows_at_once, training_images
from veilset.engines.sketch_settings import SketchConfig
from veilset.engines.targets import Released
from veilset.engines.trained_features import centred, train_bank
from veilset.nets.generators import UpsamplingGenerator
from veilset.nets.jitter import jitter_of
from veilset.nets.measurement import Measurement
from veilset.nets.mixed_features import MixedBank
from veilset.nets.tone_bank import ToneBank
from veilset.privacy.bounds import Bounded, normalise_rows, with_total
from veilset.randomness import initialise, named_generator
from veilset.sketch_file import Round, network_shapes, row_bound

CHECKPOINT_EVERY = 1000
OVERSHOOT = 0.25
"""Of the generator beyond black and white: backgrounds are black after thousands of steps, not after millions."""


def sketched(config: SketchConfig, images: Images, context: FitContext, noise_multiplier: float) -> UpsamplingGenerator:
    """All rounds: a generator whose images have the mean features that were released last.

    Args:
        noise_multiplier: of all rounds together; each has more, by its share.
    """
    rounds: list[Round] = []
    generator = None
    multipliers = config.multipliers(noise_multiplier)
    noises = [multiplier * context.facts.sensitivity(row_bound(config.total_weight)) for multiplier in multipliers]
    evening = context.generator if context.noise_drawn else None
    for number, multiplier in enumerate(multipliers):
        if generator is None:
            bank = config.layout.random_bank(context.facts.spec)
        else:
            bank = train_networks(config, generator, number, config.kinds, context)
        rounds.append(Round(bank, measure(config, images, bank, number, multiplier, context)))
        steps = config.steps if number == config.rounds - 1 else config.first_steps
        released = Released(rounds, noises, config.total_weight, context.facts.declared_size, evening)
        generator = synthesise(config, released, context, steps=steps)
    assert generator is not None
    return generator


def measure(
    config: SketchConfig, images: Images, bank: Measurement, number: int, multiplier: float, context: FitContext
) -> Tensor:
    """The private step: the sums of round `number` with noise, through the door. Drawn once, then kept."""
    kept = context.checkpoints.load(f"round {number}")
    if kept is not None:
        with read_checkpoint(f"round {number}"):
            return kept["sums"].view(images.spec.num_classes * bank.kinds_per_class, bank.numbers + 1)
    bank = bank.to(context.device)

    def rows_of(batch: Tensor) -> Bounded:
        return with_total(normalise_rows(bank.rows(batch)), config.total_weight)

    def group_of(rows: Bounded, labels: Tensor) -> Tensor:
        if bank.kinds is None:
            return labels
        return bank.kinds.of(rows.grid_rows[:, : bank.numbers] * rows.grid_step, labels)

    total = sum_by_label(
        images, rows_of, unit=context.facts.unit, rows_per_user=context.facts.rows_per_user,
        device=context.device, batch=rows_at_once(bank.numbers), kinds=bank.kinds_per_class, group_of=group_of,
        progress=lambda done, count: context.progress(f"measuring, round {number + 1}", done, count),
    )  # fmt: skip
    sums = context.door.release_sum(total, multiplier).float().cpu()
    context.checkpoints.save(f"round {number}", {"sums": sums})
    return sums


def generator_of(config: SketchConfig, spec: ImageSpec, kinds: int) -> UpsamplingGenerator:
    return UpsamplingGenerator(
        spec, latent_size=config.latent_size, channels=config.channels, jitter=jitter_of(config.jitter), kinds=kinds,
        overshoot=OVERSHOOT,
    )  # fmt: skip


def synthesise(config: SketchConfig, released: Released, context: OpenContext, *, steps: int) -> UpsamplingGenerator:
    """The open step: a generator whose images have the released mean features. Costs no privacy."""
    number, spec = len(released.rounds) - 1, context.facts.spec
    generator = generator_of(config, spec, released.kinds).to(context.device)
    initialise(generator, context.generator(f"sketch weights {number}"))
    if released.kinds > 1:
        generator.kind_shares.copy_(released.kind_shares())
    groups, each = config.groups_of_a_step(spec.num_classes, released.kinds)
    return match(
        generator,
        released.of_kinds(context.device),
        Effort(
            steps=steps, groups_per_step=groups, images_per_group=each, networks_per_step=config.networks_per_step,
            learning_rate=config.learning_rate, checkpoint_every=CHECKPOINT_EVERY,
        ),
        streams=Streams(
            draws=context.generator(f"sketch latents {number}"),
            order=named_generator(context.seed, f"sketch order {number}"),
        ),
        checkpoints=context.checkpoints,
        name=f"generator {number}",
        progress=lambda done, total: context.progress(f"training the generator, round {number + 1}", done, total),
    )  # fmt: skip


def train_networks(
    config: SketchConfig, generator: UpsamplingGenerator, number: int, kinds: int, context: OpenContext
) -> Measurement:
    """Networks, and prototypes of `kinds` of a class, for round `number`, from images of the generator so far.

    An open step as well.
    """
    kept = context.checkpoints.load(f"networks {number}")
    spec = context.facts.spec
    if kept is not None:
        with read_checkpoint(f"networks {number}"):
            found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in kept.items()}
            if found != network_shapes(spec, config.trained_networks, config.width, kinds):
                raise ValueError("networks of another shape")  # noticed now, and not when a round was paid for
            return Measurement.from_tensors(kept, spec.channels, config.tone_share).to(context.device)
    draws = context.generator(f"sketch networks {number}")
    labels = torch.arange(training_images(config, spec), device=context.device) % spec.num_classes
    with torch.no_grad():
        images = torch.cat([generator.sample(some, draws) for some in labels.split(BATCH)])
    networks = train_bank(
        images, labels, spec, count=config.trained_networks, width=config.width, steps=config.network_steps,
        jitter=generator.jitter, draws=draws,
        progress=lambda done, total: context.progress(f"training networks for round {number + 1}", done, total),
    )  # fmt: skip
    # Tones have no centre: seen from images that are too bright, darker ones look alike however dark they are.
    mixtures = centred(MixedBank(centred(networks, images)), images)
    bank = Measurement(mixtures, ToneBank(spec.channels).to(context.device), config.tone_share)
    if kinds > 1:
        some = slice(max(MOST_ROWS // bank.numbers, 2 * kinds * spec.num_classes))
        bank.kinds = kinds_among(unit_rows(bank, images[some]), labels[some], spec.num_classes, kinds, draws)
    context.checkpoints.save(f"networks {number}", bank.state_dict())
    return bank


def unit_rows(bank: Measurement, images: Tensor) -> Tensor:
    """(n, channels, height, width) in [0, 1] -> (n, numbers) rows of length 1."""
    return torch.cat([F.normalize(bank.rows(some), dim=1).float() for some in images.split(rows_at_once(bank.numbers))])
