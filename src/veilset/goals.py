"""What a run is for: a model, or something else that is measured once and released (see `sketching`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn

from veilset.artifact import CLASSIFIER, LedgerParts, Privacy, model_bytes, privacy_bytes
from veilset.card import model_card
from veilset.classifier import METHOD as DP_SGD
from veilset.classifier import PrivateClassifier, classifier_files, open_classifier
from veilset.data.pictures import sample_grid
from veilset.data.spec import Images, ImageSpec
from veilset.methods.base import FitContext, Mechanism, WithSketch, get_method, make_config
from veilset.methods.plan import Plan
from veilset.model import Model, from_pretrained
from veilset.nets.classifiers import ConvNet
from veilset.partition import Partition, partitioned
from veilset.privacy.claim import Claim, Published
from veilset.privacy.ledger import PrivacyLedger
from veilset.run_folder import RunFolder
from veilset.sketch_file import FILE, sketch_bytes
from veilset.version import __version__

COLUMNS, FEWEST_COLUMNS = 10, 4
"""Of the sample picture, which pages show at one width: fewer would make giants of the images."""


class HasPrivacy(Protocol):
    """What a finished run is read back as."""

    @property
    def privacy(self) -> Privacy: ...


Made = TypeVar("Made")
Loaded = TypeVar("Loaded", bound=HasPrivacy, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a claim says beside the price of its ledger."""

    assumptions: tuple[str, ...]
    published: Published | None
    stamps: tuple[str, ...]


class Goal(Protocol[Made, Loaded]):
    """What a run is for: the work between opening and closing its ledger, and the release that is then written."""

    kind: str

    def mechanism(self, plan: Plan) -> Mechanism:
        """Whose plan it is, and whose assumptions the claim makes."""

    def prepare(self, folder: RunFolder) -> None:
        """Notes in a new folder what a resume must know: its kind, unless that is a model."""

    def work(self, plan: Plan, images: Images, context: FitContext) -> Made:
        """Vault work and releases through the context's door."""

    def files(self, folder: RunFolder, plan: Plan, made: Made, ledger: PrivacyLedger, terms: Terms) -> dict[str, bytes]:
        """The files of the release."""

    def load(self, path: Path) -> Loaded:
        """The finished release, read back and checked."""


class ModelGoal:
    """A fitted generator with its card and sample picture."""

    kind = "model"

    def mechanism(self, plan: Plan) -> Mechanism:
        return get_method(plan.method)

    def prepare(self, folder: RunFolder) -> None:
        """A folder without a note is a model's."""

    def work(self, plan: Plan, images: Images, context: FitContext) -> nn.Module:
        method = get_method(plan.method)
        return method.fit(make_config(method, plan.config), images, context)

    def files(
        self, folder: RunFolder, plan: Plan, made: nn.Module, ledger: PrivacyLedger, terms: Terms
    ) -> dict[str, bytes]:
        method = get_method(plan.method)
        settings = make_config(method, plan.config)
        claim = Claim.from_parts([[ledger]], **vars(terms))
        config = {
            **model_config(plan),
            "epsilon_target": plan.epsilon_target,
            "noise_multiplier": plan.noise_multiplier,
        }
        files = model_files(config, plan.facts.spec, made, Privacy.of_run(claim, ledger.lines()))
        if isinstance(method, WithSketch):
            files[FILE] = sketch_bytes(method.layout(settings), plan.facts.spec, method.released(settings, folder))
        return files

    def load(self, path: Path) -> Model:
        return from_pretrained(path)


@dataclass(frozen=True)
class ClassifierGoal:
    """The next stage of a classifier: trained on the last task of `partition`, from where `before` stands."""

    partition: Partition
    before: PrivateClassifier | None
    kind = CLASSIFIER

    def mechanism(self, plan: Plan) -> Mechanism:
        return DP_SGD

    def prepare(self, folder: RunFolder) -> None:
        folder.note_kind(self.kind)

    def work(self, plan: Plan, images: Images, context: FitContext) -> ConvNet:
        config = make_config(DP_SGD, plan.config)
        before = None if self.before is None else self.before.network
        return DP_SGD.fit(config, images, context, before)

    def files(
        self, folder: RunFolder, plan: Plan, made: ConvNet, ledger: PrivacyLedger, terms: Terms
    ) -> dict[str, bytes]:
        claims = [Claim.from_parts([[ledger]], **vars(terms))]
        parts: LedgerParts = ((tuple(ledger.lines()),),)
        if self.before is not None:
            claims, parts = [self.before.claim, *claims], (*self.before.privacy.parts, *parts)
        return classifier_files(plan, self.partition, made.cpu(), partitioned(parts, claims))

    def load(self, path: Path) -> PrivateClassifier:
        return open_classifier(path)


def model_config(plan: Plan) -> dict[str, Any]:
    """config.json of a model."""
    return {
        "veilset": __version__,
        "method": plan.method,
        "config": plan.config,
        "spec": plan.facts.spec.to_json(),
        "declared_size": plan.facts.declared_size,
        "accounting": plan.accounting,
        "seed": plan.seed,
        "rows_per_user": plan.facts.rows_per_user,
    }


def model_files(config: dict[str, Any], spec: ImageSpec, module: nn.Module, privacy: Privacy) -> dict[str, bytes]:
    """The files every released model has."""
    picture = Model(Path(), get_method(config["method"]), spec, module.cpu(), privacy)
    # Of a small set, each image once.
    of_a_class = COLUMNS if picture.size is None else min(COLUMNS, picture.size // spec.num_classes)
    shown = picture.sample(of_a_class * min(spec.num_classes, 20), mix=_first_classes(spec.class_names))
    return {
        "config.json": json.dumps(config, indent=1).encode(),
        "model.safetensors": model_bytes(module),
        "privacy.json": privacy_bytes(privacy),
        "README.md": model_card(config, privacy.claim).encode(),
        "samples.png": sample_grid(shown, columns=max(of_a_class, FEWEST_COLUMNS)),
    }


def _first_classes(names: tuple[str, ...]) -> dict[str, float]:
    return dict.fromkeys(names[:20], 1.0)
