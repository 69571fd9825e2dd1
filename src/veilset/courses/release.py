"""What may be shared about a course: its tasks, and the claim about all of them, priced from the ledgers of each.

All of it is made from the releases of the tasks, and made again and compared whenever a course is verified. Accuracies
on a public test set alone are the owner's word, and said to be.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from veilset.artifact import Privacy, parse_json, read_privacy, read_release
from veilset.card import claim_text, plain_words, tasks_table
from veilset.classifier import is_classifier
from veilset.courses.course import Course
from veilset.courses.folder import COURSE, CourseFolder
from veilset.data.spec import ImageSpec
from veilset.errors import ArtifactError
from veilset.files import require_empty, write_atomically
from veilset.model import release_folder
from veilset.partition import Partition, partitioned
from veilset.privacy.claim import Claim, shown
from veilset.score_release import is_benchmark_name, told_by_scores
from veilset.sharing import export, verify
from veilset.version import __version__, read_as_ours

CARD = "README.md"
STATED = "the owner's word: the releases and their ledgers, which `veilset verify` checks, do not tell them"
"""About public scores."""


@dataclass(frozen=True, kw_only=True)
class StageScore:
    """Accuracy over all classes so far, after a task and on a public test set, as the owner measured it."""

    stage: int
    num_classes: int
    mean: float
    sd: float | None
    n: int
    metric: str
    test: str

    @property
    def shown(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.sd is None else f" ± {self.sd:.4f}")


def stage_scores(value: dict[str, Any]) -> list[StageScore]:
    """Public scores of a course as it states them, none or one for each of its tasks.

    Raises: ArtifactError where they cannot be accuracies of these tasks, all measured alike.
    """
    scores, partition = [StageScore(**score) for score in value["scores"]], Partition.from_json(value["tasks"])
    stages = [(stage, len(partition.seen(stage))) for stage in range(1, len(partition.tasks) + 1)]
    if scores and not (
        [(one.stage, one.num_classes) for one in scores] == stages
        and all(0 <= one.mean <= 1 and 0 <= (one.sd or 0.0) <= 1 for one in scores)
        and len({(one.metric, one.test, one.n) for one in scores}) == 1
        and all(type(one.n) is int and one.n >= 1 and (one.sd is None) == (one.n == 1) for one in scores)
        and is_benchmark_name(scores[0].test)
    ):
        raise ArtifactError("an accuracy after each task", f"{value['scores']}", "Do not trust this course.")
    return scores


def is_course(path: Path) -> bool:
    """Whether a folder holds a finished course, exported or not."""
    return (_about(path) / COURSE).is_file()


def read_course(path: Path) -> dict[str, Any]:
    """What a finished course says about itself; `verify_course` checks it."""
    return parse_json((_about(path) / COURSE).read_bytes(), COURSE)


def write_course_release(folder: CourseFolder, course: Course, scores: Sequence[StageScore] = ()) -> Claim:
    """Writes what may be shared about all tasks together; `scores` are public ones alone."""
    claim = privacy_of_tasks(folder.path, len(course.partition.tasks)).claim
    value = _course_json(course.method, course.spec, course.partition, claim, scores)
    folder.release.mkdir(exist_ok=True)
    write_atomically(folder.release / CARD, course_card(value, claim).encode())
    write_atomically(folder.release / COURSE, json.dumps(value, indent=1).encode())
    return claim


def _course_json(
    method: str, spec: ImageSpec, partition: Partition, claim: Claim, scores: Sequence[StageScore]
) -> dict[str, Any]:
    value = {
        "veilset": __version__,
        "method": method,
        "spec": replace(spec, class_names=partition.class_names).to_json(),
        "tasks": partition.to_json(),
        "claim": claim.to_json(),
        "scores": [asdict(score) for score in scores],
    }
    made: dict[str, Any] = json.loads(json.dumps(value))  # as it is read again: lists instead of tuples
    return made


def privacy_of_tasks(path: Path, number: int) -> Privacy:
    """The claim about the ledgers of all tasks: a record bears those of one task, so the dearest counts.

    A classifier that is trained on carries the ledgers of earlier tasks too; its own is the last.
    """
    found = [read_privacy(read_release(release_folder(task))["privacy.json"]) for task in _tasks(path, number)]
    return partitioned(tuple(one.parts[-1] for one in found), [one.claim for one in found])


def verify_course(path: Path) -> dict[str, Any]:
    """What anyone can check: the release of every task, that no class is in two of them, and all that is said of them.

    Raises: ArtifactError, LedgerError or PrivacyError for anything that does not hold.
    """
    value = read_course(path)
    _check_closed(path)
    with read_as_ours("a course", value):
        partition, spec = Partition.from_json(value["tasks"]), ImageSpec.from_json(value["spec"])
        checked = [verify(task) for task in _tasks(path, len(partition.tasks))]
        for number, task in enumerate(_tasks(path, len(partition.tasks)), start=1):
            _check_task(task, partition.until(number), spec, str(value["method"]))
        claim = privacy_of_tasks(path, len(partition.tasks)).claim
        told = _course_json(str(value["method"]), spec, partition, claim, stage_scores(value))
        card, same_words = course_card(told, claim), value["veilset"] == __version__
    others = sorted(name for name in {*value, *told} - {"veilset"} if value.get(name) != told.get(name))
    if others:
        raise ArtifactError("what the tasks say", f"something else as {', '.join(others)}", "Do not trust this course.")
    if same_words and (_about(path) / CARD).read_bytes() != card.encode():
        raise ArtifactError("the card of this claim", "another text in README.md", "Do not trust this course.")
    return {
        "method": told["method"],
        "claim": claim.summary,
        "tasks": [f"{', '.join(task.classes)}: epsilon {shown(one['epsilon'])}" for task, one in
                  zip(partition.tasks, checked, strict=True)],
        "epsilon": claim.epsilon,
        "accountant": claim.accountant,
        "epsilon_renyi": claim.cross_check,
        **({"scores": STATED} if told["scores"] else {}),
        "verdict": "no class is in two tasks, and the stated epsilon is that of the dearest task",
    }  # fmt: skip


def export_course(path: Path, out: Path) -> dict[str, Any]:
    """Copies what may be shared: the page about the course, and the release of every task, after checking them."""
    checked = verify_course(path)
    require_empty(out)
    for number, task in enumerate(_tasks(path, len(checked["tasks"])), start=1):
        export(task, out / "tasks" / str(number))
    for name in (COURSE, CARD):
        shutil.copyfile(_about(path) / name, out / name)
    return checked


def course_card(value: dict[str, Any], claim: Claim) -> str:
    """The page about a course, from its public facts and its claim."""
    spec = value["spec"]
    return f"""# Continual learning by {value["method"]}

{len(value["tasks"])} tasks of {spec["height"]} x {spec["width"]} images with {spec["channels"]} channel(s) were learned
one after the other. No class is in two tasks. Each task has a release of its own in `tasks/`, with its ledger and its
claim; this page is about all of them together.

{tasks_table(value["tasks"])}

{claim_text(claim, plain_words(claim, "course"))}
{_scores_text(stage_scores(value), claim)}"""


def _scores_text(scores: Sequence[StageScore], claim: Claim) -> str:
    if not scores:
        return ""
    head = ["| after task | classes so far | accuracy | seeds |", "|---|---|---|---|"]
    rows = [f"| {score.stage} | {score.num_classes} | {score.shown} | {score.n} |" for score in scores]
    stated = f"Measured on {scores[0].test}. These numbers are {STATED}. `veilset compare` draws them."
    told = told_by_scores(claim, public=True)
    return "\n".join(["", "## Accuracy on a public test set", f"{stated} {told}".strip(), "", *head, *rows, ""])


def _check_task(path: Path, partition: Partition, spec: ImageSpec, method: str) -> None:
    """A task's release is about its own classes and declared size, or, for a classifier, about all until then."""
    config = parse_json(read_release(release_folder(path))["config.json"], "config.json")
    task, classifier = partition.tasks[-1], is_classifier(config)
    images = spec if classifier else replace(spec, class_names=task.classes)
    expected = (method, images.to_json(), task.declared_size)
    size = config["tasks"][-1]["declared_size"] if classifier else config["declared_size"]
    if (config["method"], config["spec"], size) != expected:
        raise ArtifactError(f"a task of {expected}", f"another in {path}", "Do not trust this course.")
    if classifier and Partition.from_json(config["tasks"]) != partition:
        raise ArtifactError("the tasks of this course so far", f"others in {path}", "Do not trust this course.")


def _about(path: Path) -> Path:
    """Where the page about a course lies: at the top of an export, or in the folder of a course."""
    return path if (path / COURSE).is_file() else path / "release"


def _check_closed(path: Path) -> None:
    """Refuses files that nothing vouches for beside the page; those of tasks are in their own manifests."""
    page = {COURSE, CARD}
    strangers = {one.name for one in _about(path).iterdir()} - (page | {"tasks"} if _about(path) == path else page)
    if strangers:
        raise ArtifactError("a course and nothing else", f"{sorted(strangers)}", "Remove what is not part of it.")


def _tasks(path: Path, number: int) -> list[Path]:
    folders = [path / "tasks" / str(one) for one in range(1, number + 1)]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ArtifactError("the release of every task", f"none at {', '.join(missing)}", "Copy the course again.")
    strangers = {one.name for one in (path / "tasks").iterdir()} - {folder.name for folder in folders}
    if strangers:
        raise ArtifactError(
            f"{number} tasks and nothing else", f"{sorted(strangers)}", "Remove what is not part of it."
        )
    return folders
