"""The report as the command prints it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tracea_graph.views.report import Report

__all__ = ["render_report"]


def render_report(report: Report, verbosity: int = 0) -> RenderableType:
    """Rich text: outcome, timings, groups; rules and their misses from verbosity 1 on."""
    return Group(*_parts(report, verbosity))


def _parts(report: Report, verbosity: int) -> Iterator[RenderableType]:
    if report.timings:
        yield _timings(report)
    if report.groups:
        yield _groups(report)
    if verbosity > 0 and report.rules:
        yield _rules(report)
    for warning in report.warnings:
        yield Text(f"warning: {warning}")
    yield Text(f"{report.outcome}: {report.reason}")
    yield Text(_verification(report))
    yield Text(_files(report))


def _timings(report: Report) -> Table:
    table = Table(title="original against result", title_justify="left")
    for name in ("threads", "shape", "before", "after", "speedup", "99 % bounds", "pairs"):
        table.add_column(name, justify="left" if name == "shape" else "right")
    for row in report.timings:
        table.add_row(
            str(row.threads),
            escape(row.binding),
            f"{row.before_ms:.3g} ms",
            f"{row.after_ms:.3g} ms",
            f"{row.ratio:.2f}×",
            f"{row.low:.2f}–{row.high:.2f}",
            str(row.pairs),
        )
    return table


def _groups(report: Report) -> Table:
    table = Table(title="rewrites", title_justify="left")
    table.add_column("kernel")
    table.add_column("nodes", justify="right")
    table.add_column("kept")
    table.add_column("why", overflow="fold")
    for row in report.groups:
        kept = "yes" if row.kept else "no"
        table.add_row(escape(row.group), str(row.count), kept, escape(row.reason))
    return table


def _rules(report: Report) -> Table:
    table = Table(title="rules", title_justify="left")
    table.add_column("rule")
    table.add_column("count", justify="right")
    table.add_column("verdict")
    table.add_column("reason", overflow="fold")
    for row in report.rules:
        table.add_row(escape(row.rule), str(row.count), row.verdict, escape(row.reason))
    return table


def _verification(report: Report) -> str:
    if report.error is None:
        return f"verification {report.status}: {report.status_reason}".rstrip(": ")
    floor = f"; ONNX Runtime against itself {report.floor:.1e}" if report.floor is not None else ""
    return f"verification {report.status}: max error {report.error:.1e} of max|y|{floor}"


def _files(report: Report) -> str:
    files = [f for f in (report.output, report.library, report.data) if f]
    return "wrote " + ", ".join(files)
