import builtins
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import veilset
from veilset.artifact import read_release
from veilset.dp_scores import buy_scores
from veilset.errors import ArtifactError, MissingExtra, RunError
from veilset.evaluate.scores import Score
from veilset.report import write_reports
from veilset.report.pages import TEMPLATES
from veilset.run_folder import RunFolder
from veilset.scoring import Request, score_run
from veilset.sharing import export, verify

from .conftest import CLASSES, secret_score


def text_of(path):
    """The page without its picture and the points of its curve, whose letters and digits may spell anything."""
    return re.sub(r'base64,[A-Za-z0-9+/=]+|points="[-0-9., ]+"', "", path.read_text())


class Tags(HTMLParser):
    """Opening tags with their attributes, and a check that everything opened is closed in order."""

    EMPTY = ("meta", "img", "br", "path", "rect", "polyline", "polygon")

    def __init__(self, page):
        super().__init__()
        self.found, self.open = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


SECRETS = {
    "path": r"ward7",
    "warning": r"rejected",
    "record count": r"\b137\b",
    "score": r"61\.83",
    "accuracy of a class": r"27\.2",
    "name of a private metric": r"gen2real/mlp",
    "seconds of a private score": r">46 s<",
    "seconds of a public score": r">99 s<",
    "warning of a public score": r"leaked note",
    "time of training": r"finished",
    "owner's mark": r"do not share",
}


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_of_the_vault_are_on_the_owners_page_only(copy_of, secret):
    public, owner = write_reports(copy_of())
    assert re.search(SECRETS[secret], text_of(owner))
    assert not re.search(SECRETS[secret], text_of(public))


def test_plan_warnings_reservation_and_folder_are_on_the_owners_page_only(copy_of):
    run = copy_of()
    plan = json.loads(run.plan_path.read_text())
    run.plan_path.write_text(json.dumps({**plan, "reservation": "hold-7f3a", "warnings": ["expect little"]}))
    public, owner = write_reports(run)
    for text in ("hold-7f3a", str(run.path), "expect little"):
        assert text in text_of(owner)
        assert text not in text_of(public)


def test_a_score_on_a_public_test_set_is_on_both_pages_and_marked(copy_of):
    for page in map(text_of, write_reports(copy_of())):
        assert "91.30 %" in page
        assert "84.6" in page
        assert "public test set" in page
        assert "stranger" not in page


def test_the_public_page_does_not_change_with_what_is_private(copy_of, tmp_path):
    run = copy_of()
    before = write_reports(run)[0].read_bytes()
    (run.vault / "log.jsonl").write_text('{"event": "other", "warnings": ["other"], "seconds": 1}\n')
    shutil.rmtree(run.vault / "checkpoints")
    assert write_reports(run)[0].read_bytes() == before


def test_reports_are_the_same_every_time(copy_of):
    run = copy_of()
    first = [path.read_bytes() for path in write_reports(run)]
    assert [path.read_bytes() for path in write_reports(run)] == first


def test_the_release_still_verifies_and_exports_with_its_report(copy_of, tmp_path):
    run = copy_of()
    public, _ = write_reports(run)
    assert verify(run.path)["files"] == "unchanged"
    export(run.path, tmp_path / "out")
    assert (tmp_path / "out" / "report.html").read_bytes() == public.read_bytes()


def test_the_owners_page_is_readable_by_the_owner_only(copy_of):
    _, owner = write_reports(copy_of())
    assert owner.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["proven", "published", "none"])
def test_pages_are_well_formed_and_self_contained(copy_of, kind):
    for path in write_reports(copy_of(kind)):
        page = path.read_text()
        assert "http://" not in page
        assert "https://" not in page
        assert "url(" not in page
        tags = Tags(page)
        assert tags.open == []
        names = {tag for tag, _ in tags.found}
        assert not names & {"script", "link", "iframe", "object", "form", "base"}
        sources = {attrs["src"].partition(";")[0] for _, attrs in tags.found if "src" in attrs}
        assert "data:image/png" in sources
        assert sources <= {"data:image/png", "data:image/svg+xml"}


def test_class_names_are_escaped(copy_of):
    for page in map(text_of, write_reports(copy_of())):
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert "b &amp; &#39;c&#39;" in page


def test_a_run_without_noise_says_not_private_in_red(copy_of):
    public, _ = write_reports(copy_of("none"))
    page = text_of(public)
    assert re.search(r'<span class="claim bad">\s*<span class="headline"><b>NOT PRIVATE:</b>', page)
    assert "<b>Private:" not in page
    assert "Treat this page like the images" in page
    assert "Made from the release alone" not in page


def test_a_published_epsilon_stands_after_the_proven_one_in_the_same_type(copy_of):
    public, _ = write_reports(copy_of("published"))
    lines = re.findall(r'<span class="(headline)"><b>(.*?):</b> (.*?)</span>', text_of(public))
    assert [label for _, label, _ in lines] == ["Proven", "Published, conservative"]
    assert re.match(r"epsilon 0\.\d+ for replacing one image", lines[0][2])
    assert lines[1][2] == "epsilon 1"


def test_only_one_rule_per_medium_sets_the_size_of_headlines():
    css = (TEMPLATES / "page.css").read_text()
    sized = [rule for rule in re.findall(r"([^{}]+)\{([^{}]*)\}", css) if "font-size" in rule[1]]
    assert {selector.strip() for selector, _ in sized if "headline" in selector} == {".headline"}
    assert not [selector for selector, _ in sized if selector.strip() in (".claim", ".good", ".weak", ".claim.bad")]


def test_without_a_vault_only_the_public_page_is_written(copy_of):
    run = copy_of()
    shutil.rmtree(run.vault)
    public, owner = write_reports(run)
    assert public.is_file()
    assert owner is None
    assert not run.vault.exists()


def test_an_exported_release_is_refused(copy_of, tmp_path):
    export(copy_of().path, tmp_path / "out")
    before = sorted((tmp_path / "out").iterdir())
    with pytest.raises(RunError, match="exported release"):
        write_reports(RunFolder(tmp_path / "out"))
    assert sorted((tmp_path / "out").iterdir()) == before


def test_an_unfinished_run_is_refused(copy_of):
    run = copy_of()
    shutil.rmtree(run.release)
    with pytest.raises(RunError, match="a finished run"):
        write_reports(run)


def test_a_changed_file_is_not_blessed_by_new_hashes(copy_of):
    run = copy_of()
    manifest = (run.release / "manifest.json").read_bytes()
    (run.release / "samples.png").write_bytes(b"a real image")
    with pytest.raises(ArtifactError):
        write_reports(run)
    assert (run.release / "manifest.json").read_bytes().split() == manifest.split()
    with pytest.raises(ArtifactError):
        read_release(run.release)


@pytest.mark.parametrize("left", ["report.html", ".report.html.writing"])
@pytest.mark.parametrize("earlier", [True, False], ids=["over an earlier report", "first report"])
def test_a_crash_while_writing_a_report_heals(copy_of, left, earlier):
    run = copy_of()
    if earlier:
        write_reports(run)
    (run.release / left).write_bytes(b"half a page")
    public, _ = write_reports(run)
    assert verify(run.path)["files"] == "unchanged"
    assert public.read_text().endswith("</html>")
    assert not list(run.release.glob(".*"))


def test_an_error_leaves_earlier_reports_alone(copy_of):
    run = copy_of()
    pages = [path.read_bytes() for path in write_reports(run)]
    (run.vault / "scores.json").write_text("[{}]")
    with pytest.raises(RunError, match="scores"):
        write_reports(run)
    assert [(folder / "report.html").read_bytes() for folder in (run.release, run.vault)] == pages
    assert verify(run.path)["files"] == "unchanged"


def test_without_jinja2_the_error_names_the_extra(copy_of, monkeypatch):
    run = copy_of()
    real = builtins.__import__

    def refusing(name, *args, **kwargs):
        if name == "jinja2":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(MissingExtra, match=r"veilset\[report\]"):
        write_reports(run)
    assert not (run.release / "report.html").exists()


def test_a_confusion_matrix_and_its_extractor_are_shown_where_their_score_may_be_seen(copy_of):
    table = [[7, 2, 1], [0, 199, 1], [0, 1, 999]]
    extractor = {"name": "fid-inception-2015", "hash": "ab" * 32}
    scores = tuple(
        Score.over_seeds(
            metric, [0.5], touched_private_data=private, details={"confusion": table, "extractor": extractor}
        )
        for metric, private in (("gen2real/cnn", False), ("gen2real/mlp", True))
    )
    public, owner = map(text_of, write_reports(copy_of(scores=scores)))
    assert (public.count('class="confusion"'), owner.count('class="confusion"')) == (1, 2)
    for page in (public, owner):
        assert page.count("fid-inception-2015 abababababab") == 1, "said once for all scores in a row that share it"
    assert '<td class="hit" style="--share: 0.7">70</td>' in owner
    assert '<td style="--share: 0.001">&lt;1</td>' in owner
    assert '<td style="--share: 0.005">&lt;1</td>' in owner, "a half is not rounded to a nothing that is none"
    assert '<td style="--share: 0.0">·</td>' in owner
    assert Tags(owner).open == []


def test_notes_of_a_score_are_on_the_owners_page_only(copy_of):
    score = Score.over_seeds("fid", [61.2], touched_private_data=False, details={"notes": ["137 images are few"]})
    public, owner = map(text_of, write_reports(copy_of(scores=(score,))))
    assert "fid: 137 images are few" in owner
    assert "137 images are few" not in public


def bought(run, epsilon):
    """Noisy scores of a tiny test set, by a classifier that needs no training."""
    draws = np.random.default_rng(9)
    test = veilset.load(draws.integers(0, 256, (300, 8, 8), dtype=np.uint8), np.arange(300) % 3, class_names=CLASSES)
    request = Request(number=30, classifiers=("gaussian-nb",))
    quiet = {"device": torch.device("cpu"), "progress": lambda *_: None}
    return buy_scores(run, test, request, epsilon=epsilon, **quiet)


def test_noisy_scores_are_on_both_pages_with_a_claim_of_their_own(copy_of):
    run = copy_of(scores=())
    (accuracy,) = bought(run, 4.0).accuracies
    for page in map(text_of, write_reports(run)):
        assert f"{100 * accuracy.accuracy:.2f} %" in page
        assert f"± {100 * accuracy.standard_error:.3g} points" in page
        assert "epsilon 4 at delta 1e-05 for adding or removing one image" in page
        assert "about the test set" in page
        assert "All noisy accuracies together" not in page
        assert Tags(page).open == []
    assert verify(run.path)["noisy_scores"]


def test_several_purchases_are_also_priced_together(copy_of):
    run = copy_of(scores=())
    for _ in range(2):
        bought(run, 4.0)
    page = text_of(write_reports(run)[0])
    (together,) = re.findall(r"All noisy accuracies together: (.*)\.", page)
    assert together == verify(run.path)["noisy_scores_together"]


def test_exact_scores_measured_after_a_purchase_stay_off_the_public_page(copy_of):
    run = copy_of(scores=())
    bought(run, 4.0)
    (run.vault / "scores.json").write_text(json.dumps([secret_score().to_json()]))
    public, owner = map(text_of, write_reports(run))
    assert "61.83" in owner
    assert "61.83" not in public
    assert "Noisy accuracies" in public


def test_confusion_of_private_images_goes_from_the_evaluation_to_the_owners_page_and_nowhere_else(copy_of):
    run = copy_of(scores=())
    pixels = np.random.default_rng(1).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    test = veilset.load(pixels, np.arange(30) % 3, class_names=CLASSES)
    request = Request(number=30, classifiers=("lda",))
    (score,) = score_run(run, test, request, device=torch.device("cpu"), progress=lambda *_: None)
    assert sum(map(sum, score.details["confusion"])) == 30
    _, owner = write_reports(run)
    assert 'class="confusion"' in text_of(owner)
    assert "confusion" in (run.vault / "scores.json").read_text()
    for path in run.release.iterdir():
        assert b'class="confusion"' not in path.read_bytes()
        assert b'"confusion"' not in path.read_bytes()


def test_no_page_shows_backticks(copy_of):
    for page in write_reports(copy_of()):
        assert "<code>veilset budget init</code>" in text_of(page)
        assert "`" not in text_of(page)


def test_a_target_is_shown_without_needless_digits(copy_of):
    for page in write_reports(copy_of()):
        assert '<th scope="row">Target epsilon</th><td>1</td>' in text_of(page)
