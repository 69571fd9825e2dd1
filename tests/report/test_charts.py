from dataclasses import replace

import pytest

from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim, shown
from veilset.report.charts import SIDE, attack_curve

CLAIM = Claim(epsilon=1.0, delta=1e-5, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD, accountant="exact", mu=0.268)


@pytest.mark.parametrize("mu", [0.268, None], ids=["one Gaussian", "epsilon and delta only"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 800.0])
def test_the_attack_curve_climbs_from_corner_to_corner_above_guessing(epsilon, mu):
    curve = attack_curve(replace(CLAIM, epsilon=epsilon, mu=mu))
    points = [tuple(map(float, point.split(","))) for point in curve["points"].split()]
    assert points[0] == (0.0, SIDE)
    assert points[-1] == (SIDE, 0.0)
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert all(0 <= y <= SIDE - x + 1e-6 for x, y in points)


def test_readings_agree_with_the_claim():
    readings = dict(attack_curve(CLAIM)["readings"])
    assert readings["1 %"] == f"{shown(100 * CLAIM.attack_power(0.01))} %"


@pytest.mark.parametrize("mu", [0.26805, 1.12124, 2.000446])
def test_no_reading_is_below_the_bound_it_stands_for(mu):
    claim = replace(CLAIM, mu=mu)
    for rate, power in attack_curve(claim)["readings"]:
        assert float(power.removesuffix(" %")) >= 100 * claim.attack_power(float(rate.removesuffix(" %")) / 100)


def test_there_is_no_curve_without_a_claim():
    assert attack_curve(replace(CLAIM, epsilon=None, mu=None)) is None
