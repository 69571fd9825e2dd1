"""The pages in a real browser: nothing is reported, nothing is missing, nothing is wider than a phone."""

import json
import shutil

import pytest

from veilset.evaluate.scores import Score
from veilset.report import write_reports
from veilset.report.compare import compare_runs
from veilset.report.compare_page import write_comparison
from veilset.run_folder import RunFolder

from .browser import DESK, PHONE, look_at, needs_chromium
from .conftest import CLASSES, fitted

pytestmark = [needs_chromium, pytest.mark.slow]

PUBLIC = [".verdict .headline", ".note", ".sentences li", ".curve svg .bound", ".assumptions li", ".samples img"]
PUBLIC += [".labels span", ".score .figure", ".tag.open", ".bars .fill", ".confusion .hit", ".facts td"]
WANTED = {
    "public": PUBLIC,
    "owner": [*PUBLIC, ".banner", ".tag.secret", ".history img", ".warnings li", ".log td"],
    "compare": [".runs .epsilon", ".runs .status", ".runs td b", ".pictures img", ".curves img"],
}
SECTIONS = ["What this means", "Assumptions", "Samples", "Scores", "What was released", "Settings and provenance"]


def score(private):
    table = [[70, 20, 10], [0, 100, 0], [1, 0, 99]]
    details = {"per_class": dict(zip(CLASSES, (0.7, 1.0, 0.99), strict=True)), "confusion": table, "warnings": ["odd"]}
    metric = "gen2real/mlp" if private else "gen2real/cnn"
    return Score.over_seeds(metric, [0.8, 0.9], touched_private_data=private, details=details)


@pytest.fixture(scope="module")
def found(finished, tmp_path_factory):
    """What Chromium finds on the two pages of a run and on a comparison, at both widths, in one visit."""
    folder = tmp_path_factory.mktemp("browser")
    kinds = ("proven", "published", "none")
    runs = [RunFolder(shutil.copytree(finished[kind].path, folder / kind)) for kind in kinds]
    runs.append(fitted(folder / "wider", epsilon=8.0))  # a curve has two points
    for run in runs:
        (run.vault / "scores.json").write_text(json.dumps([score(private).to_json() for private in (True, False)]))
    lines = [{"name": "critic loss/real", "step": step, "value": 1 / step} for step in (50, 100)]
    (runs[1].vault / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    public, owner = write_reports(runs[1])
    write_comparison(compare_runs([run.path for run in runs]), folder / "compare.html")
    pages = {"public": public, "owner": owner, "compare": folder / "compare.html"}
    return look_at(pages, folder, WANTED)


def test_no_page_complains_or_asks_for_anything_from_elsewhere(found):
    assert found[1] == []


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_everything_a_page_should_show_is_seen(found, name, width):
    (page,) = [page for page in found[0] if (page["name"], page["width"]) == (name, width)]
    assert [selector for selector, count in page["seen"].items() if not count] == []
    assert page["broken"] == []
    if name != "compare":
        assert [title for title in SECTIONS if title not in page["sections"]] == []


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_no_page_is_wider_than_its_window(found, name, width):
    (page,) = [page for page in found[0] if (page["name"], page["width"]) == (name, width)]
    assert page["widest"] <= width


BAD = {
    "fetches a picture and a font": '<img src="https://example.org/pixel.png" alt="spy">'
    '<link rel="stylesheet" href="https://example.org/font.css">',
    "has a broken picture": '<img src="data:image/png;base64,AAAA" alt="torn">',
    "runs a script that fails": "<script>missing()</script>",
    "is too wide": '<p style="width: 40rem">wide</p>',
    "lacks an element": "<p>no verdict</p>",
}


def test_a_bad_page_is_noticed(tmp_path):
    pages = {}
    for number, text in enumerate(BAD.values()):
        pages[f"page{number}"] = tmp_path / f"page{number}.html"
        pages[f"page{number}"].write_text(f'<!DOCTYPE html><link rel="icon" href="data:,">{text}')
    found, complaints = look_at(pages, tmp_path, {name: [".verdict"] for name in pages})
    narrow = [page for page in found if page["width"] == PHONE]
    assert [page["broken"] for page in narrow] == [["spy"], ["torn"], [], [], []]
    assert [page["widest"] > PHONE for page in narrow] == [False, False, False, True, False]
    assert all(page["seen"] == {".verdict": 0} for page in narrow)
    assert {"asked for https://example.org/pixel.png", "asked for https://example.org/font.css"} <= set(complaints)
    assert any("missing is not defined" in text for text in complaints)


def test_a_page_that_its_policy_stops_is_noticed_too(tmp_path):
    page = tmp_path / "page.html"
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    page.write_text(f'<!DOCTYPE html>{policy}<img src="https://example.org/pixel.png" alt="spy">')
    _, complaints = look_at({"page": page}, tmp_path, {"page": []})
    assert any("Content Security Policy" in text for text in complaints)
