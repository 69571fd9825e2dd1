"""What happened, as immutable values: just enough to price a release, nothing else.

Nesting order is meaning. ``PoissonSampled(q, Composed(a, b))`` is one draw that feeds two releases;
``Composed(PoissonSampled(q, a), PoissonSampled(q, b))`` is two independent draws and costs less.
An event's meaning never changes once it is published; an unknown event is refused, never guessed.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from veilset.errors import LedgerError

Schedule = Literal["round-robin", "uniform"]


def _check(condition: bool, expected: str, found: object) -> None:
    if not condition:
        raise LedgerError(expected, f"{found}", "Correct the event; nothing was charged.")


@dataclass(frozen=True)
class Gaussian:
    """A vector released once with Gaussian noise of standard deviation noise_multiplier x sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        valid = math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0
        _check(valid, "a finite noise multiplier above 0", self.noise_multiplier)


@dataclass(frozen=True)
class PoissonSampled:
    """`event` on a batch into which every record fell independently with probability `rate`, secretly.

    `absence` is how far, in sensitivities, leaving the record out of the batch moves the release: 1 in general, 1/2
    for a sum under replace, where two versions of a record differ by two norms and absence by one.
    """

    rate: float
    event: Event
    absence: float = 1.0

    def __post_init__(self) -> None:
        _check(0 < self.rate <= 1, "a sampling rate in (0, 1]", self.rate)
        # Two versions of a record are at most two absences apart, so less than 1/2 contradicts the sensitivity.
        _check(0.5 <= self.absence <= 1, "an absence distance in [1/2, 1]", self.absence)


@dataclass(frozen=True)
class ShardTouched:
    """One step in which one of `num_shards` disjoint shards released `event`; the index counts as known to all.

    round-robin: `Repeated(n, it)` are n consecutive steps, so no shard is touched more than ceil(n / num_shards) times;
    separate repetitions and different events each go their own rounds. uniform: the index is drawn afresh each step.
    Without `fixed_slots` a replaced record may come to lie in another shard, and both shards count.
    """

    num_shards: int
    schedule: Schedule
    event: Event
    fixed_slots: bool = False

    def __post_init__(self) -> None:
        _check(self.num_shards >= 1, "at least one shard", self.num_shards)
        _check(self.schedule in ("round-robin", "uniform"), "schedule round-robin or uniform", self.schedule)


@dataclass(frozen=True)
class Repeated:
    """`event`, `count` times, each with fresh noise and fresh draws."""

    count: int
    event: Event

    def __post_init__(self) -> None:
        _check(isinstance(self.count, int) and self.count >= 1, "a whole count of at least 1", self.count)


@dataclass(frozen=True)
class Composed:
    """All of `events`, in order, each possibly chosen after seeing the earlier ones."""

    events: tuple[Event, ...]


Event = Gaussian | PoissonSampled | ShardTouched | Repeated | Composed
NOTHING = Composed(())


def to_json(event: Event) -> dict[str, Any]:
    match event:
        case Gaussian(noise_multiplier):
            return {"event": "gaussian", "noise_multiplier": noise_multiplier}
        case PoissonSampled(rate, inner, absence):
            return {"event": "poisson-sampled", "rate": rate, "absence": absence, "of": to_json(inner)}
        case ShardTouched(num_shards, schedule, inner, fixed):
            terms = {"num_shards": num_shards, "schedule": schedule, "fixed_slots": fixed}
            return {"event": "shard-touched", **terms, "of": to_json(inner)}
        case Repeated(count, inner):
            return {"event": "repeated", "count": count, "of": to_json(inner)}
        case Composed(events):
            return {"event": "composed", "of": [to_json(inner) for inner in events]}


def from_json(value: Any) -> Event:
    """The inverse of `to_json`; refuses unknown names, missing fields and fields it does not know."""
    try:
        fields = dict(value)
        name = fields.pop("event")
        match name:
            case "gaussian":
                event: Event = Gaussian(float(fields.pop("noise_multiplier")))
            case "poisson-sampled":
                inner = from_json(fields.pop("of"))
                event = PoissonSampled(float(fields.pop("rate")), inner, float(fields.pop("absence", 1.0)))
            case "shard-touched":
                inner = from_json(fields.pop("of"))
                terms = (fields.pop("schedule"), inner, bool(fields.pop("fixed_slots", False)))
                event = ShardTouched(int(fields.pop("num_shards")), *terms)
            case "repeated":
                event = Repeated(fields.pop("count"), from_json(fields.pop("of")))
            case "composed":
                event = Composed(tuple(from_json(inner) for inner in fields.pop("of")))
            case _:
                raise ValueError(f"unknown event {name!r}")
        if fields:
            raise ValueError(f"unknown fields {sorted(fields)}")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LedgerError("an event this version knows", f"{error}", "Use the Veilset that wrote it.") from error
    return event


def steps(event: Event) -> Counter[Event]:
    """Counts the single releases of a top-level composition: what a ledger compares plan and spending by.

    >>> steps(Composed((Repeated(3, Gaussian(2.0)), Gaussian(2.0))))
    Counter({Gaussian(noise_multiplier=2.0): 4})
    """
    match event:
        case Composed(events):
            total: Counter[Event] = Counter()
            for inner in events:
                total.update(steps(inner))
            return total
        case Repeated(count, inner):
            return Counter({step: count * times for step, times in steps(inner).items()})
        case _:
            return Counter({event: 1})


def whole_rounds(counts: Counter[Event]) -> Counter[Event]:
    """`counts` with every round-robin schedule run to the end of its round."""
    round_of = {e: e.num_shards if isinstance(e, ShardTouched) and e.schedule != "uniform" else 1 for e in counts}
    return Counter({event: -(-n // round_of[event]) * round_of[event] for event, n in counts.items()})


def from_steps(counts: Counter[Event]) -> Event:
    """The composition with these counts; the order of adaptive composition does not change any price used here."""
    return Composed(tuple(event if n == 1 else Repeated(n, event) for event, n in counts.items() if n))
