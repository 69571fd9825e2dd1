import json
import math

import pytest

from veilset.report import write_reports
from veilset.report.history import history_figure, loss_panels, progress_panels


def value(name, step, number):
    return {"name": name, "step": step, "value": number}


def test_names_alike_up_to_a_slash_share_a_panel():
    lines = [value(name, step, 0.1 * step) for step in (50, 100) for name in ("critic loss/real", "critic loss/fake")]
    (panel,) = loss_panels([*lines, value("other", 50, 1.0)])
    assert (panel.title, [trace.label for trace in panel.traces]) == ("critic loss", ["real", "fake"])
    assert panel.traces[0].steps == (50, 100)


def test_of_a_step_that_a_resumed_run_repeated_the_last_value_counts():
    lines = [value("loss", 50, 3.0), value("loss", 100, 2.0), value("loss", 50, 2.5)]
    assert loss_panels(lines)[0].traces[0].mean == (2.5, 2.0)


@pytest.mark.parametrize("torn", [{}, value("loss", 75, math.nan), value("loss", "x", 1.0), value(5, 75, 1.0)], ids=str)
def test_a_value_that_cannot_be_drawn_is_passed_over(torn):
    lines = [value("loss", 50, 3.0), torn, value("loss", 100, 2.0)]
    assert loss_panels(lines)[0].traces[0].steps == (50, 100)


def test_progress_is_drawn_in_minutes_since_the_start():
    log = [
        {"time": 1000.0, "event": "started"},
        {"time": 1060.0, "event": "progress", "doing": "training", "done": 1, "total": 4},
        {"time": 1120.0, "event": "progress", "doing": "training", "done": 2, "total": 4},
        {"time": "soon", "event": "progress", "doing": "training", "done": 3, "total": 4},
        {"time": 1180.0, "event": "progress", "doing": "nothing", "done": 0, "total": 0},
    ]
    (panel,) = progress_panels(log)
    (trace,) = panel.traces
    assert (trace.label, trace.steps, trace.mean) == ("training", (1.0, 2.0), (25.0, 50.0))


def test_without_records_there_is_no_figure():
    assert history_figure([], [{"time": 1.0, "event": "started"}]) is None


def test_the_history_is_drawn_on_the_owners_page_only(copy_of):
    run = copy_of()
    lines = [value("secret loss", step, 1 / step) for step in (50, 100)]
    (run.vault / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    public, owner = write_reports(run)
    assert 'class="history"' in owner.read_text()
    assert 'class="history"' not in public.read_text()
