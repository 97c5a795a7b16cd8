"""A sweep of error budgets: the speed-up under each, as a table and a Pareto plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tracea_graph.errors import UsageError
from tracea_graph.views.charts import INK, PAPER, chart_svg, chart_theme, check_charts
from tracea_graph.views.terminal_tables import (
    FittedTable,
    format_three_digits,
    new_table,
    text_cell,
)

__all__ = ["SweepPoint", "pareto", "pareto_svg", "render_sweep", "sweep_warnings", "timed_at"]

_FRONT, _BEHIND = "#3b82c4", "#8a94a0"


@dataclass(frozen=True)
class SweepPoint:
    """Result of optimizing a model under one error ``budget``.

    ``error`` is measured on held-out inputs.  ``original_ms`` and ``ms`` are the median times of
    the original and of the result at one ``binding`` and thread count, 0 if nothing was timed;
    ``layers`` is the number of compressed layers.  Unless ``improved``, the original was kept.
    """

    budget: float
    error: float
    original_ms: float
    ms: float
    layers: int
    output: str
    binding: str = ""
    threads: int = 0
    improved: bool = True
    warnings: tuple[str, ...] = ()
    schema_version: Literal[1] = 1

    @property
    def speedup(self) -> float:
        return self.original_ms / self.ms if self.ms else 1.0


def pareto(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Return the timed points that none beats in both error and time, sorted by error."""
    found: list[SweepPoint] = []
    for point in sorted((p for p in points if p.ms), key=lambda p: (p.error, p.ms)):
        if not found or point.ms < found[-1].ms:
            found.append(point)
    return tuple(found)


def timed_at(points: Sequence[SweepPoint]) -> str:
    """Return the shape and threads of the times, as ``rows=128, 1 thread``; empty without any."""
    point = next((p for p in points if p.original_ms), None)
    if point is None:
        return ""
    return f"{point.binding}, {point.threads} thread{'s' * (point.threads != 1)}"


def sweep_warnings(points: Sequence[SweepPoint]) -> list[str]:
    """Return the warnings of all runs, each once; those of some runs only say of which."""
    found: dict[str, list[str]] = {}
    for point in points:
        for warning in point.warnings:
            found.setdefault(warning, []).append(f"{point.budget:g}")
    return [
        text if len(budgets) == len(points) else f"under {', '.join(budgets)}: {text}"
        for text, budgets in found.items()
    ]


def render_sweep(points: Sequence[SweepPoint]) -> FittedTable:
    """Return a table with one line per budget."""
    at = timed_at(points)
    table, front = new_table(f"error against time{at and f', {at}'}"), pareto(points)
    for name in ("budget", "error", "original", "result", "speedup", "smaller layers"):
        table.add_column(name, justify="right")
    table.add_column("pareto")
    table.add_column("written to", folds=True)
    for p in points:
        table.add_row(
            f"{p.budget:g}",
            f"{p.error:.2g}" if p.improved else "",
            _milliseconds(p.original_ms),
            _milliseconds(p.ms) if p.improved else "original kept",
            f"{p.speedup:.2f}×" if p.improved and p.ms else "",
            str(p.layers) if p.improved else "",
            "yes" if p in front else "",
            text_cell(p.output),
        )
    return table


def _milliseconds(time: float) -> str:
    return f"{format_three_digits(time)} ms" if time else "not timed"


def pareto_svg(points: Sequence[SweepPoint], title: str) -> str:
    """Plot time in ms over measured error (logarithmic), with the Pareto front as a line.

    Returns SVG.  Raises UsageError if lets-plot is missing, or if nothing was timed.
    """
    check_charts()
    import lets_plot as gg

    points, front = [p for p in points if p.ms], pareto(points)
    if not points:
        raise UsageError("nothing was timed: there is no picture to draw")
    least = min((p.error for p in points if p.error > 0), default=1e-6)
    low, high = least / 3, 3 * max([p.error for p in points] + [least])
    ticks = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
        for digit in (1, 2, 5)
        if low <= digit * 10.0**power <= high
    ]
    kinds = {True: "Pareto front", False: "slower at a larger error"}

    def columns(some: Sequence[SweepPoint]) -> dict[str, list[object]]:
        return {
            "error": [max(p.error, least / 2) for p in some],
            "ms": [p.ms for p in some],
            "label": [f"{p.speedup:.2f}×" for p in some],
            "kind": [kinds[p in front] for p in some],
        }

    plot = gg.ggplot(columns(points), gg.aes("error", "ms"))
    if len(front) > 1:
        plot += gg.geom_step(data=columns(front), color=_FRONT, size=1)
    labels = {"color": INK, "halo_width": 4, "halo_color": PAPER, "seed": 1}
    return chart_svg(
        plot
        + gg.geom_point(gg.aes(color="kind"), size=4)
        + gg.geom_text_repel(gg.aes(label="label"), **labels)
        + gg.scale_color_manual(values=[_FRONT, _BEHIND], breaks=[kinds[True], kinds[False]])
        + gg.scale_x_log10(breaks=ticks, labels=[f"{t:g}" for t in ticks], limits=[low, high])
        + gg.labs(title=title, x="measured error", y=f"ms at {timed_at(points)}")
        + chart_theme()
        + gg.ggsize(720, 440)
    )
