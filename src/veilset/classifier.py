"""A released classifier, trained on private images by DP-SGD, task after task: what may be shared of it and how it is
read back.

Its weights know of all tasks so far: the release of a stage carries the ledgers of all of them, and claims the dearest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veilset.artifact import (
    CLASSIFIER,
    Privacy,
    load_module,
    model_bytes,
    parse_json,
    privacy_bytes,
    read_privacy,
    read_release,
)
from veilset.card import classifier_card
from veilset.data.spec import ImageSpec, to_unit_range
from veilset.errors import ArtifactError, PrivacyError
from veilset.methods.base import PublicFacts, make_config
from veilset.methods.dp_sgd import DpSgd, DpSgdConfig
from veilset.methods.plan import Plan
from veilset.model import release_folder
from veilset.nets.classifiers import ConvNet
from veilset.partition import Partition
from veilset.privacy.claim import Claim
from veilset.privacy.events import Gaussian, PoissonSampled, Repeated
from veilset.version import __version__, read_as_ours

METHOD = DpSgd()
PREDICT_BATCH = 512


class PrivateClassifier:
    """What a stage of the classifier baseline releases. It holds nothing private."""

    method = METHOD.name
    mechanism = METHOD

    def __init__(
        self, folder: Path, config: DpSgdConfig, spec: ImageSpec, partition: Partition, network: ConvNet,
        privacy: Privacy,
    ) -> None:  # fmt: skip
        self.folder, self.config, self.spec, self.partition = folder, config, spec, partition
        """`partition` are the tasks it was trained on so far; the spec has the classes of later ones too."""
        self.network, self.privacy = network.eval(), privacy

    @property
    def claim(self) -> Claim:
        return self.privacy.claim

    def predict(self, pixels: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """The likeliest class of each uint8 image, among those of the tasks so far, as its number in the spec."""
        seen = len(self.partition.class_names)
        network = self.network.to(device)
        with torch.inference_mode():
            answers = [
                network(self.config.standard.of(to_unit_range(batch.to(device))))[:, :seen].argmax(1).cpu()
                for batch in pixels.split(PREDICT_BATCH)
            ]
        return torch.cat(answers)


def classifier_files(plan: Plan, partition: Partition, network: ConvNet, privacy: Privacy) -> dict[str, bytes]:
    """The files of a released classifier that was trained on the tasks of `partition`."""
    config = {
        "veilset": __version__,
        "kind": CLASSIFIER,
        "method": METHOD.name,
        "config": plan.config,
        "spec": plan.facts.spec.to_json(),
        "tasks": partition.to_json(),
        "accounting": plan.accounting,
        "seed": plan.seed,
    }
    return {
        "config.json": json.dumps(config, indent=1).encode(),
        "model.safetensors": model_bytes(network),
        "privacy.json": privacy_bytes(privacy),
        "README.md": classifier_card(config, privacy.claim).encode(),
    }


def is_classifier(config: dict[str, Any]) -> bool:
    return config.get("kind") == CLASSIFIER


def open_classifier(path: Path) -> PrivateClassifier:
    """The classifier in a run folder or an exported release, after checking every file.

    Raises: ArtifactError for anything that does not fit together. The price of its ledgers is checked by `verify`.
    """
    folder = release_folder(path)
    files = read_release(folder)
    config, privacy = parse_json(files["config.json"], "config.json"), read_privacy(files["privacy.json"])
    if not is_classifier(config):
        raise ArtifactError(
            "a classifier", "a release of another kind", "`veilset continual --method dp-sgd` makes one."
        )
    try:
        with read_as_ours("a classifier", config):
            settings, spec = make_config(METHOD, config["config"]), ImageSpec.from_json(config["spec"])
            partition = Partition.from_json(config["tasks"])
            _check_tasks(settings, spec, partition, privacy)
            network = load_module(lambda: METHOD.build(settings, spec), files["model.safetensors"])
    except PrivacyError as error:
        raise ArtifactError(error.expected, error.found, "Do not trust this release.") from error
    assert isinstance(network, ConvNet)
    return PrivateClassifier(folder, settings, spec, partition, network, privacy)


def _check_tasks(settings: DpSgdConfig, spec: ImageSpec, partition: Partition, privacy: Privacy) -> None:
    """Every task has one ledger, which was opened for its declared size and for nothing else."""
    if len(privacy.parts) != len(partition.tasks) or any(len(part) != 1 for part in privacy.parts):
        raise ArtifactError("one ledger for each task", "more or fewer", "Do not trust this release.")
    if spec.class_names[: len(partition.class_names)] != partition.class_names:
        raise ArtifactError("the classes of the tasks in their order", "others", "Do not trust this release.")
    for task, (record,) in zip(partition.tasks, privacy.records, strict=True):
        facts = PublicFacts(spec=spec, declared_size=task.declared_size, adjacency=record.adjacency, unit=record.unit)
        match record.planned:
            case Repeated(_, PoissonSampled(_, Gaussian(noise))) if record.planned == METHOD.events(
                settings, facts, noise
            ):
                continue
        raise ArtifactError("the releases of this task", f"{record.planned}", "Do not trust this release.")
