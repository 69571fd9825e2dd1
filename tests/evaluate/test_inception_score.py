import dataclasses
import math

import pytest
import torch
from contract.cases import make_images

from veilset.data.spec import ImageSet, ImageSpec
from veilset.errors import ConfigError, DataError
from veilset.evaluate.inception_score import RECIPE, inception_score, score_classifier
from veilset.randomness import named_generator


def score(probabilities, **options):
    return inception_score(probabilities.log(), named_generator(0, "is"), **options)


def test_sure_and_balanced_answers_score_the_number_of_classes():
    mean, sd, splits = score(torch.eye(4).repeat(2500, 1))  # sorted by class in every four rows, with exact zeros
    assert mean == pytest.approx(4, rel=0.01)
    assert sd < 0.05
    assert splits == 10


def test_samples_that_come_sorted_by_class_score_the_same():
    assert score(torch.eye(4).repeat_interleave(2500, 0))[0] == pytest.approx(4, rel=0.01)


def test_a_collapsed_or_undecided_generator_scores_one():
    assert score(torch.eye(4)[:1].repeat(100, 1))[0] == pytest.approx(1)
    assert score(torch.full((100, 4), 0.25))[0] == pytest.approx(1)


def test_the_score_of_two_rows_equals_the_hand_computed_one():
    rows = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    marginal = [0.6, 0.4]
    divergences = [sum(p * math.log(p / q) for p, q in zip(row, marginal, strict=True)) for row in rows.tolist()]
    mean, sd, splits = score(rows)
    assert mean == pytest.approx(math.exp(sum(divergences) / 2), rel=1e-6)
    assert (sd, splits) == (None, 1)


def test_one_image_has_no_score():
    with pytest.raises(DataError, match="at least 2"):
        score(torch.eye(2)[:1])


def bars(count):
    """Horizontal and vertical bars: mirrored or shifted, they stay what they are."""
    spec = ImageSpec(height=12, width=12, channels=1, class_names=("lying", "standing"))
    pixels = torch.zeros(count, 1, 12, 12, dtype=torch.uint8)
    for i, place in enumerate(torch.randint(2, 8, (count,), generator=named_generator(0, "bars")).tolist()):
        area = (slice(place, place + 2), slice(2, 10))
        pixels[i, 0][area if i % 2 == 0 else area[::-1]] = 255
    return ImageSet(spec=spec, pixels=pixels, labels=torch.arange(count) % 2)


@pytest.mark.slow
def test_the_classifier_learns_two_plain_classes(monkeypatch):
    monkeypatch.setattr("veilset.evaluate.inception_score.RECIPE", dataclasses.replace(RECIPE, batch=8))
    real = bars(97)  # the last batch has one image
    answers = score_classifier(real, epochs=6).log_probabilities(real.pixels)
    assert float((answers.argmax(1) == real.labels).double().mean()) > 0.9


def test_the_classifier_is_read_back_from_the_vault(tmp_path):
    real, ticks = make_images(), []
    first, again = (score_classifier(real, epochs=2, cache=tmp_path, tick=ticks.append) for _ in range(2))
    assert ticks == [1, 1, 2]
    assert torch.equal(again.log_probabilities(real.pixels), first.log_probabilities(real.pixels))
    (file,) = tmp_path.glob("is-*")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_damaged_classifier_is_trained_again(tmp_path):
    real, ticks = make_images(), []
    score_classifier(real, epochs=1, cache=tmp_path, tick=ticks.append)
    (file,) = tmp_path.glob("is-*")
    file.write_bytes(b"damaged")
    score_classifier(real, epochs=1, cache=tmp_path, tick=ticks.append)
    assert ticks == [1, 1]
    assert file.stat().st_size > 1000


def test_training_repeats_itself_and_leaves_global_random_state_alone():
    before, real = torch.get_rng_state(), make_images()
    first, second = (score_classifier(real, epochs=1).log_probabilities(real.pixels) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_epochs_are_refused():
    with pytest.raises(ConfigError, match="1 or more epochs"):
        score_classifier(make_images(), epochs=0)


def test_the_learning_rate_falls_to_a_tenth_after_40_of_50_epochs():
    assert [RECIPE.rate_in(epoch, 50) for epoch in (0, 39, 40, 49)] == pytest.approx([0.1, 0.1, 0.01, 0.01])
