import pytest
from contract.cases import make_images

from veilset.data.spec import ImageSpec
from veilset.evaluate.extractors import RandomConvExtractor
from veilset.evaluate.fidelity import fidelity
from veilset.evaluate.scores import Score
from veilset.report.scores import column_name, score_content

SPEC = ImageSpec(height=8, width=8, channels=1, class_names=("cat", "dog"))


def score(metric="gen2real/cnn", values=(0.5, 0.75), **details):
    return score_content(Score.over_seeds(metric, values, touched_private_data=False, details=details), SPEC)


def test_accuracies_are_shown_in_per_cent_with_their_spread():
    shown = score()
    assert shown["value"] == "62.50 %"
    assert shown["spread"] == "± 17.68 % over 2 seeds"


def test_other_metrics_are_shown_as_they_are():
    shown = score("novelty", (61.234,))
    assert (shown["value"], shown["spread"], shown["meaning"]) == ("61.23", "one seed", "")


@pytest.mark.parametrize("metric", ["fid", "kid", "is", "precision", "recall", "density", "coverage"])
def test_a_known_metric_says_which_way_is_better(metric):
    assert "is better" in score(metric, (0.5,))["meaning"]


HASH = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"


def test_the_extractor_is_named_with_its_hash_as_it_was_written():
    images = make_images()
    extractor = RandomConvExtractor()
    (found,) = fidelity(images, images, metrics=("fid",), extractor=extractor)
    assert score_content(found, SPEC)["extractor"] == f"random-conv-1 {extractor.hash[:12]}"
    assert column_name(found) == f"fid (random-conv-1 {extractor.hash[:12]}, {len(images)} and {len(images)} images)"


@pytest.mark.parametrize("extractor", [None, 5, "/home/ann/private.pt", ["x"], {"name": "a/b", "hash": "/etc"}, "<b>"])
def test_an_extractor_that_could_name_a_path_is_not_shown(extractor):
    assert score("fid", (61.2,), extractor=extractor)["extractor"] == ""


def test_values_of_different_extractors_or_protocols_get_different_columns():
    def column(**details):
        return column_name(Score.over_seeds("fid", [1.0], touched_private_data=False, details=details))

    names = {
        column(),
        column(extractor={"name": "inception-2015", "hash": HASH}),
        column(extractor={"name": "inception-2015", "hash": HASH[::-1]}),
        column(preset="gs-wgan"),
    }
    assert len(names) == 4


def test_means_without_a_protocol_share_a_column_only_if_the_classifiers_are_the_same():
    def column(*classifiers, metric="gen2real/mean-calibrated"):
        details = {"classifiers": {f"gen2real/{name}": 0.5 for name in classifiers}}
        return column_name(Score.over_seeds(metric, [1.0], touched_private_data=False, details=details))

    assert column("mlp", "cnn") == column("cnn", "mlp") == "gen2real/mean-calibrated (cnn, mlp)"
    assert column("cnn") == "gen2real/mean-calibrated (cnn)"
    assert column("cnn", metric="gen2real/quick-calibrated") == "gen2real/quick-calibrated"


def test_confusion_is_shown_in_shares_of_the_true_class():
    rows = score(confusion=[[3, 1], [0, 0]])["confusion"]
    assert rows == [{"name": "cat", "shares": [0.75, 0.25]}, {"name": "dog", "shares": [0.0, 0.0]}]


@pytest.mark.parametrize(
    "confusion",
    [None, 5, [], [[1, 2]], [[1, 2], [3]], [[1, -1], [0, 1]], [[1, float("nan")], [0, 1]], [["x", 1], [1, 1]]],
)
def test_what_is_no_confusion_matrix_of_these_classes_is_not_shown(confusion):
    assert score(confusion=confusion)["confusion"] == []


def test_bars_follow_the_order_of_the_classes():
    bars = score(per_class={"dog": 0.25, "cat": 1.0})["bars"]
    assert bars == [{"name": "cat", "percent": "100.0"}, {"name": "dog", "percent": "25.0"}]


@pytest.mark.parametrize(
    "per_class",
    [None, [1, 2], "x", {"cow": 0.5}, {"cat": 1.5}, {"cat": float("nan")}, {"cat": "<b>"}, {"cat": True}],
)
def test_what_is_not_an_accuracy_of_a_class_gets_no_bar(per_class):
    assert score(per_class=per_class)["bars"] == []


def test_a_score_stands_beside_what_real_images_reach_with_the_same_classifier():
    gen, real, other = (
        Score.over_seeds(metric, [value], touched_private_data=True)
        for metric, value in (("gen2real/mlp", 0.8), ("real2real/mlp", 0.9796), ("real2real/cnn", 0.99))
    )
    assert score_content(gen, SPEC, [gen, real, other])["to_reach"] == "97.96 %"
    assert score_content(gen, SPEC, [gen, other])["to_reach"] == ""
    assert score_content(real, SPEC, [gen, real])["to_reach"] == ""
    assert "what there is to reach" in score_content(real, SPEC)["meaning"]


def test_means_and_ratios_say_what_they_are():
    assert "mean over all classifiers" in score("gen2real/average", classifiers={"gen2real/lda": 0.5})["meaning"]
    assert "of what the same classifiers reach with real images" in score("gen2real/calibrated")["meaning"]


DISTANCES = {
    "quantiles": {"0.0": 7.4483, "0.5": 8.2619},
    "real_to_real_quantiles": {"0.0": 1.3199, "0.5": 2.5864},
    "exact_copies": 0,
}


def test_a_distance_to_real_images_is_shown_beside_what_lies_between_real_ones():
    text = score("nearest-real", (8.28,), **DISTANCES)["beside"]
    for part in ("Exact copies: 0", "of all: 7.448", "median 2.586, least 1.32"):
        assert part in text


def test_copies_are_counted_to_the_last_one():
    assert "Exact copies: 12,345;" in score("nearest-real", (0.0,), **{**DISTANCES, "exact_copies": 12_345})["beside"]


@pytest.mark.parametrize("broken", [{"quantiles": "/home/ann"}, {"exact_copies": "x"}, {"real_to_real_quantiles": {}}])
def test_distances_that_are_none_are_not_shown(broken):
    assert score("nearest-real", (8.28,), **{**DISTANCES, **broken})["beside"] == ""
    assert score("fid", (8.28,), **DISTANCES)["beside"] == ""
