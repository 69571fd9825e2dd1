"""The attack against theorem 1 of DPAF finds what the theorem rules out, and nothing against plain DP-SGD."""

from __future__ import annotations

import dpaf_theorem_1_is_false as attack
import pytest

from veilset.privacy.noise import SeededNoise


def measured() -> float:
    noise = SeededNoise(1)
    absent, present = (attack.trained(world, noise, 2 * attack.RUNS) for world in (False, True))
    return attack.measured_epsilon(absent, present)


def test_the_theorem_claims_an_epsilon_of_a_fifth() -> None:
    """0.207: computed for the counter-example by the exact Gaussian formula, in another program."""
    assert attack.claimed_epsilon() == pytest.approx(0.207, abs=5e-4)


def test_the_attack_proves_more_than_ten() -> None:
    """10.2 is the most that 100,000 runs of each world can prove."""
    assert measured() == pytest.approx(10.2, abs=0.05)


def test_the_attack_proves_nothing_against_a_second_half_that_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain DP-SGD, which the theorem is mistaken for: the claimed epsilon is not exceeded."""
    monkeypatch.setattr(attack, "SECOND_RATE", 0.0)
    assert measured() < attack.claimed_epsilon()


def test_the_example_prints_claim_and_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    attack.main()
    claimed, found = capsys.readouterr().out.splitlines()
    assert "0.207" in claimed
    assert "> 10.2" in found
