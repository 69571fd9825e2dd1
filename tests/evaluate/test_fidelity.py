"""Fidelity scores end to end with the light extractor."""

import json
from dataclasses import replace

import pytest
import torch
from contract.cases import make_images

from veilset.data.spec import ImageSet, ImageSpec, Source
from veilset.errors import ConfigError, DataError
from veilset.evaluate.extractors import RandomConvExtractor
from veilset.evaluate.fidelity import DEFAULT_METRICS, METRICS, fidelity
from veilset.evaluate.scores import Score
from veilset.randomness import named_generator


def blobs(count, name="real", brightness=255, **more):
    """Bright squares at random places: a distribution that can be sampled again."""
    spec = ImageSpec(height=16, width=16, channels=1, class_names=("a", "b"))
    draws = named_generator(0, name)
    pixels = torch.zeros(count, 1, 16, 16, dtype=torch.uint8)
    for i, (top, left) in enumerate(torch.randint(0, 9, (count, 2), generator=draws).tolist()):
        pixels[i, 0, top : top + 8, left : left + 8] = brightness
    # Pixel noise, or else most images would be duplicates.
    pixels ^= torch.randint(0, 32, pixels.shape, generator=draws, dtype=torch.uint8)
    return ImageSet(spec=spec, pixels=pixels, labels=torch.arange(count) % 2, **more)


def light(synthetic, real, *metrics, **options):
    scores = fidelity(
        synthetic, real, extractor="random-conv-1", metrics=metrics or DEFAULT_METRICS, is_epochs=1, **options
    )
    return {score.metric: score for score in scores}


def test_every_metric_gives_one_score_with_the_extractor_beside_it():
    scores = light(blobs(60, "fake"), blobs(80), *METRICS)
    assert list(scores) == list(METRICS)
    for name, score in scores.items():
        assert Score.from_json(json.loads(json.dumps(score.to_json()))) == score
        assert (score.n, score.sd) == (1, None)
        assert isinstance(score.details["notes"], list)
        if METRICS[name].features:
            extractor = RandomConvExtractor()
            facts = {"name": extractor.name, "hash": extractor.hash, "dim": extractor.dim}
            assert score.details["extractor"] == facts
            assert "same extractor" in score.details["comparable"]
    assert scores["duplicates"].mean == 0
    assert 1 <= scores["is"].mean <= 2
    # One epoch on 80 images teaches nothing, and the score says so.
    assert "train it longer" in scores["is"].details["notes"][0]


def test_samples_of_the_same_distribution_come_closer_than_samples_of_another():
    real = blobs(400)
    same, other = light(blobs(400, "fake"), real), light(blobs(400, "fake", brightness=120), real)
    assert same["fid"].mean < 0.2 * other["fid"].mean
    assert same["kid"].mean < 0.2 * other["kid"].mean
    for name in ("precision", "recall", "density", "coverage"):
        assert same[name].mean > other[name].mean


def test_a_set_scores_perfectly_against_itself_and_shows_as_a_copy():
    real = blobs(300)
    scores = light(real, real)
    assert scores["fid"].mean < 1e-3
    assert scores["kid"].mean <= 0
    assert [scores[name].mean for name in ("precision", "recall", "coverage")] == [1, 1, 1]
    assert scores["nearest-real"].mean == 0
    assert scores["nearest-real"].details["exact_copies"] == 300
    assert scores["nearest-real"].details["real_to_real_quantiles"]["0.5"] > 0.1


def test_scores_against_private_images_are_private_and_those_against_a_benchmark_are_not():
    fake = blobs(20, "fake")
    assert all(score.touched_private_data for score in light(fake, blobs(20)).values())
    public = blobs(20, source=Source(benchmark="mnist"))
    assert not any(score.touched_private_data for score in light(fake, public).values())


@pytest.mark.parametrize("count", [2, 3, 10, 50])
def test_small_synthetic_sets_work_and_the_score_says_what_it_then_means(count):
    scores = light(blobs(count, "fake"), blobs(300))
    assert "rank-deficient" in scores["fid"].details["notes"][0]
    assert scores["kid"].details["subset_size"] == count
    if count <= 5:
        assert "too few images" in scores["coverage"].details["notes"][0]


def test_enough_images_need_no_note():
    scores = light(blobs(300, "fake"), blobs(400), "fid", "precision")
    assert scores["fid"].details["notes"] == scores["precision"].details["notes"] == []


def test_a_generator_of_few_distinct_images_shows():
    few = blobs(8, "fake")
    repeated = few.subset(torch.arange(400) % 8)
    scores = light(repeated, blobs(400), "duplicates", "recall", "coverage")
    assert scores["duplicates"].mean == pytest.approx(392 / 400)
    assert scores["duplicates"].details["num_unique"] == 8
    assert scores["recall"].mean < 0.05


def test_features_of_real_images_come_from_the_vault_the_second_time(tmp_path):
    real, seen = blobs(50), []

    class Spy(RandomConvExtractor):
        def features(self, images):
            seen.append(len(images))
            return super().features(images)

    first, second = (
        fidelity(blobs(20, "fake"), real, extractor=Spy(), metrics=["fid"], cache=tmp_path) for _ in range(2)
    )
    assert first[0].mean == second[0].mean
    assert sorted(seen) == [20, 20, 50]
    assert len(list(tmp_path.glob("features-*"))) == 1  # of the real images only


def test_no_extractor_is_asked_for_where_no_metric_needs_one(monkeypatch):
    monkeypatch.delenv("VEILSET_DATA", raising=False)
    (score,) = fidelity(blobs(9), blobs(9), extractor="fid-inception-2015", metrics=["duplicates"])
    assert "extractor" not in score.details


def test_progress_ends_exactly_at_its_total():
    steps = []
    light(blobs(30, "fake"), blobs(40), *METRICS, progress=lambda text, done, total: steps.append((done, total)))
    assert steps[-1] == (30 + 40 + len(METRICS) + 1,) * 2
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_evaluation_leaves_global_random_state_alone_and_repeats_itself():
    before = torch.get_rng_state()
    first, second = (light(blobs(30, "fake"), blobs(40)) for _ in range(2))
    assert {name: score.mean for name, score in first.items()} == {name: score.mean for name, score in second.items()}
    assert torch.equal(torch.get_rng_state(), before)


def test_null_records_do_not_count():
    real = blobs(40)
    damaged = replace(real, valid=torch.arange(40) >= 10)
    (score,) = light(blobs(30, "fake"), damaged, "fid").values()
    assert score.details["num_real"] == 30
    (expected,) = light(blobs(30, "fake"), real.subset(torch.arange(10, 40)), "fid").values()
    assert score.mean == expected.mean


def test_sets_that_do_not_fit_together_are_refused():
    with pytest.raises(DataError, match="like the other set's: 9x8 grey"):
        light(make_images(height=9), make_images())
    with pytest.raises(DataError, match="classes"):
        light(make_images((4, 4)), make_images((4, 4, 4)))
    with pytest.raises(DataError, match="at least 2 synthetic"):
        light(blobs(1), blobs(9))
    with pytest.raises(DataError, match="at least 2 real"):
        light(blobs(9), blobs(1))


@pytest.mark.parametrize("metrics", [(), ("fid", "fid"), ("fid", "beauty"), "fid"])
def test_unusable_lists_of_metrics_are_refused(metrics):
    with pytest.raises(ConfigError, match="distinct metrics"):
        fidelity(blobs(9), blobs(9), metrics=metrics)
