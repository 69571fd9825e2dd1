import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilset.errors import LedgerError
from veilset.privacy.events import (
    NOTHING,
    Composed,
    Gaussian,
    PoissonSampled,
    Repeated,
    ShardTouched,
    from_json,
    from_steps,
    steps,
    to_json,
)

positive = st.floats(1e-6, 1e6)
trees = st.recursive(
    st.builds(Gaussian, positive),
    lambda inner: (
        st.builds(PoissonSampled, st.floats(1e-6, 1.0), inner, st.floats(0.5, 1.0))
        | st.builds(ShardTouched, st.integers(1, 5000), st.sampled_from(["round-robin", "uniform"]), inner)
        | st.builds(Repeated, st.integers(1, 10**6), inner)
        | st.builds(Composed, st.lists(inner, max_size=3).map(tuple))
    ),
    max_leaves=8,
)


@given(trees)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_event_tree_survives_json(event) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@given(trees)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_counting_steps_keeps_every_release(event) -> None:
    assert steps(from_steps(steps(event))) == steps(event)


@pytest.mark.parametrize(
    "value",
    [
        {"event": "laplace", "scale": 1.0},
        {"event": "gaussian"},
        {"event": "gaussian", "noise_multiplier": 1.0, "sensitivity": 2.0},
        {"event": "gaussian", "noise_multiplier": math.nan},
        {"event": "repeated", "count": 1.5, "of": {"event": "gaussian", "noise_multiplier": 1.0}},
        {"event": "repeated", "count": 0, "of": {"event": "gaussian", "noise_multiplier": 1.0}},
        {"noise_multiplier": 1.0},
        [],
        None,
        "gaussian",
    ],
    ids=str,
)
def test_unknown_or_broken_events_are_refused(value: object) -> None:
    with pytest.raises(LedgerError):
        from_json(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0),
        lambda: Gaussian(-1.0),
        lambda: Gaussian(math.inf),
        lambda: Gaussian(math.nan),
        lambda: PoissonSampled(0.0, Gaussian(1.0)),
        lambda: PoissonSampled(1.1, Gaussian(1.0)),
        lambda: PoissonSampled(math.nan, Gaussian(1.0)),
        lambda: PoissonSampled(0.1, Gaussian(1.0), 0.4),
        lambda: PoissonSampled(0.1, Gaussian(1.0), 1.1),
        lambda: ShardTouched(0, "uniform", Gaussian(1.0)),
        lambda: ShardTouched(3, "random", Gaussian(1.0)),
        lambda: Repeated(0, Gaussian(1.0)),
        lambda: Repeated(2.0, Gaussian(1.0)),
    ],
)
def test_impossible_events_cannot_be_made(make) -> None:
    with pytest.raises(LedgerError):
        make()


def test_steps_look_through_compositions_but_not_into_draws() -> None:
    draw = PoissonSampled(0.1, Repeated(4, Gaussian(1.0)))
    event = Composed((Repeated(3, Composed((draw, Gaussian(2.0)))), draw))
    assert steps(event) == Counter({draw: 4, Gaussian(2.0): 3})
    assert steps(NOTHING) == Counter()
