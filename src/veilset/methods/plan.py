"""A plan: what a fit will release and what that costs, from public facts only, before any pixel is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError
from veilset.methods.base import Forecast, Mechanism, PublicFacts, check_complete, get_mechanism, make_config, nearest
from veilset.privacy.accounting import calibrate, price
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Published, shown
from veilset.privacy.events import Composed, Event, from_json, to_json
from veilset.privacy.gaussian import check_delta, check_target
from veilset.version import __version__, read_as_ours
from veilset.wording import WEAK_ABOVE

Accounting = Literal["proven", "published", "none"]
MAX_ROWS_PER_USER = 10**6
HOPELESS = 0.5
"""Signal-to-noise below which a plan warns that little will be learned."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a fit needs to run on a host without the accountant; JSON both ways."""

    method: str
    config: dict[str, Any]
    facts: PublicFacts
    accounting: Accounting
    epsilon_target: float | None
    epsilon_planned: float | None
    """Proven epsilon of the planned releases and the crash reserve together; None where nothing is proven."""
    delta: float
    noise_multiplier: float
    planned: Event
    reserve: Event
    published: Published | None
    forecast: Forecast
    seed: int
    warnings: tuple[str, ...] = ()
    reservation: str | None = None
    """Name under which the data set's budget holds this plan's cost; owner's side only."""
    veilset: str = __version__
    """The version that made it."""
    size_from_data: bool = False
    """Whether the declared size is the exact one, rounded, because nobody declared another."""

    @property
    def not_private(self) -> str | None:
        """Why no privacy is claimed whatever the noise; None where it is."""
        if self.accounting == "none":
            return "trained without noise (accounting none)"
        method = get_mechanism(self.method)
        return method.unproven(make_config(method, self.config))

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "facts": {**asdict(self.facts), "spec": self.facts.spec.to_json()},
            "planned": to_json(self.planned),
            "reserve": to_json(self.reserve),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        with read_as_ours("a plan", value, ConfigError):
            fields = {"veilset": "", "size_from_data": True, **value}  # one that does not say so says the weaker thing
            facts = dict(fields["facts"])
            facts.update(spec=ImageSpec.from_json(facts["spec"]), unit=Unit(facts["unit"]))
            facts.update(adjacency=Adjacency(facts["adjacency"]))
            fields["facts"] = PublicFacts(**facts)
            fields.update(planned=from_json(fields["planned"]), reserve=from_json(fields["reserve"]))
            fields["published"] = None if fields["published"] is None else Published(**fields["published"])
            fields.update(forecast=Forecast(**fields["forecast"]), warnings=tuple(fields["warnings"]))
            published = fields["accounting"] == "published"
            make_config(get_mechanism(fields["method"]), fields["config"], published=published)
            return cls(**fields)

    def dumps(self) -> bytes:
        return json.dumps(self.to_json(), indent=1).encode()

    def public_summary(self) -> dict[str, Any]:
        """The plan without the name of its reservation."""
        return {name: value for name, value in self.to_json().items() if name != "reservation"}

    @classmethod
    def load(cls, path: Path) -> Plan:
        todo = "Check the path; `veilset plan --out` writes such files."
        if not path.is_file():
            raise ConfigError(f"a plan file at {path}", "no such file", todo)
        try:
            value = json.loads(path.read_text())
            if not isinstance(value, dict):
                raise ValueError("not a JSON object")
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"a plan file at {path}", f"another file ({error})", todo) from error
        return cls.from_json(value)

    def check_complete(self) -> None:
        """Refuses to be run with defaults of today for options that did not exist when it was made."""
        with read_as_ours("a plan", {"veilset": self.veilset}, ConfigError):
            check_complete(get_mechanism(self.method), self.config)


def make_plan(
    method: Mechanism,
    facts: PublicFacts,
    *,
    epsilon: float | None,
    delta: float = 1e-5,
    accounting: Accounting = "proven",
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Plan:
    """Resolves the configuration of a mechanism and calibrates its noise.

    Args:
        epsilon: the target; has no default on purpose, and is None only with accounting "none".
        settings: options of the method's Config by name.
    """
    config = requested_config(method, epsilon=epsilon, delta=delta, accounting=accounting, settings=settings)
    _check_sizes(facts, delta, capped=method.caps_users)
    published, given = accounting == "published", facts.adjacency
    if published:
        facts = replace(facts, adjacency=method.published_adjacency)
    multiplier = _noise_multiplier(method, config, facts, epsilon, delta, accounting)
    config = method.settled(config, facts, multiplier)
    planned, reserve = method.events(config, facts, multiplier), method.reserve(config, facts, multiplier)
    forecast = method.forecast(config, facts, multiplier)
    void = accounting == "none" or method.unproven(config) is not None
    proven = None if void else price(Composed((planned, reserve)), delta, facts.adjacency).epsilon
    return Plan(
        method=method.name,
        config=asdict(config),
        facts=facts,
        accounting=accounting,
        epsilon_target=epsilon,
        epsilon_planned=proven,
        delta=delta,
        noise_multiplier=multiplier,
        planned=planned,
        reserve=reserve,
        published=method.published_claim(config, facts, multiplier, delta) if published else None,
        forecast=forecast,
        seed=seed,
        warnings=(
            *_weakness(proven),
            *_warnings(facts, delta, forecast, accounting, given),
            *method.cautions(config, facts),
        ),
    )


def requested_config(
    method: Mechanism,
    *,
    epsilon: float | None,
    delta: float,
    accounting: Accounting,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """The configuration a plan begins with.

    Raises: ConfigError for all that is wrong whatever the images are, so that nobody reads a large folder first.
    """
    if accounting not in get_args(Accounting):
        choices = get_args(Accounting)
        raise ConfigError(f"accounting {', '.join(choices)}", f"{accounting!r}", nearest(accounting, choices))
    config = make_config(method, settings or {}, published=accounting == "published")
    if accounting == "none":
        return config
    if epsilon is None:
        raise ConfigError(
            "an epsilon", "none", "Pass epsilon (--epsilon): only you can choose it, so it has no default."
        )
    check_target(epsilon, delta)
    if accounting == "proven" and (reason := method.unproven(config)) is not None:
        raise ConfigError(
            "settings with a proof", reason, "Leave them out, or see what they do with --accounting published or none."
        )
    return config


def _check_sizes(facts: PublicFacts, delta: float, *, capped: bool) -> None:
    if not (isinstance(facts.declared_size, int) and facts.declared_size >= 1):
        raise ConfigError("a declared size of at least 1", f"{facts.declared_size}", "Pass --declared-size.")
    check_delta(delta)
    if delta * facts.declared_size >= 1:
        raise ConfigError(
            f"a delta below 1 / declared size = {1 / facts.declared_size:.2g}",
            f"{delta:g}",
            "At this delta publishing one record outright would be allowed. "
            f"Use --delta {_usable_delta(facts.declared_size):g} or a smaller one.",
        )
    if (facts.rows_per_user or 0) > MAX_ROWS_PER_USER:
        raise ConfigError(
            f"at most {MAX_ROWS_PER_USER} images per user",
            f"{facts.rows_per_user}",
            "Noise grows with this cap: lower it.",
        )
    if facts.unit is Unit.RECORD and facts.rows_per_user is not None:
        raise ConfigError(
            "a cap of images per user only at user level", "unit record", "Add --unit user, or drop the cap."
        )
    needless = facts.rows_per_user is None and not capped
    declared = isinstance(facts.rows_per_user, int) and facts.rows_per_user >= 1
    if facts.unit is Unit.USER and not (needless or declared):
        raise ConfigError(
            "a declared whole cap of images per user", f"{facts.rows_per_user}", "Pass --images-per-user."
        )


def _usable_delta(declared_size: int) -> float:
    """A power of ten, below a tenth of 1 / declared size."""
    return float(10.0 ** -(len(str(declared_size)) + 1))


def _noise_multiplier(
    method: Mechanism, config: Any, facts: PublicFacts, epsilon: float | None, delta: float, accounting: Accounting
) -> float:
    if accounting == "none":
        return 1.0  # recorded, never used: the door is given a source of zeros
    assert epsilon is not None  # or `requested_config` had refused it
    if accounting == "published":
        return method.published_noise(config, facts, epsilon, delta)

    def everything(multiplier: float) -> Event:
        return Composed((method.events(config, facts, multiplier), method.reserve(config, facts, multiplier)))

    return calibrate(everything, epsilon, delta, facts.adjacency)


def _weakness(epsilon: float | None) -> tuple[str, ...]:
    if epsilon is None or epsilon <= WEAK_ABOVE + 1e-9:
        return ()
    return (f"epsilon {shown(epsilon)} is a weak guarantee: an attacker may become e^{epsilon:.3g} times surer.",)


def _warnings(
    facts: PublicFacts, delta: float, forecast: Forecast, accounting: Accounting, given: Adjacency
) -> tuple[str, ...]:
    warnings = []
    if facts.adjacency is not given:
        warnings.append(f"the published epsilon is about {facts.adjacency}, so the plan is too, instead of {given}.")
    if delta * facts.declared_size > 0.1:
        warnings.append(
            f"delta x declared size is {delta * facts.declared_size:.2g}: delta should be well below 1 / number of "
            "records, or a release that exposes a few of them would still satisfy the claim. "
            f"Use --delta {_usable_delta(facts.declared_size):g} or a smaller one."
        )
    if forecast.signal_to_noise < HOPELESS and accounting != "none":
        warnings.append(
            f"the noise is about {1 / forecast.signal_to_noise:.0f} times the signal of a class: expect little. More "
            "images of a class or a larger epsilon help."
        )
    later = forecast.later_signal_to_noise
    if later is not None and later < HOPELESS and accounting != "none":
        warnings.append(
            f"after the sketch, the noise is about {1 / later:.0f} times the signal: expect no more than the sketch "
            "gives. Use --method sketch, or a --sketch-share nearer to 1."
        )
    return tuple(warnings)
