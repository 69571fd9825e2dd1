"""Measuring only: a run that ends with a released sketch. Everything that follows needs no image any more.

A second round goes on from an earlier sketch with networks that were trained on synthetic images. Its release holds the
rounds and the ledgers of both, and claims their composition: the losses of the same people add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from veilset.artifact import Privacy, combined, read_release, write_release
from veilset.data.spec import Images
from veilset.engines.checkpointing import read_checkpoint
from veilset.engines.sketch_costs import forecast_of_measuring
from veilset.engines.sketch_rounds import measure
from veilset.engines.sketch_settings import SketchConfig
from veilset.errors import ConfigError
from veilset.goals import Terms
from veilset.methods.base import FitContext, make_config
from veilset.methods.plan import Plan
from veilset.methods.sketch import Sketch
from veilset.nets.measurement import Measurement
from veilset.privacy.accounting import price
from veilset.privacy.claim import Claim
from veilset.privacy.events import Composed
from veilset.privacy.ledger import PrivacyLedger
from veilset.run import execute_for, resume_for
from veilset.run_folder import RunFolder
from veilset.sharing import verify
from veilset.sketch_file import MAX_ROUNDS, Layout, Round, read_networks, round_tensors, same_networks
from veilset.sketch_release import (
    CONTINUED,
    SketchRelease,
    differing,
    open_sketch,
    receipts,
    sketch_files,
)

METHOD = Sketch()
OPTIONS = ("preset", "networks", "width", "network_seed", "total_weight", "tone_share")
"""Settings of the method that belong to a sketch; all others are of the open side."""
BEFORE = "before"
"""Where a continued run keeps the sketch it goes on from, in its vault."""


@dataclass(frozen=True)
class SketchGoal:
    """What a measuring run does and releases; with `before`, it adds one round to that sketch."""

    before: SketchRelease | None = None
    bank: Measurement | None = None
    """Networks of the new round."""
    kind = "sketch"

    @classmethod
    def after(cls, path: Path, features: Path) -> SketchGoal:
        """Goes on from a verified sketch with the networks of an untrusted file."""
        verify(path, second=False)
        before = open_sketch(path)
        if len(before.layout.rounds) >= MAX_ROUNDS:
            raise ConfigError(f"at most {MAX_ROUNDS} rounds", "one more", "Each costs privacy: stop here.")
        return cls(before, _networks(features, before))

    @classmethod
    def resumed(cls, folder: RunFolder) -> SketchGoal:
        """The goal an interrupted run began with, from its vault."""
        if not (folder.vault / BEFORE).is_dir():
            return cls()
        before = open_sketch(folder.vault / BEFORE)
        name = f"networks {len(before.layout.rounds)}"
        with read_checkpoint(name):
            kept = folder.load(name) or {}
            return cls(before, Measurement.from_tensors(kept, before.spec.channels, before.layout.tone_share))

    def check_begun(self, after: Path | None, features: Path | None) -> None:
        """Raises: ConfigError where a resumed run is given another sketch to go on from, or other networks."""
        other = []
        if after is not None and (self.before is None or open_sketch(after).data != self.before.data):
            other.append("--after")
        if features is not None and not self._has_networks(features):
            other.append("--features")
        if other:
            raise ConfigError(
                "the sketch and the networks this run was begun with, if any", f"others for {', '.join(other)}",
                "Drop them: a resume takes what it was begun with.",
            )  # fmt: skip

    def _has_networks(self, path: Path) -> bool:
        if self.before is None or self.bank is None:
            return False
        return same_networks(_networks(path, self.before).state_dict(), self.bank.state_dict())

    def mechanism(self, plan: Plan) -> Sketch:
        return METHOD

    @property
    def number(self) -> int:
        return 0 if self.before is None else len(self.before.layout.rounds)

    def settings(self, **options: Any) -> dict[str, Any]:
        """Of the method: those of a first round as chosen; those of a further one follow from what it goes on from.

        Raises: ConfigError for options that only matter when images are made, or that are settled already.
        """
        if self.before is None or self.bank is None:
            _check_of_a_sketch(options)
            return {**options, "rounds": 1}
        if options:
            raise ConfigError("no options of a first sketch", ", ".join(options), "They follow from --after.")
        layout = self.before.layout
        return {
            "rounds": 1, "networks": self.bank.networks.count, "width": self.bank.networks.width,
            "network_seed": layout.network_seed, "total_weight": layout.total_weight, "tone_share": layout.tone_share,
        }  # fmt: skip

    def check(self, plan: Plan) -> None:
        """Refuses a plan for something else, before anything is charged."""
        config = _config(plan)
        if plan.method != METHOD.name or config.rounds != 1 or plan.accounting == "published":
            raise ConfigError(
                "a plan for one round of the method sketch, with proven accounting",
                f"{plan.method}, {plan.config.get('rounds')} rounds, accounting {plan.accounting}",
                "Plan with --method sketch --rounds 1.",
            )
        if self.before is None:
            return
        wanted, found = differing(
            {**vars(self.before.facts), "delta": self.before.claim.delta, **self.settings()},
            {**vars(plan.facts), "delta": plan.delta, **plan.config},
        )
        if wanted:
            raise ConfigError(
                f"a further round on the terms of the first: {wanted}",
                found,
                "Measure the same images on the same terms, with the networks of --features.",
            )

    def planned(self, plan: Plan) -> Plan:
        """A plan for this goal, after checking it, with what measuring takes in place of what a whole fit would."""
        self.check(plan)
        forecast = forecast_of_measuring(self._layout(plan), plan.facts, plan.noise_multiplier, start=self.number)
        return replace(plan, forecast=forecast)

    def epsilon_in_all(self, plan: Plan) -> float | None:
        """Proven for this round and those before it together; None where nothing is."""
        if self.before is None:
            return plan.epsilon_planned
        if plan.epsilon_planned is None or self.before.claim.epsilon is None:
            return None
        spent = [[record.spent for record in part] for part in self.before.privacy.records]
        terms = plan.delta, plan.facts.adjacency
        return max(price(Composed((*events, plan.planned)), *terms).epsilon for events in spent)

    def _layout(self, plan: Plan) -> Layout:
        """Of what this goal releases."""
        if self.before is None or self.bank is None:
            return METHOD.layout(_config(plan))
        layout, networks = self.before.layout, self.bank.networks
        return replace(layout, later=(*layout.later, (networks.count, networks.width, self.bank.kinds_per_class)))

    def prepare(self, folder: RunFolder) -> None:
        folder.note_kind(self.kind)
        if self.before is not None and self.bank is not None:
            write_release(folder.vault / BEFORE, read_release(self.before.folder))
            folder.save(f"networks {self.number}", self.bank.state_dict())

    def work(self, plan: Plan, images: Images, context: FitContext) -> Round:
        config = _config(plan)
        bank = self.bank or METHOD.layout(config).random_bank(plan.facts.spec)
        sums = measure(config, images, bank, self.number, context.noise_multiplier, context)
        return Round(bank.cpu(), sums)

    def files(
        self, folder: RunFolder, plan: Plan, made: Round, ledger: PrivacyLedger, terms: Terms
    ) -> dict[str, bytes]:
        lines, tensors = tuple(ledger.lines()), round_tensors(self.number, made)
        if self.before is None:
            privacy = Privacy.of_run(Claim.from_parts([[ledger]], **vars(terms)), lines)
            parts = receipts(privacy, [made.sums])
        else:
            tensors = {**self.before.tensors, **tensors}
            privacy = self._continued(self.before, lines, terms)
            new = receipts(privacy, [*self.before.sums, made.sums])
            parts = tuple((*old, part[-1]) for old, part in zip(self.before.parts, new, strict=True))
        return sketch_files(plan.facts, self._layout(plan), parts, tensors, privacy)

    def load(self, path: Path) -> SketchRelease:
        return open_sketch(path)

    @staticmethod
    def _continued(before: SketchRelease, lines: tuple[str, ...], terms: Terms) -> Privacy:
        """The new round looks at everyone, so its ledger is added to every part."""
        parts = tuple((*part, lines) for part in before.privacy.parts)
        assumptions = (*terms.assumptions, *CONTINUED)
        return combined(parts, [before.claim], assumptions=assumptions, further=terms.stamps)


def execute_sketch(goal: SketchGoal, images: Images, plan: Plan, path: Path, **options: Any) -> SketchRelease:
    """Measures into a new folder; for the options see `run.execute_for`."""
    return execute_for(goal, images, goal.planned(plan), path, **options)


def resume_sketch(images: Images, path: Path, **options: Any) -> SketchRelease:
    """Continues an interrupted measurement: free until its noise was drawn, never drawn twice."""
    return resume_for(SketchGoal.resumed(RunFolder.open(path)), images, path, **options)


def _networks(path: Path, before: SketchRelease) -> Measurement:
    """Networks of an untrusted file, for a further round after `before`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"networks at {path}", f"{error}", "Make them with --features-out.") from error
    return read_networks(data, before.spec, before.layout.tone_share)


def _config(plan: Plan) -> SketchConfig:
    config = make_config(METHOD, plan.config) if plan.method == METHOD.name else SketchConfig()
    assert isinstance(config, SketchConfig)
    return config


def _check_of_a_sketch(options: Mapping[str, Any]) -> None:
    """Refuses what a sketch does not depend on; names that are no options at all are refused where it is made."""
    others = [name for name in options if name in asdict(SketchConfig()) and name not in OPTIONS]
    if others:
        raise ConfigError(
            f"options of a sketch: {', '.join(OPTIONS)}",
            ", ".join(others),
            "What images are made with is for `veilset synthesize`; rounds and kinds are for `veilset fit`.",
        )
