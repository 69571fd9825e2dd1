"""DP-GAN-DPAC: GS-WGAN with a classifier beside each critic, so that classifiers learn from generated images.

Paper: Chen, Liu, Ma, Nepal and Xu, "Private Image Generation with Dual-Purpose Auxiliary Classifier" (2023). Its
accounting is that of GS-WGAN and refuted with it; its code sanitises critic and classifier apart, and 1000 images a
step where 32 are accounted for, which costs far more.
Unit of privacy: one record, or one user, all of whose images are in one shard.
Released: as by GS-WGAN, once a step. Only what a teacher wants differs: from some step on its wish for a generated
image is the critic's with weight b and the classifier's with weight 1 - b, added before anything is bounded.
Why the bound holds: a classifier is trained on generated images and on the shard of its own critic, from public weights
and with a random stream of its own shard. So one unit still changes one teacher, and a teacher still has one row
(together) or one row an image (in turn), bounded as before: a step has the sensitivity and the price of GS-WGAN's,
whatever the classifier has become. The number of images in a step is the planned one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veilset.data.spec import ImageSpec
from veilset.engines.classifying_teachers import ClassifyingTeachers, Curriculum
from veilset.engines.critic_memory import bytes_kept
from veilset.engines.critic_training import CriticStack
from veilset.engines.option_checks import option
from veilset.engines.shard_teaching import ShardTaught
from veilset.engines.teaching import Teachers
from veilset.engines.teaching_settings import COPIES, TeachingSettings
from veilset.errors import ConfigError
from veilset.methods.base import Synthesizer, register


@dataclass(frozen=True, kw_only=True)
class DpacConfig(TeachingSettings):
    """Settings of GS-WGAN, and of the classifiers. Table 4 of the paper: fake_steps 0 is "w/o g2r", real_steps 0 "w/o
    r2g", in_sequence false "w/o seq", fresh_classifiers false "w/o init".
    """

    critic_share: float = option(0.8, "the critic's part in what a teacher wants; paper")
    classifier_start: float = option(0.3, "share of the steps before there are classifiers; paper: 6000 of 20,000")
    fake_steps: int = option(10, "of a classifier on generated images; paper")
    real_steps: int = option(10, "of a classifier on its shard; paper")
    in_sequence: bool = option(True, "false: the mean of both losses, in as many steps")
    fresh_classifiers: bool = option(True, "false: a classifier is kept for the next step")
    classifier_rate: float = option(1e-4, "learning rate of the classifiers; paper")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("critic_share", "classifier_start"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} from 0 to 1", f"{getattr(self, name)}", "Correct the option.")
        if self.fake_steps < 0 or self.real_steps < 0 or self.fake_steps + self.real_steps == 0:
            raise ConfigError("fake_steps or real_steps, or both", "neither, or less", "Correct the options.")
        if not 1e-9 <= self.classifier_rate <= 1:
            raise ConfigError("a classifier_rate up to 1", f"{self.classifier_rate}", "Correct the option.")

    @property
    def first_lesson(self) -> int:
        return round(self.classifier_start * self.steps)

    @property
    def curriculum(self) -> Curriculum:
        return Curriculum(
            first_lesson=self.first_lesson, critic_share=self.critic_share, fake_steps=self.fake_steps,
            real_steps=self.real_steps, in_sequence=self.in_sequence, fresh=self.fresh_classifiers,
            rate=self.classifier_rate,
        )  # fmt: skip

    def bytes_of_teachers(self, spec: ImageSpec, device: str = "cpu") -> int:
        # Classifiers that are kept for the next step go into checkpoints, as critics do.
        copies = 1 if self.fresh_classifiers else COPIES[device]
        return super().bytes_of_teachers(spec, device) + copies * self.shards * bytes_kept(self.net(spec))

    def products(self, spec: ImageSpec) -> float:
        # A classifier's step is on one batch, a critic's on two and on what lies between them.
        learning = (self.fake_steps + self.real_steps) * self.step_products(spec) / (2 if self.in_sequence else 1)
        lesson = learning + 2 * self.images_per_step * self.net(spec).products
        lessons = self.steps - self.first_lesson
        if not self.in_turn:
            return super().products(spec) + lessons * self.shards * lesson
        fakes = self.critic_batch * (self.fake_steps + (0 if self.in_sequence else self.real_steps))
        return super().products(spec) + lessons * (lesson + fakes * self.image_products(spec))


@register
class Dpac(ShardTaught, Synthesizer):
    """As GS-WGAN, with a classifier that has its part in every teacher's answer."""

    name: ClassVar[str] = "dpac"
    summary: ClassVar[str] = (
        "gs-wgan with a classifier beside each critic, trained on generated and then on real images"
    )
    paper: ClassVar[str] = "Chen et al. 2023"
    Config: ClassVar[type] = DpacConfig
    assumptions: ClassVar[tuple[str, ...]] = (
        "a record keeps its id and so its shard; each critic and classifier sees its own shard, released values and "
        "public draws only",
    )

    def teachers(self, config: DpacConfig, critics: CriticStack) -> Teachers:
        return ClassifyingTeachers(critics, config.curriculum)
