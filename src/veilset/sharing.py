"""The way out: checking a release as anyone can, and exporting it from a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from veilset.artifact import MODEL, parse_json, read_release, write_release
from veilset.card import classifier_card
from veilset.classifier import PrivateClassifier, is_classifier, open_classifier
from veilset.errors import ArtifactError, ConfigError
from veilset.evaluate.presets import PRESETS
from veilset.files import require_empty
from veilset.methods.base import (
    PublicFacts,
    assumptions_of,
    check_complete,
    get_mechanism,
    get_method,
    make_config,
)
from veilset.model import Model, from_pretrained, release_folder
from veilset.partition import PARTITIONED
from veilset.privacy.accounting import Price
from veilset.privacy.bounds import Unit
from veilset.privacy.claim import (
    CAPPED,
    KERNEL_ASSUMPTIONS,
    UNIT_ASSUMPTIONS,
    Claim,
    Parts,
    Published,
    common_terms,
    price_of_parts,
    renyi_of_parts,
)
from veilset.privacy.events import steps
from veilset.privacy.ledger import LedgerRecord
from veilset.run import BEFORE_BUDGET, UNTRACKED
from veilset.score_release import ASSUMPTIONS, NOISY_SCORES, NoisyScores, names_a_benchmark, read_noisy_scores, together
from veilset.sketch_file import FILE
from veilset.sketch_release import CONTINUED, KIND, MERGED, SketchRelease, card_of, read_sketch
from veilset.version import __version__, read_as_ours

Opened = Model | SketchRelease | PrivateClassifier


def verify(path: Path, *, second: bool = True) -> dict[str, Any]:
    """What anyone can check about a release: hashes, ledger chain, model, and epsilon priced anew by two accountants.

    Noisy scores in it have a claim of their own, about the test set, which is checked in the same way.

    Args:
        second: whether to ask the second accountant too; a bare host that goes on from a release does not have it.

    Raises: ArtifactError or LedgerError for anything that does not hold.
    """
    files = read_release(release_folder(path))
    opened = _opened(path, files)
    claim, records = opened.claim, opened.privacy.records
    _check_terms(claim, records)
    result: dict[str, Any] = {
        "method": opened.method,
        "claim": claim.summary,
        "files": "unchanged",
        "ledger": "unbroken",
    }
    if NOISY_SCORES in files:
        cap = parse_json(files["config.json"], "config.json").get("rows_per_user")
        bought = read_noisy_scores(files[NOISY_SCORES])
        result["noisy_scores"] = [_checked_scores(one, claim, cap) for one in bought]
        if len(bought) > 1:
            result["noisy_scores_together"] = together(bought)
    if claim.epsilon is None:
        _check_card(files, opened)
        return {**result, "verdict": claim.stamps[0] if claim.stamps else "NOT PRIVATE"}
    exact, renyi = _repriced(claim, records, second=second)
    _check_card(files, opened)
    verdict = "the stated epsilon follows from the ledger"
    return {
        **result,
        "epsilon": exact.epsilon,
        "accountant": exact.accountant,
        "epsilon_renyi": renyi,
        "verdict": verdict,
    }


def _opened(path: Path, files: dict[str, bytes]) -> Opened:
    config = parse_json(files["config.json"], "config.json")
    if is_classifier(config):
        return open_classifier(path)
    sketch = read_sketch(release_folder(path), files) if FILE in files else None
    alone = sketch is not None and config.get("kind") == KIND
    return sketch if sketch is not None and alone and MODEL not in files else from_pretrained(path)


def _check_terms(claim: Claim, parts: Parts) -> None:
    record = common_terms(parts)
    private = all(one.private for part in parts for one in part)
    if not all(_whole(one, private) for part in parts for one in part):
        raise ArtifactError("a ledger with all releases of its plan", "fewer", "Do not trust this release.")
    if _terms(claim) != (record.delta, record.adjacency, record.unit) or (claim.epsilon is None) == private:
        raise ArtifactError("a claim about its own ledger", claim.summary, "Do not trust this release.")


def _whole(record: LedgerRecord, private: bool) -> bool:
    """Whether there are all releases of the plan or, after a crash, some of each kind: a run may end early, but what it
    began with, such as a sketch before many steps, was released."""
    planned = steps(record.planned)
    if not record.resumed:
        return record.charged == planned
    return not private or planned.keys() <= record.charged.keys()


def _repriced(claim: Claim, parts: Parts, *, second: bool = True) -> tuple[Price, float | None]:
    """The ledgers' price by two accountants, after comparing both with each other and with the claim."""
    exact, renyi = price_of_parts(parts), renyi_of_parts(parts) if second else None
    further = [(f"epsilon at delta {at:g}", price_of_parts(parts, at).epsilon, one) for one, at in claim.further]
    for name, priced, claimed in (("epsilon", exact.epsilon, claim.epsilon), ("mu", exact.mu, claim.mu), *further):
        if (priced is None) != (claimed is None) or not (priced or 0.0) <= (claimed or 0.0) * (1 + 1e-6) + 1e-9:
            raise ArtifactError(
                f"{name} of at least {priced}, as its ledger is priced",
                f"a claim of {claimed}",
                "Do not trust this release.",
            )
    if claim.accountant != exact.accountant:
        raise ArtifactError(
            f"the accountant {exact.accountant!r}", repr(claim.accountant), "Do not trust this release."
        )
    if renyi is not None and renyi < exact.epsilon * (1 - 1e-3):
        raise ArtifactError(
            f"two accountants that agree ({exact.accountant}: {exact.epsilon:.6g})",
            f"Renyi accounting below it: {renyi:.6g}",
            "Do not rely on either; report this as a bug.",
        )
    return exact, renyi


def _checked_scores(scores: NoisyScores, model: Claim, images_per_user: int | None) -> str:
    """The claim of one purchase of noisy scores, after the same checks; reading computed its accuracies anew."""
    claim, record = scores.privacy.claim, scores.privacy.record
    _check_terms(claim, scores.privacy.records)
    released_once = record.charged == steps(record.planned) and not record.resumed
    if claim.epsilon is None or not released_once:
        raise ArtifactError("noisy scores released once, with a claim", claim.summary, "Do not trust this release.")
    _repriced(claim, scores.privacy.records)
    for expected, found, holds in (
        ("no published epsilon beside noisy scores", claim.published, claim.published is None),
        ("the model's delta, adjacency and unit", claim.summary, _terms(claim) == _terms(model)),
        (f"{images_per_user} images per user, as in the fit", scores.images_per_user,
         scores.images_per_user == images_per_user and (images_per_user is None) == (claim.unit is Unit.RECORD)),
        ("the classifiers of the preset", f"{scores.preset}: {scores.classifiers}", _of_their_preset(scores)),
        ("every assumption of the noisy scores and no other, with its stamp", [*claim.stamps, *claim.assumptions],
         (claim.stamps, claim.assumptions) in _honest_words(claim)),
    ):  # fmt: skip
        if not holds:
            raise ArtifactError(expected, f"{found}", "Do not trust this release.")
    return claim.summary


def _terms(claim: Claim) -> tuple[object, ...]:
    return claim.delta, claim.adjacency, claim.unit


def _of_their_preset(scores: NoisyScores) -> bool:
    """Whether scores that name a protocol are of all its classifiers: leaving out the worst would be another one."""
    return scores.preset is None or (
        scores.preset in PRESETS and PRESETS[scores.preset].classifiers == scores.classifiers
    )


def _honest_words(claim: Claim) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Every pair of stamps and assumptions a purchase can have: a benchmark's, or those of private images."""
    words = (*KERNEL_ASSUMPTIONS, UNIT_ASSUMPTIONS[claim.unit], *CAPPED[claim.unit], *ASSUMPTIONS)
    if names_a_benchmark(claim.stamps):
        return [(claim.stamps, words)]
    return [((), (*words, UNTRACKED)), ((), (*words, BEFORE_BUDGET))]


def _check_card(files: dict[str, bytes], opened: Opened) -> None:
    """The card is what people read: it must be the one this claim makes, with all the assumptions the kernel makes.

    Another version's wording is not compared; that its settings stand for the releases in its ledger is.
    """
    claim = opened.claim
    config = parse_json(files["config.json"], "config.json")
    same_words = config.get("veilset") == __version__
    every = {*KERNEL_ASSUMPTIONS, UNIT_ASSUMPTIONS[claim.unit], *_own_assumptions(config, opened)}
    missing = every - set(claim.assumptions)
    if claim.epsilon is not None and missing and same_words:
        raise ArtifactError(
            "every assumption of the claim", f"missing: {sorted(missing)}", "Do not trust this release."
        )
    with read_as_ours("a release", config):
        if same_words and "config" in config and "sketch" not in config:
            check_complete(get_mechanism(opened.method), config["config"])
        card = classifier_card(config, claim) if isinstance(opened, PrivateClassifier) else card_of(config, claim)
        fitted = isinstance(opened, Model) and "sketch" not in config
        published = _published(config, opened) if fitted else None
    if published != claim.published:
        raise ArtifactError("the published epsilon of this method", "another", "Do not trust this release.")
    if same_words and files.get("README.md") != card.encode():
        raise ArtifactError("the model card of this claim", "another text in README.md", "Do not trust this release.")


def _own_assumptions(config: dict[str, Any], opened: Opened) -> tuple[str, ...]:
    if isinstance(opened, PrivateClassifier):
        return (*opened.mechanism.assumptions, *PARTITIONED)
    merged = MERGED if len(opened.privacy.parts) > 1 else ()
    continued = CONTINUED if any(len(part) > 1 for part in opened.privacy.parts) else ()
    method = get_method(opened.method)
    settings = make_config(method, config["config"] if isinstance(opened, Model) else {})
    return (*assumptions_of(method, settings, opened.claim.unit), *merged, *continued)


def _published(config: dict[str, Any], opened: Opened) -> Published | None:
    """The published epsilon of a fit, after comparing the releases its settings stand for with those in its ledger."""
    method, claim = get_method(opened.method), opened.claim
    facts = PublicFacts(
        spec=opened.spec, declared_size=config["declared_size"], adjacency=claim.adjacency, unit=claim.unit,
        rows_per_user=config["rows_per_user"],
    )  # fmt: skip
    published = config["accounting"] == "published"
    terms = (make_config(method, config["config"], published=published), facts, float(config["noise_multiplier"]))
    if method.events(*terms) != opened.privacy.record.planned:
        raise ConfigError("the releases these settings stand for", "others in its ledger", "Do not trust this release.")
    if claim.epsilon is not None and (reason := method.unproven(terms[0])) is not None:
        raise ArtifactError("no epsilon for settings without a proof", reason, "Do not trust this release.")
    return method.published_claim(*terms, claim.delta) if published else None


def export(path: Path, out: Path) -> dict[str, Any]:
    """Copies what may be shared, after checking it: the only documented way out of a run folder."""
    checked = verify(path)
    if "epsilon" not in checked:
        raise ArtifactError(
            "a release with a privacy claim", checked["verdict"], "Measure or fit with an epsilon first."
        )
    files = read_release(release_folder(path))
    require_empty(out)
    write_release(out, files)
    return checked
