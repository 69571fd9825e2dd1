"""What a sketch takes and gives, before anything is measured: by public numbers alone, in their order of magnitude.

Measuring is all that `veilset sketch` does, and what a fit begins with; then a fit trains.
"""

from __future__ import annotations

import math
from dataclasses import replace

from veilset.data.load import IN_MEMORY
from veilset.data.spec import ImageSpec
from veilset.engines.contexts import Forecast, PublicFacts
from veilset.engines.feature_sums import BATCH
from veilset.engines.sketch_settings import SketchConfig
from veilset.engines.trained_features import BATCH as TRAINING_BATCH
from veilset.engines.trained_features import training_bytes
from veilset.privacy.claim import shown
from veilset.sketch_file import Layout, later_row_length, row_bound

ROW_VALUES = 1 << 24
"""Numbers in the rows of one batch: bounds the memory of a pass, whatever the bank."""
MOST_ROWS = 1 << 27
"""Numbers of the rows by which kinds are told apart: half a gigabyte."""
EFFECTIVE_NUMBERS = 200
"""Directions in which mean features of image classes differ noticeably; a forecast needs no more than its order."""
RATE = 1.25e10
"""Products a second, on two cores."""
AT_LEAST_SECONDS, AT_LEAST_MEGABYTES = 10, 400
"""For libraries, files and the last step of anything."""


def rows_at_once(numbers: int) -> int:
    """Images of a batch whose rows, of so many numbers, fit into the memory of a pass."""
    return max(1, min(BATCH, ROW_VALUES // numbers))


def training_images(config: SketchConfig, spec: ImageSpec) -> int:
    """Ten of every class and, where these leave room, as many as fit into half a gigabyte."""
    return max(10 * spec.num_classes, min(config.training_images, (1 << 27) // spec.num_values))


def forecast_of_measuring(layout: Layout, facts: PublicFacts, noise_multiplier: float, *, start: int = 0) -> Forecast:
    """Of the rounds of a sketch from number `start` on, and of nothing that is trained for them or with them."""
    spec = facts.spec
    layout.check_size(spec)
    rounds, rows = layout.rounds[start:], layout.row_lengths(spec)[start:]
    sensitivity = facts.sensitivity(row_bound(layout.total_weight))
    signal = facts.declared_size / spec.num_classes / 2
    products = sum(count * _products(spec, width) for count, width, _ in rounds)
    later = f", then {len(rounds) - 1} more {_groups(rounds[-1][2])}" if len(rounds) > 1 else ""
    return Forecast(
        signal_to_noise=signal / (noise_multiplier * sensitivity * math.sqrt(EFFECTIVE_NUMBERS)),
        seconds=AT_LEAST_SECONDS + facts.declared_size * products / RATE,
        # Images, rows of a batch, and for every group a row of sums, of means and of residuals.
        megabytes=AT_LEAST_MEGABYTES
        + 1e-6 * min(facts.declared_size * spec.num_values, IN_MEMORY)
        + 64e-6 * max(row * rows_at_once(row) for row in rows)
        + sum(16e-6 * spec.num_classes * kinds * row for (_, _, kinds), row in zip(rounds, rows, strict=True)),
        released=f"{_groups(rounds[0][2])} a noisy sum of measurements of length 1 and a count{later}; "
        f"{facts.change} moves it by at most {shown(sensitivity)}",
    )


def forecast_of_sketch(config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> Forecast:
    """Of all rounds and of all that is trained."""
    measuring = forecast_of_measuring(config.layout, facts, noise_multiplier)
    return replace(
        measuring,
        seconds=measuring.seconds + training_seconds(config, facts.spec),
        megabytes=measuring.megabytes + training_megabytes(config, facts.spec),
    )


def training_seconds(config: SketchConfig, spec: ImageSpec) -> float:
    """Of generators and of networks for later rounds: there and back through the networks."""
    later = config.rounds - 1
    steps = config.steps + config.first_steps * later
    shown = config.images_of_a_step(spec.num_classes) * steps * config.networks_per_step
    networks = TRAINING_BATCH * config.network_steps * config.trained_networks * later
    return 3 * (shown + networks) * _products(spec, config.width) / RATE


def training_megabytes(config: SketchConfig, spec: ImageSpec) -> float:
    """What networks of later rounds are trained on and in, and the rows that tell kinds apart, as pieces and as one."""
    if config.rounds == 1:
        return 0.0
    images = training_images(config, spec)
    rows = min(MOST_ROWS, images * later_row_length(spec, config.trained_networks)) if config.kinds > 1 else 0
    return 4e-6 * images * spec.num_values + 1e-6 * training_bytes(config.width, spec) + 8e-6 * rows


def _products(spec: ImageSpec, width: int) -> int:
    """Of one network and one image: two convolutions of the second block dominate."""
    return spec.height * spec.width * width**2 * 3


def _groups(kinds: int) -> str:
    return "per class" if kinds == 1 else f"for each of {kinds} kinds of a class"
