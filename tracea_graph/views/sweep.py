"""A sweep of error budgets: the speed-up under each, as a table and a Pareto plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tracea_graph.views.tables import FittedTable, cell, new_table, three_digits
from tracea_graph.views.tuning import escape_xml

__all__ = ["SweepPoint", "pareto", "pareto_svg", "render_sweep"]

_WIDTH, _HEIGHT, _MARGIN = 720, 420, 64
Point = tuple[float, float]
_FRONT, _BEHIND = "#2b6cb0", "#9aa5b1"


@dataclass(frozen=True)
class SweepPoint:
    """A result under one ``budget``: its measured ``error`` on held-out inputs, and times.

    Times are median ms of the original and of the result at one shape and thread count; it also
    counts the compressed layers.
    """

    budget: float
    error: float
    original_ms: float
    ms: float
    layers: int
    output: str
    schema_version: Literal[1] = 1

    @property
    def speedup(self) -> float:
        return self.original_ms / self.ms if self.ms else 1.0


def pareto(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Return the points that no other beats in both error and time, by error."""
    found: list[SweepPoint] = []
    for point in sorted(points, key=lambda p: (p.error, p.ms)):
        if not found or point.ms < found[-1].ms:
            found.append(point)
    return tuple(found)


def render_sweep(points: Sequence[SweepPoint]) -> FittedTable:
    """Return a table with one line per budget."""
    table, front = new_table("error against time"), pareto(points)
    for name in ("budget", "error", "original", "result", "speedup", "smaller layers"):
        table.add_column(name, justify="right")
    table.add_column("pareto")
    table.add_column("written to", folds=True)
    for p in points:
        table.add_row(
            f"{p.budget:g}",
            f"{p.error:.2g}",
            f"{three_digits(p.original_ms)} ms",
            f"{three_digits(p.ms)} ms",
            f"{p.speedup:.2f}×",
            str(p.layers),
            "yes" if p in front else "",
            cell(p.output),
        )
    return table


def pareto_svg(points: Sequence[SweepPoint], title: str) -> str:
    """Return measured error (logarithmic, x) against ms (y), with the Pareto front as a line."""
    least = min((p.error for p in points if p.error > 0), default=1e-6)
    low = math.log10(least / 2)
    high = math.log10(max([p.error for p in points] + [least * 4]) * 2)
    most = 1.1 * max((p.ms for p in points), default=0.0) or 1.0
    right, bottom = _WIDTH - 24, _HEIGHT - _MARGIN

    def at(error: float, ms: float) -> tuple[float, float]:
        share = (math.log10(max(error, least / 2)) - low) / (high - low)
        return _MARGIN + share * (right - _MARGIN), bottom - ms / most * (bottom - 44)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="system-ui, sans-serif" font-size="12" role="img">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="24" font-size="15">{escape_xml(title)}</text>',
        f'<path d="M{_MARGIN},44V{bottom}H{right}" fill="none" stroke="#7b8794"/>',
        f'<text x="{right}" y="{bottom + 40}" text-anchor="end">error, measured</text>',
        f'<text x="{_MARGIN}" y="40" text-anchor="end">ms</text>',
    ]
    for power in range(math.ceil(low), math.floor(high) + 1):
        x, _ = at(10.0**power, 0.0)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">1e{power}</text>')
    for step in range(5):
        ms = most * step / 4
        _, y = at(least, ms)
        parts.append(f'<text x="{_MARGIN - 6}" y="{y:.1f}" text-anchor="end">{ms:.3g}</text>')
    front = pareto(points)
    line = " ".join("{:.1f},{:.1f}".format(*at(p.error, p.ms)) for p in front)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{_FRONT}" stroke-width="2"/>')
    taken = [at(p.error, p.ms) for p in points]
    for p in points:
        x, y = at(p.error, p.ms)
        colour = _FRONT if p in front else _BEHIND
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"><title>budget {p.budget:g}: '
            f"error {p.error:.2g}, {p.ms:.3g} ms, {p.speedup:.2f}×</title></circle>"
        )
    for p in sorted(points, key=lambda p: p not in front):  # labels of the front come first
        if place := _free_place(*at(p.error, p.ms), taken):
            taken.append(place)
            parts.append(
                f'<text x="{place[0]:.1f}" y="{place[1] + 4:.1f}" text-anchor="middle">'
                f"{p.speedup:.2f}×</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


_LABEL = (46.0, 15.0)
"""Space of a label, in pixels: no other point or label lies in it."""


def _free_place(x: float, y: float, taken: Sequence[Point]) -> Point | None:
    """Return the middle of a label near a point that touches nothing; None if there is no room."""
    for dx, dy in ((0, -14), (0, 16), (30, 0), (-30, 0), (28, -16), (-28, -16), (0, -30)):
        place = x + dx, y + dy
        others = [(place[0] - a, place[1] - b) for a, b in taken if (a, b) != (x, y)]
        if all(abs(across) >= _LABEL[0] or abs(up) >= _LABEL[1] for across, up in others):
            return place
    return None
