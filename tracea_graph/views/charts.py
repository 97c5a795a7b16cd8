"""Charts as SVG files, drawn by lets-plot: labels never overlap, colors follow light and dark.

lets-plot is an extra (``pip install tracea-graph[charts]``). A chart is one file that loads
nothing and runs no script.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from tracea_graph.errors import UsageError

__all__ = ["INK", "PAPER", "chart_svg", "chart_theme", "check_charts"]

INK, PAPER = "#1c2430", "#ffffff"
"""Colors of text and background, on a light page."""
_DIM, _GRID = "#55606d", "#e9e9e9"
"""Colors of secondary text and of the grid, which is lets-plot's own."""
_DARK = {INK: "#e3e8ee", _DIM: "#a3aebb", _GRID: "#333d49", PAPER: "#14191f"}
"""The same colors' counterparts on a dark page."""


def check_charts() -> None:
    """Raise UsageError if lets-plot is missing."""
    if importlib.util.find_spec("lets_plot") is None:
        raise UsageError("a chart needs lets-plot: pip install tracea-graph[charts]")


def chart_theme() -> Any:
    """Return a lets-plot theme with the colors of this module."""
    import lets_plot as gg

    text = gg.element_text(color=_DIM)
    return gg.theme_minimal() + gg.theme(
        plot_background=gg.element_rect(fill=PAPER, color=PAPER),
        axis_line=gg.element_line(color=_DIM),
        axis_ticks=gg.element_line(color=_DIM),
        plot_title=gg.element_text(color=INK),
        axis_title=text,
        axis_text=text,
        legend_title=gg.element_blank(),
        legend_text=gg.element_text(color=INK),
        legend_background=gg.element_rect(fill=PAPER, color=PAPER),
        legend_position="bottom",
    )


def chart_svg(plot: Any) -> str:
    """Return a plot as SVG whose colors change where the page that shows it is dark."""
    found = str(plot.to_svg())
    begin, end = found.split(">", 1)
    rules = "".join(
        f'[{kind}="{_rgb(light)}"]{{{kind}:{dark} !important}}'
        for light, dark in _DARK.items()
        for kind in ("fill", "stroke")
    )
    texts = f"text{{fill:{_DARK[INK]} !important}}"
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}{texts}}}</style>"
    return f"{begin}>{style}{end}\n"


def _rgb(color: str) -> str:
    """Return ``#rrggbb`` as lets-plot writes it."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgb({red},{green},{blue})"
