"""Noisy accuracies: reserved in the test set's budget first, bought once, published with a claim of their own.

The order is the point. The cost is reserved, before the fit (`veilset fit --dp-scores`) or at the latest before a
classifier is trained for the purchase; exact scores of the run may be looked at after it and never before. So nobody
can measure first and then choose what to publish, which no epsilon would cover.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import torch

from veilset.artifact import MANIFEST, Privacy, forget, update_manifest
from veilset.data.spec import ImageSet, Source
from veilset.errors import BudgetExceeded, ConfigError, RunError
from veilset.evaluate.noisy import count_correct
from veilset.evaluate.utility import fitted_classifiers
from veilset.files import only_one, read_json, write_atomically
from veilset.looks import refuse_after_a_look
from veilset.methods.base import Progress, PublicFacts
from veilset.methods.plan import Plan
from veilset.model import from_pretrained
from veilset.privacy.accounting import calibrate
from veilset.privacy.bounds import GroupedSum, Unit, sum_sensitivity
from veilset.privacy.claim import CAPPED, Claim
from veilset.privacy.events import NOTHING, Gaussian
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.release import Door
from veilset.reserved_plans import budget_of
from veilset.run import untracked
from veilset.run_folder import RunFolder
from veilset.score_checks import check_allowed
from veilset.score_plan import PURCHASES, RESERVED, ScorePlan
from veilset.score_release import (
    ASSUMPTIONS,
    NOISY_SCORES,
    NoisyScores,
    benchmark_stamps,
    read_noisy_scores,
    row_bound,
    scores_bytes,
)
from veilset.scoring import Request, Warn
from veilset.sharing import verify

LOCK = "lock"
LARGE_NOISE = 0.02
"""Standard deviation of an accuracy's privacy noise above which the purchase warns."""


def check_cap(facts: PublicFacts) -> None:
    """Refuses a run whose users have no cap of images: what one of them adds to noisy scores would have no bound."""
    if facts.unit is Unit.USER and facts.rows_per_user is None:
        raise ConfigError("a cap of test images per user", "none", "Fit with --images-per-user to buy noisy scores.")


def reserve_scores(folder: RunFolder, test: Source, epsilon: float, *, before_fit: bool) -> ScorePlan:
    """Charges one noisy vector to the test set's budget, where it has one, and notes it in the vault.

    Delta, adjacency and unit are those of the run, so that its two claims speak the same language.

    Raises: BudgetExceeded or MixedAdjacency from the budget, PrivacyError where exact scores on the test set were
      measured; nothing is reserved then.
    """
    refuse_after_a_look(folder, test)
    plan = Plan.load(folder.plan_path)
    if plan.not_private is not None:
        raise ConfigError("a run with a privacy claim", plan.not_private, "Noisy scores go into releases only.")
    facts, budget = plan.facts, budget_of(test)
    check_cap(facts)
    multiplier = calibrate(Gaussian, epsilon, plan.delta, facts.adjacency)
    made = ScorePlan(
        epsilon=epsilon, delta=plan.delta, adjacency=facts.adjacency, unit=facts.unit,
        images_per_user=facts.rows_per_user, noise_multiplier=multiplier, test=_identity(test), reservation=None,
        before_fit=before_fit,
    )  # fmt: skip
    if budget is not None:
        made = replace(made, reservation=budget.reserve(made.event, **made.terms))
    (folder.vault / PURCHASES).mkdir(mode=0o700, exist_ok=True)
    write_atomically(folder.vault / PURCHASES / RESERVED, json.dumps(asdict(made), indent=1).encode(), mode=0o600)
    return made


def check_reserved(folder: RunFolder, test: Source | None, epsilon: float | None) -> None:
    """Raises: ConfigError where a resumed fit is given other noisy scores than it reserved when it began."""
    purchases = folder.vault / PURCHASES
    plans = map(ScorePlan.load, [*purchases.glob("*.json"), *purchases.glob("*/plan.json")])  # waiting, used, bought
    reserved = [(plan.epsilon, plan.test) for plan in plans if plan.before_fit]
    which = None if test is None else _identity(test)
    if not any(epsilon in (None, kept) and which in (None, name) for kept, name in reserved):
        known = ", ".join(f"epsilon {kept:g} of {name}" for kept, name in reserved) or "none"
        found = [*([] if epsilon is None else [f"epsilon {epsilon:g}"]), *([] if which is None else [f"of {which}"])]
        raise ConfigError(
            f"the noisy scores this run reserved: {known}", " ".join(found),
            "Drop --dp-scores and --test: a resumed run keeps what it reserved.",
        )  # fmt: skip


def buy_scores(
    folder: RunFolder,
    test: ImageSet,
    request: Request,
    *,
    epsilon: float,
    device: torch.device,
    progress: Progress,
    warn: Warn = lambda text: None,
) -> NoisyScores:
    """Trains the classifiers on synthetic images and releases how often they are right, once, with noise.

    Everything that can be refused is refused before the cost is reserved, and the cost is reserved before a classifier
    is trained. A purchase that stops before its release begins leaves its reservation to the next one; killed later, it
    stays charged.

    Raises: RunError while another purchase of this run is going on, which would use the same reservation.
    """
    (folder.vault / PURCHASES).mkdir(mode=0o700, exist_ok=True)
    with only_one(folder.vault / PURCHASES / LOCK, "one purchase of a run at a time"):
        return _buy(folder, test, request, epsilon, device, progress, warn)


def _buy(
    folder: RunFolder,
    test: ImageSet,
    request: Request,
    epsilon: float,
    device: torch.device,
    progress: Progress,
    warn: Warn,
) -> NoisyScores:
    _publish_what_was_paid_for(folder)
    verify(folder.path)
    model = from_pretrained(folder.path)
    check_allowed(folder, test, request, model)
    plan = _reserved(folder, test, epsilon)
    for text in _warnings(plan, request, test):
        warn(text)
    synthetic = request.images_of(model, device, progress)
    fitted = fitted_classifiers(
        synthetic, classifiers=request.classifiers, seeds=request.seeds, device=device, warn=warn, progress=progress
    )
    wanted = _num_counts(request)
    counts = count_correct(
        fitted, wanted, test, unit=plan.unit, images_per_user=plan.images_per_user,
        progress=lambda done: progress("classifiers judged", done, wanted),
    )  # fmt: skip
    scores = _release(folder, plan, counts, request, test.source)
    publish(folder)
    return scores


def _reserved(folder: RunFolder, test: ImageSet, epsilon: float) -> ScorePlan:
    """The reservation that waits in the vault, or a new one."""
    path, asked = folder.vault / PURCHASES / RESERVED, (epsilon, _identity(test.source))
    plan = ScorePlan.load(path) if path.is_file() else None
    if plan is not None and (plan.epsilon, plan.test) == asked:
        _check_unused(path, plan, test.source)
        return plan
    if plan is not None and plan.reservation is not None:
        raise ConfigError(
            f"the purchase that is reserved: epsilon {plan.epsilon:g} of {plan.test}",
            f"epsilon {epsilon:g} of {asked[1]}",
            "Buy what is reserved; it is charged already.",
        )
    return reserve_scores(folder, test.source, epsilon, before_fit=False)


def _check_unused(path: Path, plan: ScorePlan, test: Source) -> None:
    """A reservation that a copy of this run used, or a purchase that was killed, is put out of the way.

    Raises: BudgetExceeded for one, before a classifier is trained in vain.
    """
    budget = budget_of(test)
    if budget is None or plan.reservation is None:
        return
    try:
        budget.check_waiting(plan.reservation, plan.event, **plan.terms)
    except BudgetExceeded as error:
        path.replace(path.with_name(f"used-{plan.reservation}.json"))
        todo = "Nothing was released now. The same command again reserves, and charges, another purchase."
        raise BudgetExceeded(error.expected, error.found, todo) from error


def _identity(source: Source) -> str:
    budget = budget_of(source)
    if budget is not None:
        return f"the data set with budget {budget.identity}"
    return str(Path(source.path).resolve()) if source.path else str(source.benchmark)


def _warnings(plan: ScorePlan, request: Request, test: ImageSet) -> list[str]:
    """For the owner alone: they depend on the exact number of test images."""
    wanted, images = _num_counts(request), int(test.valid.sum())
    bound = row_bound(wanted) * (plan.images_per_user or 1)
    noise = plan.noise_multiplier * sum_sensitivity(bound, plan.adjacency, nonnegative=True)
    spread = noise * (1 / len(request.seeds) + 1) ** 0.5 / images
    texts = []
    if spread > LARGE_NOISE:
        texts.append(
            f"expect noise of {spread:.2g} (standard deviation) on an accuracy: more test images, fewer classifiers or "
            "seeds, or a larger epsilon help"
        )
    if plan.delta * images > 0.1:
        texts.append(f"delta x number of test images is {plan.delta * images:.2g}: it should be well below 0.1")
    return texts


def _num_counts(request: Request) -> int:
    return len(request.classifiers) * len(request.seeds)


def _release(folder: RunFolder, plan: ScorePlan, counts: GroupedSum, request: Request, test: Source) -> NoisyScores:
    """The only step from the test images to something that may be shared. The reservation is used up first.

    Training took its time: that nobody looked meanwhile is checked once more.
    """
    refuse_after_a_look(folder, test)
    waiting, budget = folder.vault / PURCHASES / RESERVED, budget_of(test)
    if not waiting.is_file():
        raise RunError(f"the reservation of this purchase, {waiting}", "nothing", "Nothing was released. Buy again.")
    if budget is not None and plan.reservation is not None:
        # Where this fails, the reservation still waits.
        budget.begin(plan.reservation, plan.event, **plan.terms)
    place = _new_place(folder)
    waiting.replace(place / "plan.json")
    ledger = PrivacyLedger.open_new(
        place / "ledger.jsonl", planned=plan.event, reserve=NOTHING, adjacency=plan.adjacency, unit=plan.unit,
        delta=plan.delta,
    )  # fmt: skip
    try:
        *correct, total = Door(ledger, NoiseSource()).release_sum(counts, plan.noise_multiplier).flatten().tolist()
        ledger.close()
        scores = NoisyScores(
            classifiers=request.classifiers, seeds=request.seeds, preset=request.preset, num_synthetic=request.number,
            images_per_user=plan.images_per_user, reserved_before_fit=plan.before_fit, correct=tuple(correct),
            total=total, privacy=_claimed(ledger, test),
        )  # fmt: skip
        write_atomically(place / NOISY_SCORES, scores_bytes([scores]), mode=0o600)
    finally:
        ledger.unlock()
    if budget is not None and plan.reservation is not None:
        budget.settle(plan.reservation, ledger.spent, ledger.head)
    return scores


def _new_place(folder: RunFolder) -> Path:
    numbers = [int(path.name) for path in (folder.vault / PURCHASES).iterdir() if path.name.isdecimal()]
    place = folder.vault / PURCHASES / str(max(numbers, default=0) + 1)
    place.mkdir(mode=0o700)
    return place


def _claimed(ledger: PrivacyLedger, test: Source) -> Privacy:
    assumptions = (*CAPPED[ledger.unit], *ASSUMPTIONS, *untracked(test.benchmark, budget_of(test)))
    stamps = benchmark_stamps(test.benchmark)
    claim = Claim.from_parts([[ledger]], assumptions=assumptions, published=None, stamps=stamps)
    return Privacy.of_run(claim, ledger.lines())


def publish(folder: RunFolder) -> None:
    """Writes all purchases of the vault into the release.

    What a crash of this very step left there is taken out first; then the release is checked, because hashing it anew
    must not bless files that somebody changed.
    """
    forget(folder.release, NOISY_SCORES)
    verify(folder.path)
    write_atomically(folder.release / NOISY_SCORES, scores_bytes(_paid_for(folder)))
    update_manifest(folder.release)


def _paid_for(folder: RunFolder) -> list[NoisyScores]:
    paths = sorted((folder.vault / PURCHASES).glob(f"*/{NOISY_SCORES}"), key=lambda path: int(path.parent.name))
    return [scores for path in paths for scores in read_noisy_scores(path.read_bytes())]


def _publish_what_was_paid_for(folder: RunFolder) -> None:
    """After a crash between purchase and publication: what is paid for is published, and nothing is bought again."""
    paid, path = _paid_for(folder), folder.release / NOISY_SCORES
    if not paid:
        return
    manifest = read_json(folder.release / MANIFEST, "a finished release")
    if NOISY_SCORES in manifest.get("sha256", {}) and path.is_file() and path.read_bytes() == scores_bytes(paid):
        return
    publish(folder)
    raise RunError(
        "no purchase that waits to be published",
        f"one that was interrupted after it was paid for; it is now in {path}",
        "Look at it. The same command again buys, and charges, another one.",
    )
