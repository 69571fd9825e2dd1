"""Noisy scores in a release: what follows from noisy counts, and that nothing else can stand there."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from veilset.artifact import Privacy
from veilset.errors import ArtifactError, VeilsetError
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim, shown
from veilset.privacy.events import NOTHING, Event, Gaussian
from veilset.privacy.ledger import PrivacyLedger
from veilset.score_release import (
    ASSUMPTIONS,
    NoisyScores,
    _accuracy,
    benchmark_in,
    benchmark_stamps,
    read_noisy_scores,
    scores_bytes,
    together,
)


def privacy(folder: Path, event: Event, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Privacy:
    ledger = PrivacyLedger.open_new(
        folder / f"{adjacency}.jsonl", planned=event, reserve=NOTHING, adjacency=adjacency, unit=Unit.RECORD, delta=1e-5
    )
    ledger.charge(event)
    ledger.close()
    ledger.unlock()
    claim = Claim.from_parts([[ledger]], assumptions=ASSUMPTIONS, published=None, stamps=())
    return Privacy.of_run(claim, ledger.lines())


@pytest.fixture
def scores(tmp_path: Path) -> NoisyScores:
    return NoisyScores(
        classifiers=("cnn", "mlp"), seeds=(0, 1), preset=None, num_synthetic=500, images_per_user=None,
        reserved_before_fit=True, correct=(81.0, 79.0, 60.0, 61.0), total=100.0,
        privacy=privacy(tmp_path, Gaussian(2.0)),
    )  # fmt: skip


def test_what_noise_led_beyond_all_or_nothing_says_so(scores: NoisyScores) -> None:
    for correct, told in ((1.2, True), (-0.1, True), (0.5, False)):
        noisy = replace(scores, correct=tuple(correct * scores.total for _ in scores.correct))
        assert all(("cut off" in one.note) == told for one in noisy.accuracies)


def test_several_purchases_cost_what_one_of_their_squared_mu_costs(scores: NoisyScores, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for count in (2, 4):
        epsilon = Claim.from_parts(
            [[privacy(tmp_path / "one", Gaussian(2.0 / math.sqrt(count))).record]],
            assumptions=(), published=None, stamps=(),
        ).epsilon  # fmt: skip
        assert together([scores] * count) == f"epsilon {shown(epsilon)} at delta 1e-05, if they are of one test set"
        (tmp_path / "one" / "add-remove.jsonl").unlink()
    assert together([scores]) == ""


def test_accuracies_are_noisy_correct_over_noisy_total_by_classifier_and_over_all(scores: NoisyScores) -> None:
    found = {metric: accuracy for metric, accuracy, _ in scores.accuracies}
    assert found == pytest.approx({"gen2real/cnn": 0.80, "gen2real/mlp": 0.605, "gen2real/mean": 0.7025})


def test_the_noise_is_the_ledgers_times_the_bound_of_a_row(scores: NoisyScores, tmp_path: Path) -> None:
    assert scores.noise_std == pytest.approx(2.0 * math.sqrt(5))
    replaced = replace(scores, privacy=privacy(tmp_path, Gaussian(2.0), Adjacency.REPLACE))
    assert replaced.noise_std == pytest.approx(2.0 * math.sqrt(2 * 5))
    assert replace(scores, images_per_user=3).noise_std == pytest.approx(3 * scores.noise_std)


@pytest.mark.parametrize(("images", "noise"), [(1000, 0.1), (1000, 20.0), (20_000, 60.0)])
def test_standard_errors_cover_noise_and_sampling_together(images: int, noise: float) -> None:
    draws = torch.Generator().manual_seed(1)
    truth, counts = 0.8, 3
    errors = []
    for _ in range(2000):
        right = float((torch.rand(images, generator=draws) < truth).sum())
        noisy = right + noise * torch.randn(counts, generator=draws, dtype=torch.float64)
        total = images + noise * float(torch.randn((), generator=draws, dtype=torch.float64))
        share, error = _accuracy(noisy.tolist(), total, noise)
        errors.append((share - truth) / error)
    assert float(torch.tensor(errors).std()) == pytest.approx(1.0, abs=0.08)


def test_noise_that_eats_a_tiny_test_set_gives_a_share_and_an_honest_error() -> None:
    for correct, total in (([5.0], -40.0), ([-12.0], 3.0), ([900.0], 2.0)):
        share, error = _accuracy(correct, total, 30.0)
        assert 0 <= share <= 1
        assert error > 1


def test_a_perfect_score_of_few_images_is_not_shown_as_certain() -> None:
    assert _accuracy([20.0], 20.0, 1e-6)[1] > 0.04


def test_scores_survive_the_way_to_the_file_and_back(scores: NoisyScores) -> None:
    data = scores_bytes([scores, scores])
    assert read_noisy_scores(data) == [scores, scores]
    assert scores_bytes(read_noisy_scores(data)) == data


def changed(scores: NoisyScores, **changes: Any) -> bytes:
    return json.dumps({"purchases": [{**scores.to_json(), **changes}]}, indent=1).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"accuracies": [{"metric": "gen2real/cnn", "accuracy": 0.99, "standard_error": 0.001}]},
        {"noise_std": 0.1},
        {"exact_correct": [80, 80, 60, 60]},
        {"per_class": {"cat": 0.9}},
        {"subject": "training set"},
        {"correct": [80.0]},
        {"total": float("nan")},
        {"total": "many"},
        {"classifiers": ["cnn", "/home/owner"]},
        {"seeds": [0, 1, 2]},
        {"ledger": []},
        {"claim": {}},
    ],
    ids=str,
)
def test_anything_that_does_not_follow_from_the_noisy_counts_is_refused(
    scores: NoisyScores, changes: dict[str, Any]
) -> None:
    assert read_noisy_scores(changed(scores))
    with pytest.raises(VeilsetError):
        read_noisy_scores(changed(scores, **changes))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"purchases": 3}', b'{\n "purchases": []\n}', b'{"purchases": [3]}']
)
def test_a_file_that_holds_no_scores_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        read_noisy_scores(data)


@pytest.mark.parametrize("name", ["mnist", "toys (grey)", "Kuzushiji 49, 28 x 28"])
def test_the_name_of_a_benchmark_is_read_as_it_was_stamped(name: str) -> None:
    assert benchmark_in(("another stamp", *benchmark_stamps(name))) == name


@pytest.mark.parametrize("stamps", [(), ("public benchmark data",), ("public benchmark data (a|b)",), ("(mnist)",)])
def test_what_is_no_stamp_of_a_benchmark_names_none(stamps: tuple[str, ...]) -> None:
    assert benchmark_in(stamps) is None
