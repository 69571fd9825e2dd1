"""Nobody types figures: the page is what the script makes of the recorded lines."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import references
import results
import rows
import table

from veilset.evaluate import PRESETS


def line(**changes: Any) -> dict[str, Any]:
    value = json.loads(results.RESULTS.read_text().splitlines()[0])
    return {**value, **changes}


def test_the_committed_page_is_the_generated_one() -> None:
    assert table.PAGE.read_text() == table.page(results.read(results.RESULTS))


def test_the_table_of_the_readme_is_the_generated_one() -> None:
    text = table.README.read_text()
    assert text == table.readme(text, results.read(results.RESULTS))


def test_a_glance_shows_what_was_measured_last_and_no_comparisons() -> None:
    plain = {"metric": "gen2real/cnn", "dataset": "mnist", "unit": "record", "epsilon_target": 10.0, "n": 3}
    lines = [
        line(**plain, method="sketch", settings={}, mean=0.7, sd=0.01),
        line(**plain, method="sketch", settings={"jitter": "none"}, mean=0.8, sd=0.02),
        line(**plain, method="sketch", settings={"steps": 7}, mean=0.1, sd=0.01),
        line(**{**plain, "unit": "user"}, method="sketch", settings={}, mean=0.2, sd=0.01),
        line(**{**plain, "epsilon_target": 5.0}, method="sketch", settings={}, mean=0.3, sd=0.01),
        line(**plain, method="psg", settings={}, mean=0.4, sd=0.01, accounting="published"),
        line(**{**plain, "n": 1}, method="dp-merf", settings={}, mean=0.6, sd=None),
    ]  # fmt: skip
    content = [text.strip("| ").split(" | ") for text in table.at_a_glance(lines).splitlines()[2:]]
    assert [row[0] for row in content] == ["`dp-merf`", "`sketch`, fast"]
    assert [value.strip() for row in content for value in row[1:] if value.strip()] == [
        "0.600 (n = 1)",
        "0.800 ± 0.020",
    ]


def test_every_recorded_line_has_all_fields_and_a_command_that_names_a_benchmark() -> None:
    for text in results.RESULTS.read_text().splitlines():
        value = json.loads(text)
        assert set(results.FIELDS) <= set(value)
        assert value["command"].startswith("python benchmarks/")
        assert value["n"] >= 1
        assert (value["sd"] is None) == (value["n"] == 1)


@pytest.mark.parametrize("name", results.FIELDS)
def test_a_line_without_a_field_is_refused(name: str) -> None:
    torn = line()
    del torn[name]
    with pytest.raises(ValueError, match=name):
        table.page([torn])


def test_a_published_epsilon_needs_its_status() -> None:
    published = line(accounting="published", epsilon_published=9.99, epsilon_proven=610.34)
    with pytest.raises(ValueError, match="published_status"):
        table.page([published])
    text = table.page([line(), {**published, "published_status": "refuted"}])
    assert "| 610.4 | 9.99 | refuted |" in text
    assert text.index("### Proven accounting") < text.index("### Published accounting")


def test_a_figure_that_was_measured_again_is_kept_in_a_table_of_its_own() -> None:
    old, other, new = line(commit="aaaaaaa"), line(commit="bbbbbbb", metric="gen2real/mlp"), line(commit="0000000")
    again = {**new, "device": f"{new['device']}, 3 fits at once"}
    text = table.page([old, other, again])
    before, _, earlier = text.partition(table.EARLIER)
    assert ("0000000" in before, "bbbbbbb" in before, "aaaaaaa" in before) == (True, True, False)
    assert "aaaaaaa" in earlier


def test_proven_and_published_runs_are_in_tables_of_their_own() -> None:
    published = line(accounting="published", epsilon_published=1.0, published_status="sound")
    text = table.page([published, line(), line(accounting="none", epsilon_proven=None)])
    heads = [row for row in text.splitlines() if row.startswith("| method")]
    assert ["published" in head for head in heads] == [False, True, False]
    assert "epsilon" not in heads[2]


def test_the_order_of_lines_does_not_matter() -> None:
    lines = [line(metric="b"), line(metric="a"), line(epsilon_target=0.1), line(dataset="cifar10")]
    assert table.page(lines) == table.page(lines[::-1])


def test_what_a_method_costs_stands_apart_from_what_it_releases() -> None:
    text = table.page([line(), line(accounting="cost", epsilon_proven=None, metric="milliseconds/step")])
    released, cost = text.split("### Cost alone: nothing is released")
    assert "milliseconds/step" in cost
    assert "milliseconds/step" not in released


def test_an_unknown_accounting_is_refused_rather_than_left_out() -> None:
    with pytest.raises(ValueError, match="guessed"):
        table.page([line(accounting="guessed")])


def test_a_torn_last_line_is_left_out_and_the_next_one_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(line()) + '\n{"method": "dp-m')
    assert len(results.read(path)) == 1
    results.append(
        path, method="m", dataset="d", accounting="none", claim=None, epsilon_target=None, protocol="p", settings={},
        metric="x", values=[1.0], seeds=[0], seconds=1.0, device="cpu", commit="c", command="python benchmarks/x.py",
    )  # fmt: skip
    assert json.loads(path.read_text().splitlines()[-1])["method"] == "m"


def real(metric: str, mean: float, **changes: Any) -> dict[str, Any]:
    none = dict.fromkeys(("epsilon_target", "epsilon_proven", "delta", "adjacency", "unit"))
    return line(**none, method="real", accounting="none", metric=metric, mean=mean, **changes)


def test_real_images_have_a_section_of_their_own_without_epsilon_or_delta() -> None:
    text = table.page([real("real2real/lda", 0.88), line(accounting="none", epsilon_proven=None)])
    before, after = text.split("### Real images, no synthesis")
    assert "real2real/lda" not in before
    assert "NOT PRIVATE" in before
    assert after.splitlines()[2].startswith("| method | metric | value | n | protocol |")


def test_real_images_stand_beside_published_figures_with_a_reason_where_they_differ() -> None:
    lines = [real("real2real/lda", 0.8798, sd=None), real("real2real/adaboost", 0.65), real("real2real/gbm", 0.5)]
    _, beside = table.page(lines).split("beside published figures")
    assert (
        "| real2real/lda | 0.88 | 0.8798 | -0.0002 |  | GS-WGAN (Chen et al. 2020), Table A1, column Real |" in beside
    )
    assert "-0.0800 | SAMME in place of SAMME.R" in beside
    assert "-0.4100 | not explained" in beside
    assert "real2real/xgboost" not in beside, "a figure that was not measured is shown"


def test_a_published_fid_is_compared_with_the_same_network_only() -> None:
    other = real("fid", 3.0, protocol="all training against all test images, random-conv-1 84c2fb4abed9")
    assert "beside" not in table.page([other])
    same = {**other, "protocol": "all training against all test images, fid-inception-2015 aa2a18ac7408", "mean": 1.03}
    assert "| fid | 1.02 | 1.0300" in table.page([other, same])


def test_every_published_figure_is_a_metric_of_the_suite_of_real_images() -> None:
    suite = rows.read_suite(Path(table.__file__).parent / "suites" / "real.toml")
    measured = {(row.dataset, metric) for row in suite for metric in row.metrics_of(0)}
    found = references.read()
    assert {(reference.dataset, reference.metric) for reference in found} <= measured
    assert all(reference.origin for reference in found)


def test_the_published_averages_are_those_of_the_published_thirteen() -> None:
    for dataset in ("mnist", "fashion-mnist"):
        values = {one.metric: one.value for one in references.read() if one.dataset == dataset}
        thirteen = [values[f"real2real/{name}"] for name in PRESETS["gs-wgan"].classifiers]
        assert statistics.fmean(thirteen) == pytest.approx(values["gs-wgan/mean"], abs=0.0051)
