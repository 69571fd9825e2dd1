"""`veilset compare`: several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from veilset.cli.options import Quiet
from veilset.console import Show, result
from veilset.courses.compare import ComparedCourse, compare_courses, grouped, write_figure
from veilset.courses.release import is_course
from veilset.errors import ConfigError
from veilset.privacy.claim import shown
from veilset.report.compare import ComparedRun, Comparison, Group, compare_runs
from veilset.report.compare_page import cost_text, score_cell, settings_text, write_comparison

Runs = Annotated[list[Path], typer.Argument(help="Run folders, exported releases, or courses.")]
Out = Annotated[Path | None, typer.Option(help="Write a page with tables, samples and curves to this .html file.")]


def compare(sources: Runs, out: Out = None, quiet: Quiet = False) -> None:
    """Show runs side by side: claims, scores, cost and settings.

    Only runs whose epsilons mean the same share a table. Proven and published epsilons never share a column.

    Courses of `veilset continual` are compared with each other: accuracy after each task, and with --out a figure as
    .svg or .png.
    """
    if any(map(is_course, sources)):
        return _compare_courses(sources, out, Show(quiet))
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
    result({**comparison.to_json(), "out": None if out is None else str(out)}, quiet=quiet)


def _compare_courses(sources: list[Path], out: Path | None, show: Show) -> None:
    others = [str(source) for source in sources if not is_course(source)]
    if missing := [other for other in others if not Path(other).exists()]:
        raise ConfigError("courses that are there", f"no {', '.join(missing)}", "Check the paths.")
    if others:
        raise ConfigError("courses alone, or runs alone", f"{', '.join(others)} among courses", "Compare them apart.")
    courses = compare_courses(sources)
    if out is not None:
        write_figure(courses, out)
    for mine in grouped(courses):
        (title, terms), partition = mine[0].shared
        head = ["course", "method", "eps proven", *(f"task {n}" for n in range(1, len(partition.tasks) + 1))]
        show.say(f"{title}; {terms}")
        for line in aligned([head, *map(_course_row, mine)]):
            show.say(line)
    for told in dict.fromkeys(course.told for course in courses if course.told):
        show.say(told)
    if any(course.private for course in courses):
        show.warn("accuracies here were taken from private images: for the owner, do not share")
    if out is not None:
        show.say(f"wrote {out}")
    result(
        {
            "courses": [
                {"course": str(one.path), "method": one.method, "epsilon": one.claim.epsilon, "test": one.test,
                 "accuracies": [mean for mean, _ in one.scores], "private": one.private}
                for one in courses
            ],
            "out": None if out is None else str(out),
        },
        quiet=show.quiet,
    )  # fmt: skip


def _course_row(course: ComparedCourse) -> list[str]:
    cells = [f"{mean:.4f}" + ("" if sd is None else f" +- {sd:.4f}") for mean, sd in course.scores]
    return [str(course.path), course.method, shown(course.claim.epsilon or 0.0), *cells]


def text_lines(comparison: Comparison) -> list[str]:
    """The comparison for a terminal: one table per group, what scores tell beside that, and what was not compared."""
    lines = []
    for group in comparison.groups:
        lines += [group.title, "; ".join(text for text in (group.terms, group.data) if text)]
        lines += [*aligned(_table(group)), ""]
    if comparison.told:
        lines += [comparison.told, ""]
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
    scores = ["; ".join(map(_measured, score_cell(run, column))) or "-" for column in group.columns]
    return [str(run.path), run.method, *epsilons, *scores, cost_text(run), run.device or "-", settings_text(run)]


def _measured(one: dict[str, Any]) -> str:
    notes = f"({one['purchase']})" if one["purchase"] else ""
    return " ".join(filter(None, (one["value"], one["spread"], notes)))


def aligned(rows: list[list[str]]) -> list[str]:
    """
    >>> aligned([["run", "eps"], ["runs/a", "1"]])
    ['  run     eps', '  runs/a  1']
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
