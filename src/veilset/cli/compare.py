"""`veilset compare`: several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.options import Quiet
from veilset.console import Show, result
from veilset.privacy.claim import shown
from veilset.report.compare import ComparedRun, Comparison, Group, compare_runs
from veilset.report.compare_page import cost_text, score_cell, settings_text, write_comparison

Runs = Annotated[list[Path], typer.Argument(help="Run folders written by `veilset fit`, or exported releases.")]
Out = Annotated[Path | None, typer.Option(help="Write a page with tables, samples and curves to this .html file.")]


def compare(sources: Runs, out: Out = None, quiet: Quiet = False) -> None:
    """Show runs side by side: claims, scores, cost and settings.

    Only runs whose epsilons mean the same share a table. Proven and published epsilons never share a column.
    """
    comparison = compare_runs(sources)
    if out is not None:
        write_comparison(comparison, out)
    show = Show(quiet)
    for line in text_lines(comparison):
        show.say(line)
    if comparison.private:
        show.warn("scores or times here were taken from private images: for the owner, do not share")
    if out is not None:
        show.say(f"wrote {out}")
    result({**comparison.to_json(), "out": None if out is None else str(out)})


def text_lines(comparison: Comparison) -> list[str]:
    """The comparison for a terminal: one table per group, then what could not be compared."""
    lines = []
    for group in comparison.groups:
        lines += [group.title, "; ".join(text for text in (group.terms, group.data) if text)]
        lines += [*aligned(_table(group)), ""]
    if comparison.skipped:
        lines += ["Not compared", *(f"  {item.path}: {item.state}, {item.reason}" for item in comparison.skipped), ""]
    return lines


def _table(group: Group) -> list[list[str]]:
    epsilons = {"proven": ["eps proven"], "published": ["eps proven", "eps published", "status"], "none": []}
    head = ["run", "method", *epsilons[group.basis], *group.columns, "training", "device", "settings"]
    return [head, *(_row(run, group) for run in group.runs)]


def _row(run: ComparedRun, group: Group) -> list[str]:
    claim, epsilons = run.claim, []
    if claim.epsilon is not None:
        epsilons.append(shown(claim.epsilon))
        if claim.published is not None:
            epsilons += [f"{claim.published.epsilon:.4g}", claim.published.status]
    cells = [score_cell(run, column) for column in group.columns]
    scores = ["-" if cell is None else f"{cell['value']} {cell['spread']}".strip() for cell in cells]
    return [str(run.path), run.method, *epsilons, *scores, cost_text(run), run.device or "-", settings_text(run)]


def aligned(rows: list[list[str]]) -> list[str]:
    """
    >>> aligned([["run", "eps"], ["runs/a", "1"]])
    ['  run     eps', '  runs/a  1']
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
