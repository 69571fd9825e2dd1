import json

import pytest

from veilset.errors import RunError
from veilset.evaluate.scores import Score
from veilset.report.compare import compare_runs
from veilset.report.vault import LOG_LINES, _score_warnings, owner_content, read_scores

from .conftest import WARNING, secret_score


def test_no_scores_is_not_an_error(tmp_path):
    assert read_scores(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[{}]", '[{"metric": "a"}]', "nonsense"])
def test_a_file_that_is_not_a_list_of_scores_is_refused(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(RunError, match="scores"):
        read_scores(tmp_path)


def test_a_score_that_does_not_say_whether_it_is_private_is_refused(tmp_path):
    value = {**secret_score().to_json(), "touched_private_data": 0}
    (tmp_path / "scores.json").write_text(json.dumps([value]))
    with pytest.raises(RunError, match="scores"):
        read_scores(tmp_path)


def test_a_torn_log_is_shown_as_far_as_it_goes_without_progress(copy_of):
    run = copy_of()
    with (run.vault / "log.jsonl").open("a") as file:
        file.write(
            '{"event": "progress", "done": 1}\n{"time": "soon", "event": "odd", "warnings": 3}\n[1]\n{"time": 17947'
        )
    content = owner_content(run, [])
    assert [line["event"] for line in content.log] == ["started", "finished", "odd"]
    assert content.log[2]["time"] == ""
    assert content.log_hidden == 2


def test_a_long_log_is_cut_but_its_warnings_are_kept_once(copy_of):
    run = copy_of()
    for _ in range(LOG_LINES + 5):
        run.log(event="started", warnings=[WARNING])
    content = owner_content(run, [])
    assert len(content.log) == LOG_LINES
    assert content.log_hidden == 7
    assert content.data_warnings == [WARNING]


def test_a_vault_without_log_and_plan_still_has_a_page(copy_of):
    run = copy_of()
    (run.vault / "log.jsonl").unlink()
    run.plan_path.unlink()
    content = owner_content(run, [secret_score()])
    assert (content.log, content.plan_warnings, content.reservation) == ([], [], None)
    assert content.score_warnings == ["gen2real/mlp: class 'plain' has vanished"]


def test_a_warning_of_many_scores_is_said_once_and_a_mean_says_nothing_again():
    def score(name, **details):
        return Score.over_seeds(f"gen2real/{name}", [0.5], touched_private_data=True, details=details)

    singles = [score(name, notes=["too few"]) for name in "abcd"]
    mean = score("mean", classifiers={}, notes=["gen2real/a: too few"])
    assert _score_warnings([*singles, mean]) == ["gen2real/a and 3 others: too few"]
    assert _score_warnings(singles[:2]) == ["gen2real/a, gen2real/b: too few"]


def test_times_that_are_no_numbers_are_left_out(copy_of):
    run = copy_of(scores=())
    (run.vault / "log.jsonl").write_text(
        '{"event": "started"}\n{"event": "other", "seconds": "<b>"}\n{"event": "finished", "seconds": 0.04}\n'
    )
    assert owner_content(run, []).seconds == [["training", "under 1 s"]]


def test_the_time_of_training_is_that_of_all_sittings_as_in_a_comparison(copy_of):
    run = copy_of(scores=())
    (run.vault / "log.jsonl").write_text(
        '{"time": 1, "event": "started"}\n{"time": 31, "event": "progress"}\n'
        '{"time": 90, "event": "started"}\n{"time": 99, "event": "finished", "seconds": 9.0}\n'
    )
    assert owner_content(run, []).seconds == [["training", "39 s"]]
    assert compare_runs([run.path]).runs[0].seconds == 39.0
