"""Figures as bytes: the same input gives the same file, legible on light and on dark ground.

matplotlib is drawn on without pyplot and with its own defaults, so neither a window system, nor the user's settings,
nor the time of day reaches a figure.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Literal

from veilset.errors import ConfigError, MissingExtra

Format = Literal["svg", "png"]
Draw = Callable[[Any], None]
"""Draws one panel on matplotlib axes."""

INK, QUIET, LINE, GROUND = "#16202c", "#5a6675", "#dfe4ea", "#ffffff"
COLOURS = ("#2457a6", "#b3161f", "#13693f", "#8a5300", "#6b3fa0", "#00727a")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_ON_DARK = {
    INK: "#e6ebf1", QUIET: "#9aa7b6", LINE: "#2c3744", GROUND: "#171e27",
    **dict(zip(COLOURS, ("#7fb0ff", "#ff8f8f", "#6fd7a0", "#f1bd66", "#c3a1f5", "#5fd0d8"), strict=True)),
}  # fmt: skip
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "veilset", "font.size": 10.0, "axes.titlesize": 10.5, "legend.fontsize": 9.0,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": QUIET, "ytick.color": QUIET,
    "axes.edgecolor": QUIET, "axes.facecolor": GROUND, "figure.facecolor": GROUND, "savefig.facecolor": GROUND,
    "axes.grid": True, "grid.color": LINE, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "legend.facecolor": GROUND, "legend.edgecolor": "none", "legend.framealpha": 0.85,
}  # fmt: skip
PANEL_WIDTH, PANEL_HEIGHT, PANELS_IN_ROW = 3.9, 3.7, 4


def look(number: int) -> dict[str, Any]:
    """Colour, marker and dash of the n-th series: told apart without colour too."""
    dash = DASHES[(number // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "linestyle": dash}


def draw_panels(panels: Sequence[Draw], *, image_format: Format = "svg") -> bytes:
    """One figure with the panels in rows of at most four.

    Raises: ConfigError without a panel or for another format, MissingExtra without matplotlib.
    """
    if not panels:
        raise ConfigError("something to draw", "no panel", "Pass at least one.")
    if image_format not in ("svg", "png"):
        raise ConfigError("the format svg or png", f"{image_format!r}", "Choose one of the two.")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "report", "figures") from error
    columns = min(len(panels), PANELS_IN_ROW)
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(PANEL_WIDTH * columns, PANEL_HEIGHT * rows), layout="constrained")
        for number, draw in enumerate(panels, start=1):
            draw(figure.add_subplot(rows, columns, number))
        figure.draw_without_rendering()  # the layout needs a second pass once ticks have their final labels
        return _saved(figure, image_format)


def _saved(figure: Any, image_format: Format) -> bytes:
    buffer = io.BytesIO()
    if image_format == "png":
        figure.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
        return buffer.getvalue()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _for_both_grounds(buffer.getvalue().decode()).encode()


def _for_both_grounds(svg: str) -> str:
    """Adds a style sheet that swaps colours on dark ground; viewers that know none show the light figure."""
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in _ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    sheet = f"<style>@media screen and (prefers-color-scheme: dark){{{rules}}}</style>\n"
    first_definitions = svg.index("<defs>")
    return svg[:first_definitions] + sheet + svg[first_definitions:]
