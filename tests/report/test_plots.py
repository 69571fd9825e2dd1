"""Every figure is valid, the same every time, and refuses what must not be drawn as one."""

from __future__ import annotations

import builtins
import io
import re
from collections.abc import Callable
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image

from veilset.errors import ConfigError, MissingExtra, MixedAdjacency, PrivacyError
from veilset.report import plots
from veilset.report.plots import (
    Curve,
    HistoryPanel,
    NormHistogram,
    NormPanel,
    Point,
    StagePanel,
    Trace,
    UtilityPanel,
)

TERMS = "delta 1e-05, add-remove of one record"


def curve(method: str = "dp-merf", basis: str = "proven", terms: str = TERMS, **options: object) -> Curve:
    points = tuple(Point(x=x, mean=0.5 + x / 50, sd=0.01 * x, basis=basis) for x in (10.0, 1.0, 3.0))
    return Curve(method=method, points=points, terms=terms, **options)


def panel(*curves: Curve) -> UtilityPanel:
    return UtilityPanel(title="mnist", metric="gen2real/cnn", curves=curves)


STEPS = tuple(range(0, 100, 10))
TRACE = Trace(label="before clipping", steps=STEPS, mean=tuple(12.0 + s % 3 for s in STEPS), sd=(4.0,) * len(STEPS))
FIGURES: dict[str, Callable[..., bytes]] = {
    "privacy-utility": lambda **o: plots.privacy_utility(
        [panel(curve(), curve("gs-wgan"), curve("gs-wgan", "published", status="refuted"))], **o
    ),
    "norm dynamics": lambda **o: plots.norm_dynamics(
        [NormPanel(title="critic", clip_norm=1.1, traces=(TRACE,))] * 4, **o
    ),
    "norm histograms": lambda **o: plots.norm_histograms(
        [NormHistogram.of("critic", [8.0, 12.0, 16.0], [1.0, 1.1, 1.1], clip_norm=1.1)], **o
    ),
    "history": lambda **o: plots.history(
        [
            HistoryPanel(
                title="generator",
                x_label="step",
                y_label="loss",
                traces=(Trace(label="loss", steps=(1, 2), mean=(1.0, 0.5)),),
            )
        ],
        **o,
    ),
    "continual": lambda **o: plots.continual(
        [
            StagePanel(
                title="mnist, epsilon 10",
                metric="accuracy",
                terms=TERMS,
                tasks=("5\n6", "1\n2"),
                traces=tuple(
                    Trace(label=name, steps=(1, 2), mean=(0.9, 0.5), sd=(0.01, 0.02)) for name in ("psg", "dp-sgd")
                ),
            )
        ],
        **o,
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_valid_svg_that_fetches_nothing_and_the_same_every_time(name: str) -> None:
    first, second = FIGURES[name](), FIGURES[name]()
    assert first == second
    root = ElementTree.fromstring(first)
    assert root.tag.endswith("svg")
    assert len(list(root.iter())) > 30
    assert b"prefers-color-scheme: dark" in first
    assert b"dc:date" not in first
    assert not [value for node in root.iter() for key, value in node.items() if "href" in key and value[:1] != "#"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_valid_png_with_more_than_one_colour_and_the_same_every_time(name: str) -> None:
    first = FIGURES[name](image_format="png")
    assert first == FIGURES[name](image_format="png")
    image = Image.open(io.BytesIO(first))
    image.load()
    assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 10
    assert "Software" not in image.info


def test_the_users_matplotlib_settings_neither_matter_nor_change() -> None:
    before = FIGURES["history"]()
    with matplotlib.rc_context({"lines.linewidth": 9.0, "axes.facecolor": "black"}):
        assert FIGURES["history"]() == before
        assert matplotlib.rcParams["lines.linewidth"] == 9.0


def test_proven_and_published_points_cannot_be_one_curve() -> None:
    mixed = (
        Point(x=1.0, mean=0.5, sd=None, basis="proven"),
        Point(x=10.0, mean=0.6, sd=None, basis="published"),
    )
    for status in (None, "refuted"):
        with pytest.raises(PrivacyError, match="one curve"):
            Curve(method="gs-wgan", points=mixed, terms=TERMS, status=status)


def test_a_published_curve_needs_its_status_and_a_proven_one_has_none() -> None:
    with pytest.raises(PrivacyError, match="status"):
        curve(basis="published")
    with pytest.raises(PrivacyError, match="status"):
        curve(status="sound")


def test_proven_and_published_curves_get_panels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(plots, "draw_panels", lambda draws, **_: drawn.append(len(draws)) or b"")
    plots.privacy_utility([panel(curve(), curve("gs-wgan", "published", status="refuted"))])
    plots.privacy_utility([panel(curve(), curve("gs-wgan"))])
    assert drawn == [2, 1]


def test_epsilons_about_different_neighbours_cannot_share_a_panel() -> None:
    with pytest.raises(MixedAdjacency, match="mean the same"):
        panel(curve(), curve("gs-wgan", terms="delta 1e-05, replace of one record"))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Point(x=1.0, mean=float("nan"), sd=None, basis="proven"),
        lambda: Point(x=1.0, mean=0.5, sd=None, basis="none"),
        lambda: curve().__class__(method="x", points=(), terms=TERMS),
        lambda: Trace(label="x", steps=(1, 2), mean=(1.0,)),
        lambda: Trace(label="x", steps=(), mean=()),
        lambda: NormHistogram.of("x", [], [1.0], clip_norm=1.0),
        lambda: plots.norm_dynamics([]),
        lambda: FIGURES["history"](image_format="gif"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_reason(build: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        build()


def test_a_histogram_counts_every_norm_once() -> None:
    counted = NormHistogram.of("x", [0.0, 5.0, 10.0], [1.0] * 4, clip_norm=1.0, bins=7)
    assert (sum(counted.before), sum(counted.after), len(counted.edges)) == (3, 4, 8)
    assert NormHistogram.of("x", [0.0], [0.0], clip_norm=0.0).before[0] == 1


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refusing(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(MissingExtra, match=r"veilset\[report\]"):
        FIGURES["history"]()


@pytest.mark.parametrize("stages", [(1,), (1, 2, 3), (2, 1)])
def test_a_figure_of_tasks_has_one_value_for_each(stages: tuple[int, ...]) -> None:
    trace = Trace(label="psg", steps=stages, mean=(0.5,) * len(stages))
    with pytest.raises(ConfigError, match="each of 2 tasks"):
        StagePanel(title="mnist", metric="accuracy", terms=TERMS, tasks=("5\n6", "1\n2"), traces=(trace,))


def test_epsilons_that_read_alike_are_one_tick() -> None:
    points = tuple(Point(x=x, mean=0.5, sd=None, basis="proven") for x in (1.0, 9.9994, 10.0))
    svg = plots.privacy_utility([panel(Curve(method="psg", points=points, terms=TERMS))]).decode()
    assert len(re.findall(r"<!-- 10 -->", svg)) == 1
