"""Settings of the sketch: what they are by default and by preset, and how many kinds of a class noise allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veilset.engines.contexts import PublicFacts
from veilset.engines.option_checks import at_least_one, option
from veilset.errors import ConfigError
from veilset.nets.jitter import jitter_of
from veilset.privacy.events import Gaussian
from veilset.sketch_file import MAX_ROUNDS, Layout, row_bound

NETWORKS_ASSUMED = (
    "the networks come from a public seed or were trained on released synthetic images, never on the data"
)
"""Of every claim about a sketch."""

CLASSES_PER_STEP = 40
LEAST_CLASSES = 10
"""Where there are fewer, a step has as many images as if there were so many: eight images teach next to nothing."""
LEAST_PER_GROUP = 4
"""Images of a kind in a step: fewer would tell little about their mean."""
MOST_KINDS = 12
CLEAR_KIND = 160
"""Images of a kind for each standard deviation of the noise: fewer, and its sums say less than those of its class."""


@dataclass(frozen=True, kw_only=True)
class SketchConfig:
    """Settings of the sketch. What they were chosen on, and by what: docs/methods.md."""

    preset: str = option("fast", "fast for two CPU cores; balanced or best for a GPU")
    networks: int = option(4, "random networks of the first round")
    width: int = option(32, "channels of every network")
    rounds: int = option(2, "looks at the images; networks of later ones are trained on synthetic images")
    kinds: int = option(0, "of images in a class, from the second round on; 0: as many as the noise allows")
    first_share: float = option(0.2, "of mu^2 for the first round, which only has to give images to train networks on")
    trained_networks: int = option(4, "of each later round")
    network_steps: int = option(150, "in which these are trained")
    tone_share: float = option(0.1, "of the row's squared length: brightness by place, which the networks cannot see")
    total_weight: float = option(0.15, "the count's weight beside a row of length 1: costs 1 % more noise")
    network_seed: int = option(0, "of the random networks; public")
    jitter: str = option("objects", "the kind of images: handwriting, objects or none")
    latent_size: int = option(32, "random numbers behind an image")
    channels: int = option(64, "of the generator, at its smallest map")
    first_steps: int = option(400, "of the generator after every round but the last")
    steps: int = option(3000, "of the generator after the last round")
    images_per_class: int = option(4, "that a step shows")
    networks_per_step: int = option(1, "whose features a step compares")
    learning_rate: float = option(0.008, "of the generator")
    training_images: int = option(5000, "synthetic ones on which networks are trained")

    def __post_init__(self) -> None:
        whole = ("networks", "width", "trained_networks", "network_steps", "latent_size", "channels", "first_steps")
        at_least_one(self, *whole, "steps", "networks_per_step", "training_images")
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise ConfigError(f"1 to {MAX_ROUNDS} rounds", f"{self.rounds}", "Each round looks at all images once.")
        for name in ("first_share", "tone_share"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} between 0 and 1", f"{getattr(self, name)}", "It is a share.")
        if self.kinds < 0:
            raise ConfigError("kinds of at least 0", f"{self.kinds}", "0 takes as many as the noise allows.")
        if self.images_per_class < 2:  # the mean of a class is estimated for each image from the other ones
            raise ConfigError("images_per_class of at least 2", f"{self.images_per_class}", "Correct the option.")
        if not (1e-9 <= self.learning_rate <= 1 and 0 < self.total_weight <= 10):
            raise ConfigError("learning_rate up to 1, total_weight up to 10", "others", "Correct the options.")
        jitter_of(self.jitter)

    @property
    def shares(self) -> list[float]:
        """Shares of mu^2, round by round: the first one as set, the others alike."""
        if self.rounds == 1:
            return [1.0]
        return [self.first_share, *[(1 - self.first_share) / (self.rounds - 1)] * (self.rounds - 1)]

    def multipliers(self, noise_multiplier: float) -> list[float]:
        """Of the rounds, whose releases together cost what one with `noise_multiplier` does."""
        return [noise_multiplier / math.sqrt(share) for share in self.shares]

    def events(self, noise_multiplier: float) -> tuple[Gaussian, ...]:
        """One release a round."""
        return tuple(map(Gaussian, self.multipliers(noise_multiplier)))

    @property
    def layout(self) -> Layout:
        return Layout(
            networks=self.networks, width=self.width, network_seed=self.network_seed,
            total_weight=self.total_weight, tone_share=self.tone_share,
            later=((self.trained_networks, self.width, self.kinds),) * (self.rounds - 1),
        )  # fmt: skip

    @property
    def last_kinds(self) -> int:
        """Of a class in the last round: the first round knows no kinds."""
        return self.kinds if self.rounds > 1 else 1

    def images_of_a_step(self, num_classes: int) -> int:
        return min(CLASSES_PER_STEP, max(LEAST_CLASSES, num_classes)) * self.images_per_class

    def groups_of_a_step(self, num_classes: int, kinds: int) -> tuple[int, int]:
        """How many groups a step of the generator shows, and how many images of each: as many images for any kinds."""
        images = self.images_of_a_step(num_classes)
        wanted = max(min(LEAST_PER_GROUP, self.images_per_class), self.images_per_class // kinds)
        groups = min(num_classes * kinds, max(1, images // wanted))
        return groups, images // groups


def clear_kinds(config: SketchConfig, facts: PublicFacts, noise_multiplier: float) -> int:
    """Kinds of a class whose sums stand out from noise of this multiplier, by public numbers alone."""
    noise = noise_multiplier * facts.sensitivity(row_bound(config.total_weight))
    images = facts.declared_size / facts.spec.num_classes
    return max(1, min(MOST_KINDS, int(images / (CLEAR_KIND * noise))))


# Trained for long, a generator learns the noise of a kind's sums too: with a GPU, classes are of one kind.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fast": {},
    "balanced": {
        "networks": 100, "width": 128, "trained_networks": 24, "network_steps": 600, "channels": 256,
        "first_steps": 3000, "steps": 20_000, "images_per_class": 16, "networks_per_step": 2, "learning_rate": 0.004,
        "training_images": 20_000, "kinds": 1,
    },
    "best": {
        "networks": 100, "width": 128, "trained_networks": 96, "network_steps": 1500, "channels": 256,
        "first_steps": 6000, "steps": 100_000, "images_per_class": 16, "networks_per_step": 2, "learning_rate": 0.004,
        "training_images": 40_000, "kinds": 1,
    },
}  # fmt: skip
