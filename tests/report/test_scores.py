import pytest

from veilset.data.spec import ImageSpec
from veilset.evaluate.scores import Score
from veilset.report.scores import score_content

SPEC = ImageSpec(height=8, width=8, channels=1, class_names=("cat", "dog"))


def score(metric="gen2real/cnn", values=(0.5, 0.75), **details):
    return score_content(Score.over_seeds(metric, values, touched_private_data=False, details=details), SPEC)


def test_accuracies_are_shown_in_per_cent_with_their_spread():
    shown = score()
    assert shown["value"] == "62.50 %"
    assert shown["spread"] == "± 17.68 % over 2 seeds"


def test_other_metrics_are_shown_as_they_are():
    shown = score("fid", (61.234,))
    assert (shown["value"], shown["spread"], shown["meaning"]) == ("61.23", "one seed", "")


def test_bars_follow_the_order_of_the_classes():
    bars = score(per_class={"dog": 0.25, "cat": 1.0})["bars"]
    assert bars == [{"name": "cat", "percent": "100.0"}, {"name": "dog", "percent": "25.0"}]


@pytest.mark.parametrize(
    "per_class",
    [None, [1, 2], "x", {"cow": 0.5}, {"cat": 1.5}, {"cat": float("nan")}, {"cat": "<b>"}, {"cat": True}],
)
def test_what_is_not_an_accuracy_of_a_class_gets_no_bar(per_class):
    assert score(per_class=per_class)["bars"] == []
