"""Nobody types figures: the page is what the script makes of the recorded lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import results
import table


def line(**changes: Any) -> dict[str, Any]:
    value = json.loads(results.RESULTS.read_text().splitlines()[0])
    return {**value, **changes}


def test_the_committed_page_is_the_generated_one() -> None:
    assert table.PAGE.read_text() == table.page(results.read(results.RESULTS))


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


def test_proven_and_published_runs_are_in_tables_of_their_own() -> None:
    published = line(accounting="published", epsilon_published=1.0, published_status="sound")
    text = table.page([published, line(), line(accounting="none", epsilon_proven=None)])
    heads = [row for row in text.splitlines() if row.startswith("| method")]
    assert ["published" in head for head in heads] == [False, True, False]
    assert "epsilon" not in heads[2]


def test_the_order_of_lines_does_not_matter() -> None:
    lines = [line(metric="b"), line(metric="a"), line(epsilon_target=0.1), line(dataset="cifar10")]
    assert table.page(lines) == table.page(lines[::-1])


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
