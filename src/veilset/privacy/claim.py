"""What may be said about a release: the proven epsilon with its assumptions, and the published one beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from veilset.errors import LedgerError, MissingExtra, MixedAdjacency
from veilset.privacy.accounting import Price, price, renyi_epsilon
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import Composed, Event
from veilset.privacy.gaussian import gaussian_epsilon, true_positive_rate
from veilset.privacy.ledger import LedgerRecord

Parts = Sequence[Sequence[LedgerRecord]]
"""Parts of disjoint people; in each, the ledgers of everything that was released about its people."""
Status = Literal["sound", "conservative", "refuted"]

VOID = "NOT PRIVATE: "
"""Begins the stamp of a claim that is none."""
KERNEL_ASSUMPTIONS = (
    "image size, channels, class names and declared size are public knowledge and not protected",
    "epsilon, delta and all settings were chosen without looking at the data",
    "a row depends only on its own record and on what was already released",
    "noise and draws come from operating-system entropy, used once and kept secret (computational privacy)",
    "no exact score on the real images, exact count, timing or log of this run is published",
)
UNIT_ASSUMPTIONS = {
    Unit.RECORD: "one image per person: k images of one person multiply mu by k",
    Unit.USER: "the user column names every person",
}
FURTHER = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.4)
CAPPED = {Unit.RECORD: (), Unit.USER: ("images beyond the declared cap per user were dropped",)}


def shown(bound: float) -> str:
    """An epsilon or another bound for people, in four digits and never below the true one.

    >>> shown(1.00001), shown(0.9999999999), shown(610.34)
    ('1.001', '1', '610.4')
    """
    if not (math.isfinite(bound) and bound > 0):
        return f"{bound:g}"
    step = 10.0 ** (math.floor(math.log10(bound)) - 3)
    return f"{math.ceil(bound / step - 1e-9) * step:.4g}"


@dataclass(frozen=True)
class Published:
    """The epsilon a paper's own formula gives for this very noise, and what is known about that formula."""

    epsilon: float
    status: Status
    source: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Proven epsilon first. `epsilon` is None where nothing can be proven; `stamps` say why not to trust it."""

    epsilon: float | None
    delta: float
    adjacency: Adjacency
    unit: Unit
    accountant: str
    mu: float | None = None
    cross_check: float | None = None
    """The same releases priced by Renyi accounting: a looser bound from other code."""
    further: tuple[tuple[float, float], ...] = ()
    """Epsilons at larger deltas, which hold too, where no mu tells them all: they bound attacks more closely."""
    assumptions: tuple[str, ...] = ()
    published: Published | None = None
    stamps: tuple[str, ...] = ()

    @classmethod
    def from_parts(
        cls, parts: Parts, *, assumptions: tuple[str, ...], published: Published | None, stamps: tuple[str, ...]
    ) -> Claim:
        """Prices what ledgers say was charged, as `price_of_parts` does; void if any of them is. Flags have no say."""
        record = common_terms(parts)
        every = tuple(dict.fromkeys((*KERNEL_ASSUMPTIONS, UNIT_ASSUMPTIONS[record.unit], *assumptions)))
        terms: dict[str, Any] = {"delta": record.delta, "adjacency": record.adjacency, "unit": record.unit}
        void = dict.fromkeys(one.not_private for part in parts for one in part if one.not_private is not None)
        if void:
            stamps = (*(f"{VOID}{reason}" for reason in void), *stamps)
            return cls(epsilon=None, accountant="none", stamps=stamps, published=published, **terms)
        cost = price_of_parts(parts)
        further = [(price_of_parts(parts, delta).epsilon, delta) for delta in (FURTHER if cost.mu is None else ())]
        return cls(
            epsilon=cost.epsilon, accountant=cost.accountant, mu=cost.mu, cross_check=_cross_check(parts),
            further=tuple(further), assumptions=every, published=published, stamps=stamps, **terms,
        )  # fmt: skip

    @property
    def as_replace(self) -> float | None:
        """The epsilon of the same noise when neighbours differ by replacing one unit instead of adding or removing."""
        if self.mu is None or self.adjacency is Adjacency.REPLACE:
            return None
        return gaussian_epsilon(2 * self.mu, self.delta)

    def attack_power(self, false_positive_rate: float = 0.01) -> float | None:
        """The largest share of present units any attacker recognises while accusing this share of absent ones."""
        if self.epsilon is None:
            return None
        pairs = ((self.epsilon, self.delta), *self.further)
        bound = min(1.0, *(math.exp(min(epsilon, 700.0)) * false_positive_rate + delta for epsilon, delta in pairs))
        # The same with the two worlds exchanged: absent units that are not accused, present ones that are missed.
        bound = min(bound, *(1 - math.exp(-epsilon) * (1 - delta - false_positive_rate) for epsilon, delta in pairs))
        return bound if self.mu is None else min(bound, true_positive_rate(self.mu, false_positive_rate))

    @property
    def summary(self) -> str:
        """The claim in one line, without its assumptions."""
        proven = "none" if self.epsilon is None else shown(self.epsilon)
        parts = [
            f"eps_proven={proven} delta={self.delta:g} adjacency={self.adjacency} unit={self.unit}",
            f"accountant={self.accountant}" + ("" if self.mu is None else f" mu={shown(self.mu)}"),
        ]
        if self.published:
            parts.append(f"eps_as_published={self.published.epsilon:.4g} (status: {self.published.status})")
        return " | ".join([*self.stamps, *parts])

    def __str__(self) -> str:
        return "\n  assuming ".join([self.summary, *self.assumptions])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Claim:
        try:
            fields = dict(value)
            published = fields.pop("published")
            fields.update(adjacency=Adjacency(fields["adjacency"]), unit=Unit(fields["unit"]))
            fields.update({name: tuple(map(str, fields[name])) for name in ("assumptions", "stamps")})
            fields["further"] = tuple((float(epsilon), float(delta)) for epsilon, delta in fields["further"])
            return cls(published=None if published is None else Published(**published), **fields)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError("a privacy claim", f"{error!r}", "It was changed, or is of another version.") from error


def common_terms(parts: Parts) -> LedgerRecord:
    """A ledger that speaks for all: epsilons of another delta, adjacency or unit cannot be combined."""
    records = [record for part in parts for record in part]
    if not all(parts) or not records:
        raise LedgerError("at least one ledger in every part", "none", "Do not trust this release.")
    terms = {(record.delta, record.adjacency, record.unit) for record in records}
    if len(terms) > 1:
        found = "; ".join(f"delta {delta:g}, {adjacency} of one {unit}" for delta, adjacency, unit in sorted(terms))
        raise MixedAdjacency("one delta, adjacency and unit", found, "Measure again on the same terms.")
    return records[0]


def price_of_parts(parts: Parts, delta: float | None = None) -> Price:
    """Epsilon of the dearest part, at the ledgers' delta or another.

    Guarantee: a person in one part bears the releases about that part, which compose, and no others; so the largest
      price holds for everyone (parallel composition), provided that nobody is in two parts. Under replace, a replaced
      unit stays in its part.
    """
    terms = common_terms(parts)
    prices = [price(event, terms.delta if delta is None else delta, terms.adjacency) for event in _spent(parts)]
    return max(prices, key=lambda one: (one.epsilon, one.mu or 0.0))


def renyi_of_parts(parts: Parts) -> float | None:
    """The same by Renyi accounting; None where one part has no proof there."""
    terms = common_terms(parts)
    epsilons = [renyi_epsilon(event, terms.delta, terms.adjacency) for event in _spent(parts)]
    known = [epsilon for epsilon in epsilons if epsilon is not None]
    return max(known) if len(known) == len(epsilons) else None


def _spent(parts: Parts) -> list[Event]:
    return list(dict.fromkeys(Composed(tuple(record.spent for record in part)) for part in parts))


def _cross_check(parts: Parts) -> float | None:
    try:
        return renyi_of_parts(parts)
    except MissingExtra:
        return None
