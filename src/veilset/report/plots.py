"""Figures of runs and methods, from plain numbers to SVG or PNG bytes. Nothing in here reads files.

Proven and published accounting never share a curve or a panel. Gradient norms and losses of critics are vault-side
numbers: figures of them belong on the owner's page, never into a release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veilset.report.canvas import COLOURS, QUIET, Draw, Format, draw_panels, look
from veilset.report.series import (
    BASES,
    Basis,
    Curve,
    HistoryPanel,
    NormHistogram,
    NormPanel,
    Point,
    StagePanel,
    Trace,
    UtilityPanel,
)

__all__ = [
    "Curve",
    "HistoryPanel",
    "NormHistogram",
    "NormPanel",
    "Point",
    "StagePanel",
    "Trace",
    "UtilityPanel",
    "continual",
    "history",
    "norm_dynamics",
    "norm_histograms",
    "privacy_utility",
]


def privacy_utility(panels: Sequence[UtilityPanel], *, image_format: Format = "svg") -> bytes:
    """Utility against epsilon, mean and error band."""
    names = sorted({curve.method for panel in panels for curve in panel.curves})
    looks = {name: look(number) for number, name in enumerate(names)}
    draws = [
        _utility_panel(panel, basis, looks)
        for panel in panels
        for basis in BASES
        if any(curve.basis == basis for curve in panel.curves)
    ]
    return draw_panels(draws, image_format=image_format)


def _utility_panel(panel: UtilityPanel, basis: Basis, looks: dict[str, dict[str, Any]]) -> Draw:
    curves = [curve for curve in panel.curves if curve.basis == basis]
    axis = "proven epsilon" if basis == "proven" else "epsilon as published"

    def draw(axes: Any) -> None:
        for curve in curves:
            style, points = looks[curve.method], sorted(curve.points, key=lambda point: point.x)
            label = curve.method if curve.status is None else f"{curve.method} ({curve.status})"
            _line(axes, [p.x for p in points], [p.mean for p in points], [p.sd or 0.0 for p in points], label, style)
        axes.set_title(f"{panel.title}\n{basis} accounting", loc="left")
        axes.set_xlabel(f"{axis}\n{curves[0].terms}")
        axes.set_ylabel(panel.metric)
        axes.set_ylim(*_y_range(panel))
        xs = [point.x for curve in curves for point in curve.points]
        if min(xs) > 0 and max(xs) / min(xs) >= 5:
            _log_ticks(axes, xs)
        _legend(axes)

    return draw


def _legend(axes: Any, columns: int = 1) -> None:
    """Below the panel: names with settings are long, and must not cover what they name."""
    axes.legend(
        loc="upper left", bbox_to_anchor=(-0.02, -0.24 if "\n" not in axes.get_xlabel() else -0.32), ncols=columns
    )


def _y_range(panel: UtilityPanel) -> tuple[float, float]:
    """The same for both accountings, so that the two can be read against each other, and no trifle fills a panel."""
    ends = [p.mean + sign * (p.sd or 0.0) for curve in panel.curves for p in curve.points for sign in (-1, 1)]
    margin = max(0.06 * (max(ends) - min(ends)), 0.03 * max(map(abs, ends))) or 1.0
    return min(ends) - margin, max(ends) + margin


def _line(
    axes: Any, xs: Sequence[float], means: Sequence[float], sds: Sequence[float], label: str, style: dict[str, Any]
) -> None:
    axes.plot(xs, means, label=label, markersize=5, linewidth=1.6, **style)
    if len(xs) == 1 and sds[0]:
        axes.errorbar(xs, means, yerr=sds, color=style["color"], capsize=3, fmt="none")
    elif any(sds):
        low, high = ([m + sign * sd for m, sd in zip(means, sds, strict=True)] for sign in (-1, 1))
        axes.fill_between(xs, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _log_ticks(axes: Any, xs: Sequence[float]) -> None:
    axes.set_xscale("log")
    ticks = {f"{x:.3g}": x for x in sorted(xs)}  # epsilons of 9.9994 and 10 are one tick
    if len(ticks) <= 6:
        axes.set_xticks(list(ticks.values()), list(ticks))
        axes.minorticks_off()


def norm_dynamics(panels: Sequence[NormPanel], *, image_format: Format = "svg") -> bytes:
    """Gradient norms over the iterations, mean and spread in the batch (GS-WGAN Fig. 2). For the owner's page only."""
    return draw_panels([_norm_panel(panel) for panel in panels], image_format=image_format)


def _norm_panel(panel: NormPanel) -> Draw:
    def draw(axes: Any) -> None:
        _traces(axes, panel.traces)
        axes.axhline(panel.clip_norm, color=QUIET, linestyle=(0, (4, 3)), label=f"clip norm {panel.clip_norm:g}")
        axes.set(xlabel="iteration", ylabel="gradient norm", ylim=(0, None))
        axes.set_title(panel.title, loc="left")
        _legend(axes)

    return draw


def _traces(axes: Any, traces: Sequence[Trace]) -> None:
    for number, trace in enumerate(traces):
        style = {**look(number), "marker": "o" if len(trace.steps) == 1 else ""}
        sds = trace.sd or [0.0] * len(trace.steps)
        _line(axes, trace.steps, trace.mean, sds, trace.label, style)


def norm_histograms(panels: Sequence[NormHistogram], *, image_format: Format = "svg") -> bytes:
    """Norms before and after clipping, all iterations pooled (GS-WGAN Fig. A1). For the owner's page only."""
    return draw_panels([_histogram(panel) for panel in panels], image_format=image_format)


def _histogram(panel: NormHistogram) -> Draw:
    def draw(axes: Any) -> None:
        for kind, counts in enumerate((panel.before, panel.after)):
            label = f"{('before', 'after')[kind]}: {panel.summary[kind]}"
            axes.stairs(counts, panel.edges, fill=True, color=COLOURS[1 - kind], alpha=0.5, label=label)
        axes.axvline(panel.clip_norm, color=QUIET, linestyle=(0, (4, 3)), label=f"clip norm {panel.clip_norm:g}")
        axes.set(xlabel="gradient norm", ylabel="count")
        axes.set_title(panel.title, loc="left")
        _legend(axes)

    return draw


def history(panels: Sequence[HistoryPanel], *, image_format: Format = "svg") -> bytes:
    """Losses over the steps, progress over time. For the owner's page only: losses may have seen real images."""
    return draw_panels([_history_panel(panel) for panel in panels], image_format=image_format)


def _history_panel(panel: HistoryPanel) -> Draw:
    def draw(axes: Any) -> None:
        _traces(axes, panel.traces)
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
        axes.set_title(panel.title, loc="left")
        _legend(axes)

    return draw


def continual(panels: Sequence[StagePanel], *, image_format: Format = "svg") -> bytes:
    """Accuracy after each task (PSG, continual learning). As private as the scores that are drawn."""
    names = list(dict.fromkeys(trace.label for panel in panels for trace in panel.traces))
    looks = {name: look(number) for number, name in enumerate(names)}
    return draw_panels([_stage_panel(panel, looks) for panel in panels], image_format=image_format)


def _stage_panel(panel: StagePanel, looks: dict[str, dict[str, Any]]) -> Draw:
    def draw(axes: Any) -> None:
        for trace in panel.traces:
            sds = trace.sd or [0.0] * len(trace.steps)
            _line(axes, trace.steps, trace.mean, sds, trace.label, looks[trace.label])
        axes.set_title(f"{panel.title}\n{panel.terms}", loc="left")
        axes.set_xticks(range(1, len(panel.tasks) + 1), panel.tasks, fontsize=8)
        axes.set_xlabel("classes that each task added\n")
        axes.set_ylabel(panel.metric)
        axes.set_ylim(0, 1.02)
        _legend(axes, columns=2)

    return draw
