"""Results of tuning: tables, and convergence as text and SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.tuning import Case, TuningResult
from tracea_graph.views.charts import INK, chart_svg, chart_theme, check_charts
from tracea_graph.views.terminal_tables import new_table

__all__ = [
    "ConvergenceCurve",
    "convergence_curves",
    "convergence_svg",
    "render_curves",
    "render_tuned",
    "schedule_text",
]

_SOURCES = {
    "cache": "hit", "hint": "hint", "measured": "miss, measured",
    "unfinished": "miss, unfinished",
}  # fmt: skip
_BARS = " ▁▂▃▄▅▆▇█"


def render_tuned(
    tuned: Sequence[TuningResult], counts: Mapping[Case, int], saved: float
) -> RenderableType:
    """Return a table of a model's cases at the requested row counts, by decreasing share of time.

    Sentences with the predicted saving and the number of other cases follow.
    """
    table = new_table("")
    for name in ("region", "nodes", "share", "cache", "schedule", "gain", ""):
        numeric = name in ("nodes", "share", "gain")
        folds = name in ("schedule", "")
        table.add_column(name, "right" if numeric else "left", folds=folds)
    asked = [t for t in tuned if t.case in counts]
    for t in sorted(asked, key=lambda t: -t.share):
        table.add_row(
            str(t.case), str(counts[t.case]), f"{t.share:.1%}",
            _SOURCES.get(t.source, "miss"), schedule_text(t), f"{t.gain:.3f}×", t.why,
        )  # fmt: skip
    others = len(tuned) - len(asked)
    lines = [Text(f"predicted saving, end to end: {saved:.1%}")]
    if others:
        known = sum(t.source in ("cache", "measured") for t in tuned) - sum(
            t.source in ("cache", "measured") for t in asked
        )
        lines.append(Text(f"{others} cases at other row counts, {known} of them known"))
    if not tuned:
        lines = [Text("nothing in this model has schedules to choose")]
    return Group(*([table] if asked else []), *lines)


def schedule_text(tuned: TuningResult) -> str:
    """Return the settings of a schedule as text; ``default`` if the default schedule was kept."""
    if tuned.gain == 1.0 and tuned.source != "hint":
        return "default"
    return tuned.schedule.text


@dataclass(frozen=True)
class ConvergenceCurve:
    """Growth of a region's best speed-up over the default: (seconds, gain) per trial."""

    region: str
    points: tuple[tuple[float, float], ...]
    config: Mapping[str, Any]
    gflops: float
    settled: float = 0.0
    """The gain when the tuning of the region finished; 0 if it did not finish."""

    @property
    def best(self) -> float:
        return self.points[-1][1]


def convergence_curves(rows: Iterable[Mapping[str, Any]]) -> list[ConvergenceCurve]:
    """Return, for each region in the telemetry rows, how its best gain grew with time."""
    points: dict[str, list[tuple[float, float]]] = {}
    best: dict[str, Mapping[str, Any]] = {}
    settled: dict[str, float] = {}
    for row in rows:
        name = str(row.get("region"))
        if row["what"] == "region":
            settled[name] = float(row["gain"])
        if row["what"] != "trial" or not row.get("gain"):
            continue
        known = points.setdefault(name, [])
        before = known[-1][1] if known else 1.0
        known.append((float(row["seconds"]), max(before, float(row["gain"]))))
        if float(row["gain"]) > before or name not in best:
            best[name] = row
    return [
        ConvergenceCurve(n, tuple(p), best[n]["config"], best[n]["gflops"], settled.get(n, 0.0))
        for n, p in points.items()
    ]


def render_curves(found: Sequence[ConvergenceCurve]) -> RenderableType:
    """Return a line per region: trials, the best gain as a curve, and the changed settings."""
    table = new_table("")
    table.add_column("region")
    table.add_column("trials", "right")
    table.add_column("best so far, 1× to the best", spare=1)
    for name in ("best", "measured again", "GFLOP/s"):
        table.add_column(name, "right")
    for curve in found:
        settled = f"{curve.settled:.3f}×" if curve.settled else "open"
        table.add_row(
            curve.region, str(len(curve.points)), _sparkline(curve),
            f"{curve.best:.3f}×", settled, f"{curve.gflops:.0f}",
        )  # fmt: skip
    return table


def _sparkline(curve: ConvergenceCurve, width: int = 28) -> str:
    gains = [gain for _, gain in curve.points]
    picked = [gains[min(len(gains) - 1, i * len(gains) // width)] for i in range(width)]
    span = max(gains) - 1.0
    return "".join(_BARS[round((g - 1.0) / span * 8) if span else 0] for g in picked)


def convergence_svg(found: Sequence[ConvergenceCurve], title: str) -> str:
    """Return the best speed-up over time as SVG, a step line per region.

    Raises UsageError without lets-plot.
    """
    check_charts()
    import lets_plot as gg

    data: dict[str, list[object]] = {"seconds": [], "gain": [], "region": []}
    for curve in found:
        name = f"{curve.best:.3f}× {curve.region}"
        for seconds, gain in ((curve.points[0][0], 1.0), *curve.points):
            data["seconds"].append(seconds)
            data["gain"].append(gain)
            data["region"].append(name)
    return chart_svg(
        gg.ggplot(data, gg.aes("seconds", "gain", color="region"))
        + gg.geom_step(size=1)
        + gg.scale_color_hue(l=62, c=75)
        + gg.labs(title=title, x="seconds", y="best speedup so far")
        + gg.guides(color=gg.guide_legend(ncol=1))
        + chart_theme()
        + gg.theme(legend_text=gg.element_text(color=INK, size=12))
        + gg.ggsize(720, 380 + 40 * len(found))  # a name takes up to three lines
    )
