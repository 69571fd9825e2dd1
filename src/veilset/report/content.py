"""What a page says, as plain values. Nothing in here reads files, and nothing in here knows the vault."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from veilset.card import in_words, plain_words
from veilset.data.spec import ImageSpec
from veilset.evaluate.scores import Score
from veilset.privacy.claim import Claim, shown
from veilset.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated, ShardTouched
from veilset.privacy.ledger import LedgerRecord
from veilset.report.charts import attack_curve
from veilset.report.scores import noisy_text, score_content
from veilset.score_release import NoisyScores, together, told_by_scores
from veilset.wording import WEAK_ABOVE

ROWS_SHOWN = 20
"""Classes in the sample picture of a release."""
STATUS_MEANING = {
    "sound": "The paper's proof holds for this construction.",
    "conservative": "It holds, but is looser than it needs to be.",
    "refuted": "The proof behind this number fails. Do not rely on it; only the proven one counts.",
}


@dataclass(frozen=True)
class Headline:
    """One line of the verdict. All of them are set in one size of type, whatever they say."""

    label: str
    text: str
    tone: str
    note: str


def page_content(
    *,
    config: dict[str, Any],
    spec: ImageSpec,
    claim: Claim,
    records: Sequence[LedgerRecord],
    picture: bytes | None,
    scores: Sequence[Score],
    noisy: Sequence[NoisyScores],
    renyi: float | None,
) -> dict[str, Any]:
    """Everything the template shows, in its order. `owner` is filled in by the owner's page alone."""
    return {
        "owner": None,
        "method": config["method"],
        "private": claim.epsilon is not None,
        "headlines": [asdict(line) for line in headlines(claim)],
        "stamps": list(claim.stamps) if claim.epsilon is not None else list(claim.stamps[1:]),
        "sentences": plain_words(claim)[len(claim.stamps) :],
        "curve": attack_curve(claim),
        "assumptions": list(claim.assumptions),
        "picture": None if picture is None else base64.b64encode(picture).decode(),
        "rows": list(spec.class_names[:ROWS_SHOWN]),
        "scores": [score_content(score, spec, scores) for score in scores],
        "told": told_by_scores(claim, public=not all(score.touched_private_data for score in scores)),
        "noisy": [_noisy_row(one) for one in noisy],
        "noisy_together": together(noisy),
        "events": [_event_row(event, count, one) for one in records for event, count in one.charged.items()],
        "accounting": _accounting(claim, records, renyi),
        "not_private": next((one.not_private for one in records if not one.private), None),
        "settings": _settings(config, spec),
        "options": [[name, str(value)] for name, value in flattened(config["config"])],
        "class_names": list(spec.class_names),
    }


def _noisy_row(scores: NoisyScores) -> dict[str, Any]:
    """One purchase of noisy accuracies; its claim is about the test set, and every line of it says so."""
    claim = scores.privacy.claim
    settings = [
        [
            "Privacy of the test set",
            f"epsilon {shown(claim.epsilon or 0.0)} at delta {claim.delta:g} {in_words(claim)}",
        ],
        ["Classifiers trained on", f"{scores.num_synthetic:,} synthetic images, seeds: {len(scores.seeds)}"],
        ["Noise on every count", f"standard deviation {scores.noise_std:.4g}"],
        ["Cost reserved", "before the model was fitted" if scores.reserved_before_fit else "before the evaluation"],
    ]
    return {
        "accuracies": [[one.metric, *noisy_text(one)] for one in scores.accuracies],
        "settings": settings,
        "stamps": list(claim.stamps),
        "assumptions": list(claim.assumptions),
    }


def headlines(claim: Claim) -> list[Headline]:
    """The proven epsilon, or that there is none; then the published one, never without its status."""
    change = in_words(claim)
    if claim.epsilon is None:
        reason = (claim.stamps[0] if claim.stamps else "NOT PRIVATE").removeprefix("NOT PRIVATE").lstrip(": ")
        lines = [Headline("NOT PRIVATE", "no epsilon can be claimed", "bad", reason)]
    else:
        weak = claim.epsilon > WEAK_ABOVE
        proven = "Proven" if claim.published else "Weak guarantee" if weak else "Private"
        note = f"At delta {claim.delta:g}, proven from this run's own ledger."
        if weak:
            note += " An epsilon this large promises little: see what an attacker may learn below."
        lines = [Headline(proven, f"epsilon {shown(claim.epsilon)} {change}", "weak" if weak else "good", note)]
    if claim.published is not None:
        status = claim.published.status
        text = f"epsilon {claim.published.epsilon:.4g}"
        note = f"{STATUS_MEANING.get(status, '')} Source: {claim.published.source}."
        lines.append(Headline(f"Published, {status}", text, "bad" if status == "refuted" else "plain", note.strip()))
    return lines


def _event_row(event: Event, count: int, record: LedgerRecord) -> dict[str, Any]:
    # A run without noise records a noise multiplier that was never used: showing it would look like protection.
    noise = ", ".join(f"{value:.4g}" for value in dict.fromkeys(_multipliers(event))) if record.private else "void"
    return {"event": describe(event), "noise": noise, "count": f"{count:,}"}


def describe(event: Event) -> str:
    """One release in words.

    >>> describe(ShardTouched(1000, "round-robin", Repeated(32, Gaussian(1.07))))
    'from one of 1,000 shards in turn: 32 × a vector with Gaussian noise'
    """
    match event:
        case Gaussian():
            return "a vector with Gaussian noise"
        case PoissonSampled(rate, inner):
            return f"from a secret random batch (each record with chance {rate:.4g}): {describe(inner)}"
        case ShardTouched(num_shards, schedule, inner):
            way = "in turn" if schedule == "round-robin" else "drawn at random"
            return f"from one of {num_shards:,} shards {way}: {describe(inner)}"
        case Repeated(count, inner):
            return f"{count:,} × {describe(inner)}"
        case Composed(events):
            return " and ".join(describe(inner) for inner in events) or "nothing"


def _multipliers(event: Event) -> Iterator[float]:
    match event:
        case Gaussian(noise_multiplier):
            yield noise_multiplier
        case PoissonSampled(_, inner) | ShardTouched(_, _, inner) | Repeated(_, inner):
            yield from _multipliers(inner)
        case Composed(events):
            for inner in events:
                yield from _multipliers(inner)


def _accounting(claim: Claim, records: Sequence[LedgerRecord], renyi: float | None) -> list[list[str]]:
    if claim.epsilon is None:
        return [["Accountant", "none: there is nothing to account for"]]
    second = "no proof known for these releases" if renyi is None else f"epsilon {shown(renyi)}, a looser bound"
    rows = [
        ["Proven", f"epsilon {shown(claim.epsilon)} at delta {claim.delta:g}"],
        ["Accountant", claim.accountant],
        ["Cross-check by Rényi accounting", second],
    ]
    if claim.mu is not None:
        rows.append(["As one Gaussian release", f"mu {shown(claim.mu)}"])
    rows.append(["Neighbours differ by", in_words(claim).removeprefix("for ")])
    rows.append(["Restarts, charged", f"{sum(one.resumed for one in records)}"])
    return rows


def _settings(config: dict[str, Any], spec: ImageSpec) -> list[list[str]]:
    target = config.get("epsilon_target")
    size = config.get("declared_size")
    return [
        ["Method", str(config["method"])],
        ["Images", f"{spec.height} × {spec.width}, {'grey' if spec.channels == 1 else 'RGB'}"],
        ["Declared size", f"about {size:,} images" if isinstance(size, int) else f"{size}"],
        ["Accounting", str(config.get("accounting"))],
        ["Target epsilon", f"{target:g}" if isinstance(target, int | float) else "none"],
        ["Seed of all but the noise", str(config.get("seed"))],
        ["Veilset", str(config.get("veilset"))],
    ]


def flattened(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of nested settings, as `outer.inner`."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from flattened(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner
