import json
import math
from pathlib import Path

import pytest
from checks import ADD, DELTA, REPLACE, open_ledger

from veilset.errors import LedgerError, MixedAdjacency
from veilset.privacy import ledger
from veilset.privacy.accounting import price
from veilset.privacy.bounds import Unit
from veilset.privacy.claim import (
    FURTHER,
    KERNEL_ASSUMPTIONS,
    UNIT_ASSUMPTIONS,
    Claim,
    Published,
    price_of_parts,
    renyi_of_parts,
)
from veilset.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated
from veilset.privacy.gaussian import gaussian_mu
from veilset.privacy.ledger import PrivacyLedger


def spent_ledger(folder: Path, event: Event, count: int = 1, **terms: object) -> PrivacyLedger:
    book = open_ledger(folder / "ledger.jsonl", Repeated(count, event), **terms)
    for _ in range(count):
        book.charge(event)
    book.close()
    return book


def claim_of(book: PrivacyLedger, published: Published | None = None, stamps: tuple[str, ...] = ()) -> Claim:
    return Claim.from_parts([[book]], assumptions=("a method's own",), published=published, stamps=stamps)


def gaussian_claim(epsilon: float, **changes: object) -> Claim:
    terms = {"delta": DELTA, "adjacency": ADD, "unit": Unit.RECORD, "accountant": "exact Gaussian"}
    return Claim(**{"epsilon": epsilon, "mu": gaussian_mu(epsilon, DELTA), **terms, **changes})


def test_a_claim_prices_what_the_ledger_charged(tmp_path: Path) -> None:
    draw = PoissonSampled(0.01, Gaussian(1.0))
    claim = claim_of(spent_ledger(tmp_path, draw, 600))
    assert claim.epsilon == price(Repeated(600, draw), DELTA, ADD).epsilon
    assert claim.cross_check >= claim.epsilon
    assert claim.mu is None
    assert set(claim.assumptions) == {*KERNEL_ASSUMPTIONS, UNIT_ASSUMPTIONS[Unit.RECORD], "a method's own"}


def test_a_crash_raises_the_claim_and_never_lowers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "BLOCKS", 1)  # the whole plan is charged at once
    event, path = Gaussian(30.0), tmp_path / "ledger.jsonl"
    book = open_ledger(path, Repeated(500, event), reserve=Repeated(50, event))
    book.charge(event)
    book.unlock()
    again = PrivacyLedger.resume(path)
    again.charge(event)
    assert claim_of(again).epsilon == price(Repeated(550, event), DELTA, ADD).epsilon


def test_a_ledger_without_privacy_gives_no_epsilon_and_says_so(tmp_path: Path) -> None:
    claim = claim_of(spent_ledger(tmp_path, Gaussian(1.0), not_private="reproducible noise"), stamps=("another",))
    assert claim.epsilon is None
    assert claim.stamps == ("NOT PRIVATE: reproducible noise", "another")
    assert str(claim).startswith("NOT PRIVATE: reproducible noise")
    assert "eps_proven=none" in str(claim)
    assert claim.attack_power() is None


@pytest.mark.parametrize("not_private", [None, "a test"])
def test_a_claim_survives_json(not_private: str | None, tmp_path: Path) -> None:
    published = Published(9.99, "refuted", "GS-WGAN")
    book = spent_ledger(tmp_path, Gaussian(0.5), not_private=not_private, adjacency=REPLACE, unit=Unit.USER)
    claim = claim_of(book, published, ("stamp",))
    assert Claim.from_json(json.loads(json.dumps(claim.to_json()))) == claim


@pytest.mark.parametrize("value", [{}, {"published": None}, {"published": {"epsilon": 1}, "epsilon": 1}])
def test_a_broken_claim_is_refused(value: dict) -> None:
    with pytest.raises(LedgerError):
        Claim.from_json(value)


def test_the_printed_line_holds_everything_that_gives_epsilon_its_meaning(tmp_path: Path) -> None:
    book = spent_ledger(tmp_path, Gaussian(1 / gaussian_mu(1.0, DELTA)), adjacency=REPLACE, unit=Unit.USER)
    line = str(claim_of(book, Published(0.9, "conservative", "a paper")))
    for part in ("eps_proven=1 ", "delta=1e-05", "adjacency=replace", "unit=user", "mu=0.2681", "eps_as_published=0.9",
                 "(status: conservative)"):  # fmt: skip
        assert part in line


@pytest.mark.parametrize(
    ("epsilon", "power"), [(1, 0.0198), (10, 0.372)], ids=["sketch notes: 1.98 %", "sketch notes: 37 %"]
)
def test_attack_power_at_one_percent_false_alarms(epsilon: float, power: float) -> None:
    assert gaussian_claim(epsilon).attack_power() == pytest.approx(power, rel=5e-3)


def test_attack_power_without_mu_follows_from_epsilon_and_delta() -> None:
    assert gaussian_claim(1, mu=None).attack_power(0.01) == pytest.approx(0.0271828 + DELTA, rel=1e-4)
    assert gaussian_claim(1000, mu=None).attack_power(0.01) == 1.0
    # Whoever accuses half of the absent misses at least 1 / e of the half they are not.
    assert gaussian_claim(1, mu=None).attack_power(0.5) == pytest.approx(1 - 0.5 / math.e, abs=2 * DELTA)


def test_releases_on_samples_bound_attacks_almost_as_closely_as_a_gaussian_of_the_same_epsilon(tmp_path: Path) -> None:
    """Many small samples are nearly Gaussian, so the exact curve of the same epsilon is what to compare with."""
    book = spent_ledger(tmp_path, PoissonSampled(0.05, Gaussian(1.6)), 3_000)
    claim = claim_of(book)
    assert len(claim.further) == len(FURTHER)
    for epsilon, delta in claim.further:
        assert epsilon == price(book.spent, delta, ADD).epsilon < claim.epsilon
    for rate in (0.001, 0.01, 0.1, 0.5, 0.9):
        exact = gaussian_claim(claim.epsilon).attack_power(rate)
        assert exact * 0.95 < claim.attack_power(rate) < min(1.0, exact + 0.1), rate
    assert Claim.from_json(json.loads(json.dumps(claim.to_json()))) == claim


@pytest.mark.parametrize(
    ("epsilon", "replaced"), [(1, 2.155), (10, 24.4)], ids=["sketch notes print 2.16", "sketch notes: 24.4"]
)
def test_epsilon_of_the_same_noise_under_replace(epsilon: float, replaced: float) -> None:
    assert gaussian_claim(epsilon).as_replace == pytest.approx(replaced, rel=2e-3)
    assert gaussian_claim(epsilon, adjacency=REPLACE).as_replace is None
    assert gaussian_claim(epsilon, mu=None).as_replace is None


def ledgers(folder: Path, *events: Event, **terms: object) -> list[PrivacyLedger]:
    books = []
    for place, event in enumerate(events):
        (folder / f"{place}").mkdir(parents=True)
        books.append(spent_ledger(folder / f"{place}", event, **terms))
    return books


def test_ledgers_about_the_same_people_compose_and_parts_of_different_people_cost_the_dearest(tmp_path: Path) -> None:
    cheap, middle, dear = ledgers(tmp_path, Gaussian(4.0), Gaussian(3.0), Gaussian(2.0))
    both = price(Composed((Gaussian(4.0), Gaussian(3.0))), DELTA, ADD)
    assert price_of_parts([[cheap, middle]]) == both
    assert both.mu == pytest.approx((4.0**-2 + 3.0**-2) ** 0.5)
    for parts in ([[cheap], [dear], [middle]], [[dear], [cheap]], [[dear]]):
        assert price_of_parts(parts) == price(Gaussian(2.0), DELTA, ADD)
    assert price_of_parts([[cheap, middle], [cheap]]) == both
    assert price_of_parts([[cheap], [dear, cheap]]).epsilon > price_of_parts([[dear], [cheap]]).epsilon


def test_a_part_priced_without_a_formula_still_counts(tmp_path: Path) -> None:
    draws = PoissonSampled(0.5, Gaussian(0.8))
    plain, drawn = ledgers(tmp_path, Gaussian(50.0), draws)
    cost = price_of_parts([[plain], [drawn]])
    assert cost == price(draws, DELTA, ADD)
    assert renyi_of_parts([[plain], [drawn]]) >= cost.epsilon


def test_ledgers_on_other_terms_and_empty_parts_are_not_combined(tmp_path: Path) -> None:
    (one,) = ledgers(tmp_path / "a", Gaussian(2.0))
    for place, terms in enumerate(({"delta": 1e-6}, {"adjacency": REPLACE}, {"unit": Unit.USER})):
        (other,) = ledgers(tmp_path / f"b{place}", Gaussian(2.0), **terms)
        for parts in ([[one, other]], [[one], [other]]):
            with pytest.raises(MixedAdjacency):
                price_of_parts(parts)
    for parts in ([], [[]], [[one], []]):
        with pytest.raises(LedgerError):
            price_of_parts(parts)


def test_one_void_ledger_voids_all_that_is_combined_with_it(tmp_path: Path) -> None:
    (one,) = ledgers(tmp_path / "a", Gaussian(2.0))
    (void,) = ledgers(tmp_path / "b", Gaussian(2.0), not_private="no noise")
    for parts in ([[one, void]], [[void], [one]]):
        claim = Claim.from_parts(parts, assumptions=(), published=None, stamps=("kept",))
        assert (claim.epsilon, claim.stamps) == (None, ("NOT PRIVATE: no noise", "kept"))


def test_a_claim_rules_out_exact_scores_and_not_the_noisy_ones_that_a_release_may_hold() -> None:
    (about_scores,) = [text for text in KERNEL_ASSUMPTIONS if "score" in text]
    assert about_scores.startswith("no exact score on the real images")
