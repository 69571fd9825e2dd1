from dataclasses import replace

import pytest

from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim, Published
from veilset.privacy.events import NOTHING, Composed, Gaussian, PoissonSampled, Repeated, ShardTouched
from veilset.report.content import WEAK_ABOVE, describe, headlines

CLAIM = Claim(
    epsilon=1.0, delta=1e-5, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD, accountant="exact Gaussian", mu=0.27
)


def test_a_proven_claim_is_called_private():
    (line,) = headlines(CLAIM)
    assert (line.label, line.text, line.tone) == ("Private", "epsilon 1 for adding or removing one image", "good")


def test_a_large_epsilon_is_not_called_private():
    (line,) = headlines(replace(CLAIM, epsilon=WEAK_ABOVE + 0.1, unit=Unit.USER, adjacency=Adjacency.REPLACE))
    assert (line.label, line.tone) == ("Weak guarantee", "weak")
    assert line.text == "epsilon 10.1 for replacing all images of one person"


def test_a_refuted_epsilon_is_red_and_never_without_its_status():
    proven, published = headlines(replace(CLAIM, epsilon=610.0, published=Published(9.99, "refuted", "a paper")))
    assert (proven.label, proven.tone) == ("Proven", "weak")
    assert (published.label, published.text, published.tone) == ("Published, refuted", "epsilon 9.99", "bad")
    assert "Do not rely on it" in published.note


def test_nothing_is_called_private_without_an_epsilon():
    stamps = ("NOT PRIVATE: reproducible noise: no privacy claim",)
    lines = headlines(replace(CLAIM, epsilon=None, stamps=stamps, published=Published(1.0, "sound", "a paper")))
    assert [line.label for line in lines] == ["NOT PRIVATE", "Published, sound"]
    assert lines[0].note == "reproducible noise: no privacy claim"
    assert headlines(replace(CLAIM, epsilon=None))[0].label == "NOT PRIVATE"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Gaussian(1.0), "a vector with Gaussian noise"),
        (
            PoissonSampled(0.01, Gaussian(1.0)),
            "from a secret random batch (each record with chance 0.01): a vector with Gaussian noise",
        ),
        (
            ShardTouched(1000, "uniform", Repeated(32, Gaussian(1.07))),
            "from one of 1,000 shards drawn at random: 32 × a vector with Gaussian noise",
        ),
        (
            Composed((Gaussian(1.0), Repeated(2, Gaussian(2.0)))),
            "a vector with Gaussian noise and 2 × a vector with Gaussian noise",
        ),
        (NOTHING, "nothing"),
    ],
)
def test_every_event_is_put_into_words(event, words):
    assert describe(event) == words
