"""Courses side by side: only what means the same shares a panel, and private accuracies stay the owner's."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from veilset.courses.compare import compare_courses, grouped, stage_panels, write_figure
from veilset.courses.release import export_course
from veilset.courses.scores import score_course
from veilset.errors import ArtifactError, ConfigError

from .cases import BENCHMARK, FAST, TASKS, learned, some_course, some_images


def measured(path: Path, method: str = "dp-merf", *, public: bool = True, **options: Any) -> Path:
    options = {"declared_sizes": (20,), **options}
    folder = learned(path, method, **options)
    test = some_images(seed=1, source=BENCHMARK) if public else some_images(seed=1)
    score_course(folder, some_course(method=method, **options), test, FAST)
    return path


def test_methods_of_one_epsilon_share_a_panel_and_other_epsilons_have_their_own(tmp_path: Path) -> None:
    merf = measured(tmp_path / "a")
    paths = [merf, measured(tmp_path / "b", "dp-sgd"), measured(tmp_path / "c", epsilon=4.0)]
    panels = stage_panels(compare_courses(paths))
    assert [(panel.title, [trace.label for trace in panel.traces]) for panel in panels] == [
        ("toys, epsilon 2", ["dp-merf", "dp-sgd"]),
        ("toys, epsilon 4", ["dp-merf"]),
    ]
    twin = Path(shutil.copytree(merf, tmp_path / "twin"))
    (panel,) = stage_panels(compare_courses([merf, twin]))
    assert [trace.label for trace in panel.traces] == ["dp-merf, a", "dp-merf, twin"]


def test_courses_of_other_tasks_are_apart_though_test_images_and_epsilon_are_the_same(tmp_path: Path) -> None:
    first, twin = measured(tmp_path / "a"), measured(tmp_path / "b")
    turned = measured(tmp_path / "c", tasks=TASKS[::-1])
    more = measured(tmp_path / "d", tasks=(TASKS[0], *((name,) for name in TASKS[1])))
    groups = grouped(compare_courses([first, turned, twin, more]))
    assert [[course.path for course in group] for group in groups] == [[first, twin], [turned], [more]]


def test_private_accuracies_are_compared_for_the_owner_alone(tmp_path: Path) -> None:
    path = measured(tmp_path / "a", public=False)
    (course,) = compare_courses([path])
    assert course.private
    write_figure([course], tmp_path / "figure.svg")
    assert stat.S_IMODE((tmp_path / "figure.svg").stat().st_mode) == 0o600
    export_course(path, tmp_path / "shared")
    with pytest.raises(ConfigError, match="accuracy after each task"):
        compare_courses([tmp_path / "shared"])


def test_an_export_brings_its_public_accuracies_along(tmp_path: Path) -> None:
    path = measured(tmp_path / "a")
    export_course(path, tmp_path / "shared")
    mine, theirs = compare_courses([path])[0], compare_courses([tmp_path / "shared"])[0]
    assert mine.scores == theirs.scores
    assert not theirs.private


def test_a_course_that_was_not_measured_and_another_format_are_refused(tmp_path: Path) -> None:
    path = learned(tmp_path / "a").path
    with pytest.raises(ConfigError, match="accuracy after each task"):
        compare_courses([path])
    with pytest.raises(ConfigError, match=r"as \.svg"):
        write_figure([], tmp_path / "figure.html")


def test_a_course_is_compared_by_a_claim_that_follows_from_its_ledgers(tmp_path: Path) -> None:
    path = measured(tmp_path / "a")
    file = path / "release" / "course.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "claim": {**about["claim"], "epsilon": 0.5}, "veilset": "another version"}))
    with pytest.raises(ArtifactError):
        compare_courses([path])
