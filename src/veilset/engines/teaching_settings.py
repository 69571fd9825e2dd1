"""Settings of methods in which a generator is taught by critics on shards, and what a fit with them costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch

from veilset.data.spec import ImageSpec
from veilset.engines.checkpointing import steps_between
from veilset.engines.critic_memory import bytes_kept, spare_bytes
from veilset.engines.option_checks import at_least_one, option
from veilset.engines.sketch_first import SketchFirst
from veilset.engines.teaching import POOL_AT_ONCE, Effort
from veilset.errors import ConfigError
from veilset.nets.critics import Critics, conv_critics, dense_critics
from veilset.nets.jitter import jitter_of
from veilset.nets.spectral_generators import SpectralGenerator
from veilset.privacy.events import Schedule

CHECKPOINT_EVERY = 100
CHECKPOINT_EVERY_TURNS = 2000
"""Less often: the paper's critics, with what Adam knows of them, are 13 GB."""
CRITICS = {"dense": dense_critics, "conv": conv_critics}
TEACHERS = ("together", "in-turn")
COPIES = {"cpu": 3, "cuda": 1}
"""Of all critics in a device's memory while a checkpoint is written."""


@dataclass(frozen=True, kw_only=True)
class TeachingSettings(SketchFirst):
    """Defaults marked as the paper's are those of GS-WGAN (Chen et al. 2020)."""

    teachers: str = option(
        "together", "together: all critics answer in every step; in-turn: one of them, as in the paper"
    )
    schedule: str = option("uniform", "of critics in turn: uniform, as in the paper, or round-robin")
    shards: int = option(1000, "parts of the images, each with a critic of its own; paper: 1000")
    steps: int = option(3000, "releases, of which the generator takes one step each")
    images_per_step: int = option(32, "generated ones that critics answer for; paper: 32")
    critic: str = option("dense", "dense, or conv as in the paper")
    critic_width: int = option(32, "of its layers; paper: 64")
    critic_batch: int = option(16, "images of its own shard in a step of a critic; paper: 32")
    critic_steps: int = option(2, "before a release; paper: 5")
    critic_rate: float = option(1e-3, "learning rate of the critics; paper: 0.0001")
    warm_up: int = option(50, "steps of every critic before the first release; paper: 2000")
    pool: int = option(
        8, "generated images of each class that critics learn from before a release; not for critics in turn"
    )
    frequencies: int = option(
        12, "lowest ones of an image, in either direction, that are released; not for critics in turn"
    )
    jitter: str = option("objects", "the kind of images: handwriting, objects or none; not for critics in turn")
    latent_size: int = option(16, "random numbers behind an image; paper: 10")
    channels: int = option(64, "of the generator, at its smallest map")
    learning_rate: float = option(0.002, "of the generator; paper: 0.0001")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = ("shards", "steps", "images_per_step", "critic_width", "critic_batch", "critic_steps", "pool")
        at_least_one(self, *whole, "frequencies", "latent_size", "channels")
        if self.warm_up < 0 or not all(1e-9 <= rate <= 1 for rate in (self.learning_rate, self.critic_rate)):
            raise ConfigError("warm_up of at least 0 and learning rates up to 1", "others", "Correct the options.")
        for name, known in (("critic", CRITICS), ("teachers", TEACHERS), ("schedule", get_args(Schedule))):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} {' or '.join(known)}", f"{getattr(self, name)!r}", "Correct the option.")
        if self.turns == "round-robin" and not self.in_turn:
            raise ConfigError("schedule for critics in turn", "critics together", "Drop it: all answer in every step.")
        if self.turns == "round-robin" and self.steps <= self.shards:  # a round that a crash cut short counts as whole
            raise ConfigError(
                "more than one round of a round-robin schedule, or a crash would leave nothing to go on with",
                f"{self.steps} steps for {self.shards} shards",
                "Use fewer shards or more steps.",
            )
        jitter_of(self.jitter)
        if self.in_turn:
            self._refuse_what_only_critics_together_have()

    def _refuse_what_only_critics_together_have(self) -> None:
        for name in ("pool", "frequencies", "jitter", "sketch"):
            value, silent = getattr(self, name), (getattr(type(self), name), PAPER.get(name))
            if value not in silent:
                raise ConfigError(
                    f"{name} for critics together", f"{name} {value} for critics in turn",
                    "Drop it: images are neither sketched nor jittered, and gradients in them are released whole.",
                )  # fmt: skip

    @property
    def in_turn(self) -> bool:
        return self.teachers == "in-turn"

    def net(self, spec: ImageSpec) -> Critics:
        return CRITICS[self.critic](spec, self.critic_width)

    @property
    def turns(self) -> Schedule:
        return "round-robin" if self.schedule == "round-robin" else "uniform"

    def coarse_numbers(self, spec: ImageSpec) -> int:
        """Of an image in the basis of low frequencies."""
        return spec.channels * min(self.frequencies, spec.height) * min(self.frequencies, spec.width)

    @property
    def own_settings(self) -> dict[str, Any]:
        """Of the generator that critics then teach."""
        return {"jitter": self.jitter, "latent_size": self.latent_size, "channels": self.channels}

    @property
    def effort(self) -> Effort:
        if self.in_turn:  # as in the paper; its average has another warm-up, which is forgotten after 9,000 steps
            return Effort(
                steps=self.steps, learning_rate=self.learning_rate, fading=False, betas=(0.5, 0.9), average=0.999,
                checkpoint_every=steps_between(self.steps, CHECKPOINT_EVERY_TURNS),
            )  # fmt: skip
        return Effort(
            steps=self.steps, learning_rate=self.learning_rate, fading=True, betas=(0.5, 0.99), average=0.99,
            checkpoint_every=steps_between(self.steps, CHECKPOINT_EVERY),
        )  # fmt: skip

    def bytes_of_teachers(self, spec: ImageSpec, device: str = "cpu") -> int:
        """At most; of a GPU's critics the host has the copies."""
        return COPIES[device] * self.shards * bytes_kept(self.net(spec))

    def check_room(self, spec: ImageSpec, device: torch.device) -> None:
        """Raises: ConfigError where all critics, or what is beside them, are too much for the device's memory."""
        kept = self.bytes_of_teachers(spec, device.type)
        spare_bytes(self.net(spec), self.shards, self.critic_batch, device, kept)

    def bytes_of_pool(self, spec: ImageSpec) -> int:
        """Generated images that critics learn from, together, and two maps of the generator for those made at once."""
        images = 0 if self.in_turn else self.pool * spec.num_classes
        return 4 * images * spec.num_values + 8 * min(images, POOL_AT_ONCE) * self.channels * spec.height * spec.width

    def step_products(self, spec: ImageSpec) -> float:
        """Multiplications of one step of one critic, roughly."""
        net = self.net(spec)
        # Three passes forward and back, and its weights and moments through memory a few times.
        return 9 * self.critic_batch * net.products + 300 * net.num_weights

    def image_products(self, spec: ImageSpec) -> float:
        """Multiplications that one image of the paper's generator takes."""
        with torch.device("meta"):
            return SpectralGenerator(spec, latent_size=self.latent_size, channels=self.channels).products

    def products(self, spec: ImageSpec) -> float:
        """Multiplications of a fit, roughly."""
        products, batch, images = self.net(spec).products, self.critic_batch, self.images_per_step
        step = self.step_products(spec)
        teaching = self.steps * (self.critic_steps * step + 2 * images * products)
        if not self.in_turn:
            return self.shards * (teaching + self.warm_up * step)
        # Local generators mirror their critics; the generator makes fakes forward, and learns forward and back.
        game = self.critic_steps * (step + batch * products) + 5 * batch * products
        fakes = self.steps * (self.critic_steps * batch + 3 * images)
        return self.shards * self.warm_up * game + teaching + fakes * self.image_products(spec)


PAPER: dict[str, Any] = {
    "steps": 20_000, "critic": "conv", "critic_width": 64, "critic_batch": 32,
    "critic_steps": 5, "critic_rate": 1e-4, "warm_up": 2000, "jitter": "none", "latent_size": 10, "channels": 256,
    "learning_rate": 1e-4,
}  # fmt: skip
"""Of GS-WGAN and of those that follow it, where they differ from the defaults."""
