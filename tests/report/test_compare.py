"""Runs side by side: who may stand beside whom, what the page says, and what it keeps back."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from report.conftest import fitted, open_score, secret_score
from report.test_build import Tags, bought
from veilset.errors import ConfigError, RunError
from veilset.evaluate.scores import Score
from veilset.report.compare import Comparison, Group, compare_runs, rounded_up
from veilset.report.compare_page import MARK, utility_figures, write_comparison
from veilset.report.pages import TEMPLATES
from veilset.report.vault import training_cost
from veilset.run_folder import RunFolder
from veilset.score_release import COMPARED
from veilset.sharing import export

OPEN = (open_score(),)
Copy = Callable[..., RunFolder]


@pytest.fixture(scope="session")
def wider(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A second proven run, at another epsilon and on public images."""
    return fitted(tmp_path_factory.mktemp("wider") / "run", epsilon=8.0, benchmark="toy")


def page_of(comparison: Comparison, out: Path) -> str:
    write_comparison(comparison, out)
    return re.sub(r"base64,[A-Za-z0-9+/=]+", "", out.read_text())


def test_accountings_have_groups_of_their_own_proven_first(copy_of: Copy) -> None:
    runs = [copy_of(kind).path for kind in ("none", "published", "proven")]
    comparison = compare_runs(runs)
    assert [group.basis for group in comparison.groups] == ["proven", "published", "none"]
    assert [group.title[:14] for group in comparison.groups] == ["Proven epsilon", "Proven epsilon", "NOT PRIVATE: n"]
    assert re.search(r"^Proven epsilon [\d.]+; published epsilon 1, conservative$", comparison.groups[1].title)


def test_runs_of_one_target_share_a_group_and_other_epsilons_do_not(
    copy_of: Copy, tmp_path: Path, wider: RunFolder
) -> None:
    first = copy_of("proven").path
    second = Path(shutil.copytree(first, tmp_path / "again"))
    groups = compare_runs([first, second, wider.path]).groups
    assert sorted(len(group.runs) for group in groups) == [1, 2]


def test_a_run_given_twice_is_compared_once(copy_of: Copy) -> None:
    path = copy_of("proven").path
    assert len(compare_runs([path, path / ".." / path.name]).runs) == 1


def test_unfinished_broken_and_strange_folders_are_listed_not_fatal(copy_of: Copy, tmp_path: Path) -> None:
    good = copy_of("proven").path
    unfinished, broken, torn = (Path(shutil.copytree(good, tmp_path / name)) for name in ("u", "b", "t"))
    shutil.rmtree(unfinished / "release")
    (broken / "release" / "README.md").write_text("changed")
    (torn / "vault" / "scores.json").write_text("[{}]")
    comparison = compare_runs([good, unfinished, broken, torn, tmp_path / "nowhere"])
    assert [item.state for item in comparison.skipped] == ["unfinished", "broken", "broken", "not a run"]
    assert len(comparison.runs) == 1
    page = page_of(comparison, tmp_path / "out.html")
    assert "does not match its hash" in page
    assert "nowhere" in page


@pytest.mark.parametrize("names", [[], ["nowhere"]])
def test_no_run_at_all_is_an_error(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(RunError, match="at least one finished run"):
        compare_runs([tmp_path / name for name in names])


def test_a_claim_that_does_not_follow_from_its_ledger_is_broken(copy_of: Copy) -> None:
    from veilset.artifact import update_manifest

    run = copy_of("proven")
    value = json.loads((run.release / "privacy.json").read_text())
    value["claim"]["epsilon"] = 0.01
    (run.release / "privacy.json").write_text(json.dumps(value))
    update_manifest(run.release)
    with pytest.raises(RunError, match="broken"):
        compare_runs([run.path])


@pytest.mark.parametrize("scores", [OPEN, (secret_score(),)], ids=["public score", "private score"])
def test_a_page_with_anything_private_is_marked_and_readable_by_the_owner_only(
    copy_of: Copy, tmp_path: Path, scores: tuple[Score, ...]
) -> None:
    # Both runs are on private images: the seconds alone already are private.
    page = page_of(compare_runs([copy_of("proven", scores).path]), tmp_path / "out.html")
    assert "do not share" in page
    assert (tmp_path / "out.html").stat().st_mode & 0o777 == 0o600


def test_a_page_about_public_benchmarks_is_not_marked(copy_of: Copy, tmp_path: Path) -> None:
    comparison = compare_runs([copy_of("published", OPEN).path])
    assert not comparison.private
    assert "do not share" not in page_of(comparison, tmp_path / "out.html")


def test_public_scores_of_private_images_are_shown_with_what_they_tell(copy_of: Copy, tmp_path: Path) -> None:
    for kind, scores, told in (("proven", OPEN, True), ("none", (secret_score(),), False), ("published", OPEN, False)):
        comparison = compare_runs([copy_of(kind, scores).path])
        assert bool(comparison.told) == told
        assert (COMPARED in page_of(comparison, tmp_path / "out.html")) == told


def test_a_private_score_marks_even_a_benchmark_run(copy_of: Copy) -> None:
    assert compare_runs([copy_of("published", (secret_score(),)).path]).private


def test_proven_and_published_epsilons_are_separate_columns_in_one_size(copy_of: Copy, tmp_path: Path) -> None:
    page = page_of(compare_runs([copy_of("published", OPEN).path]), tmp_path / "out.html")
    heads = re.findall(r'<th scope="col">(.*?)</th>', page)
    assert heads[1:4] == ["epsilon, proven", "epsilon, published", "its status"]
    assert len(re.findall(r'<td class="epsilon">', page)) == 2
    assert '<td class="status conservative">conservative</td>' in page
    css = (TEMPLATES / "compare.css").read_text()
    assert len(re.findall(r"\.epsilon\b[^{}]*\{[^}]*font-size", css)) == 1


def test_the_page_is_well_formed_self_contained_and_escapes(copy_of: Copy, tmp_path: Path, wider: RunFolder) -> None:
    runs = [copy_of(kind).path for kind in ("proven", "published", "none")]
    page = page_of(compare_runs([*runs, wider.path, tmp_path / "<script>"]), tmp_path / "out.html")
    tags = Tags(page)
    assert tags.open == []
    assert not {tag for tag, _ in tags.found} & {"script", "link", "iframe", "object", "form", "base"}
    assert {attrs["src"][:11] for _, attrs in tags.found if "src" in attrs} == {"data:image/"}
    assert "http://" not in page
    assert "https://" not in page
    assert "&lt;script&gt;" in page


def test_scores_cost_device_and_changed_settings_are_shown(copy_of: Copy, tmp_path: Path) -> None:
    run = copy_of("proven")
    (run.vault / "log.jsonl").write_text(
        '{"time": 1.0, "event": "started", "device": "cpu"}\n{"time": 9, "event": "finished", "seconds": 7.25}\n'
    )
    page = page_of(compare_runs([run.path]), tmp_path / "out.html")
    for text in ("91.30 %", "± 0.07 %", "61.83 %", "<td>7 s</td>", "<td>cpu</td>", "frequencies=20", "steps=5"):
        assert text in page, text
    assert "hidden_size" not in page


def test_a_published_run_is_held_against_the_papers_own_settings(copy_of: Copy) -> None:
    assert "total_weight" not in compare_runs([copy_of("published").path]).runs[0].settings


def test_an_exported_release_is_compared_without_scores_and_cost(copy_of: Copy, tmp_path: Path) -> None:
    export(copy_of("proven").path, tmp_path / "shared")
    comparison = compare_runs([tmp_path / "shared"])
    assert (comparison.runs[0].scores, comparison.runs[0].seconds, comparison.private) == ((), None, False)


def test_noisy_scores_are_compared_too_with_their_error_and_may_be_shared(copy_of: Copy, tmp_path: Path) -> None:
    run = copy_of("proven", ())
    (first,), (second,) = (bought(run, epsilon).accuracies for epsilon in (4.0, 5.0))
    export(run.path, tmp_path / "shared")
    comparison = compare_runs([tmp_path / "shared"])
    assert comparison.groups[0].columns == ["gen2real/gaussian-nb (noisy)"], "one for all purchases"
    assert not comparison.private
    page = page_of(comparison, tmp_path / "out.html")
    for one in (first, second):
        assert f"<b>{100 * one.accuracy:.2f} %</b> ± {100 * one.standard_error:.3g} points" in page
    assert "1 seed, purchase 2<" in page
    assert "Noisy scores may be shared" in page
    (listed,) = comparison.to_json()["groups"][0]["runs"]
    assert [score["accuracy"] for score in listed["noisy_scores"]] == [first.accuracy, second.accuracy]


def test_an_earlier_comparison_is_replaced_and_nothing_else(copy_of: Copy, tmp_path: Path) -> None:
    run = copy_of("proven")
    comparison = compare_runs([run.path])
    for _ in range(2):
        write_comparison(comparison, tmp_path / "out.html")
    (tmp_path / "mine.html").write_text("my page")
    for out in (tmp_path / "mine.html", tmp_path, run.release / "new.html", tmp_path / "no" / "x.html"):
        with pytest.raises(ConfigError, match="expected"):
            write_comparison(comparison, out)
    assert (tmp_path / "mine.html").read_text() == "my page"
    assert MARK in (tmp_path / "out.html").read_bytes()
    assert not (run.release / "new.html").exists()


def test_pages_are_the_same_every_time(copy_of: Copy, tmp_path: Path) -> None:
    comparison = compare_runs([copy_of(kind).path for kind in ("proven", "published")])
    assert page_of(comparison, tmp_path / "a.html") == page_of(comparison, tmp_path / "b.html")


def test_curves_never_join_the_two_accountings(copy_of: Copy, tmp_path: Path) -> None:
    first = copy_of("published", OPEN).path
    second = Path(shutil.copytree(first, tmp_path / "again"))
    comparison = compare_runs([first, second, copy_of("proven", OPEN).path, copy_of("none", OPEN).path])
    curves = [curve for _, panels in utility_figures(comparison) for panel in panels for curve in panel.curves]
    assert {len({point.basis for point in curve.points}) for curve in curves} <= {1}
    assert not [curve for curve in curves if (curve.basis == "published") != (curve.status is not None)]


def test_several_runs_at_one_epsilon_are_one_point_with_the_spread_between_them(copy_of: Copy) -> None:
    run = compare_runs([copy_of("proven", OPEN).path]).runs[0]
    low = Score.over_seeds("gen2real/cnn", [0.813], touched_private_data=False)
    runs = (run, replace(run, scores=(low,)), replace(run, claim=replace(run.claim, epsilon=8.0)))
    group = Group(basis="proven", epsilon="1", terms="delta 1e-05", data=run.data, runs=runs)
    [(_, [panel])] = utility_figures(Comparison(groups=(group,), skipped=()))
    [curve] = panel.curves
    assert [point.x for point in curve.points] == [1.0, 8.0]
    assert curve.points[0].mean == pytest.approx(0.863)
    assert curve.points[0].sd == pytest.approx(0.0707, rel=1e-3)
    assert curve.points[1].sd == pytest.approx(open_score().sd or 0.0)


def test_runs_whose_names_begin_alike_are_not_one_point(copy_of: Copy) -> None:
    run = compare_runs([copy_of("proven", OPEN).path]).runs[0]
    common = {"learning_rate": 0.00125, "generator_width": 128, "frequencies": 2000, "latent_size": 64}
    runs = tuple(replace(run, settings={**common, "steps": steps}) for steps in (5, 5000, 5000))
    group = replace(compare_runs([run.path]).groups[0], runs=runs)
    [(_, [panel])] = utility_figures(Comparison(groups=(group,), skipped=()))
    names = [curve.method for curve in panel.curves]
    assert ["steps=5," in names[0], "steps=5000," in names[1]] == [True, True]
    assert len(names) == 2
    assert all(len(name) <= 40 for name in names)


def test_curves_have_names_of_their_own_however_long_settings_are(copy_of: Copy) -> None:
    run = compare_runs([copy_of("proven", OPEN).path]).runs[0]
    places = ("images/of/pets/a12/one", "images/of/pets/a12/two", "images/of/pets/b12/one", "images/of/pets/b12/two")
    runs = tuple(replace(run, method="dpaf", settings={"public_images": place}) for place in places)
    group = replace(compare_runs([run.path]).groups[0], runs=runs)
    [(_, [panel])] = utility_figures(Comparison(groups=(group,), skipped=()))
    assert len({curve.method for curve in panel.curves}) == 4
    assert all(len(curve.method) <= 40 for curve in panel.curves)


def test_one_point_makes_no_figure(copy_of: Copy) -> None:
    assert utility_figures(compare_runs([copy_of("proven", OPEN).path])) == []


def test_seconds_add_up_over_the_sittings_of_a_resumed_run() -> None:
    lines = [
        {"time": 100.0, "event": "started", "device": "cpu"},
        {"time": 130.0, "event": "progress"},
        {"time": 500.0, "event": "started", "device": "cuda:0"},
        {"time": 512.0, "event": "finished", "seconds": 11.5},
        {"time": 900.0, "event": "scored"},
    ]
    assert training_cost(lines) == (41.5, "cpu, cuda:0")
    assert training_cost([]) == (None, None)


@pytest.mark.parametrize(
    ("epsilon", "rounded"), [(0.97, 0.97), (0.991, 1.0), (9.99999, 10.0), (379.2, 380.0), (0.0, 0.0)]
)
def test_epsilons_are_rounded_up_to_two_digits(epsilon: float, rounded: float) -> None:
    assert rounded_up(epsilon) == rounded
