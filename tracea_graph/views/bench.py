"""The record of a benchmark, and its table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.json_documents import Figure, to_json
from tracea_graph.views.terminal_tables import format_three_digits, new_table, plain_text

__all__ = ["BenchReport", "BenchRow", "environment_line", "error_text", "render_bench"]

_NAMED = ("tracea", "onnxruntime", "openvino")
"""Packages whose versions are printed beside results; a record holds all versions."""


@dataclass(frozen=True)
class BenchRow:
    """Times of one model or runtime, at one binding and thread count.

    ``median`` and ``least`` are ms.  ``ratio`` is the baseline's time divided by this one's (above
    1: faster), as the median over all rounds; ``low`` and ``high`` are its 99 % bounds.  ``error``
    is the largest difference from the baseline's outputs relative to ``max|y|``, and infinite if
    integers, dims or positions of NaN differ.  Of the ``nodes`` nodes, ``kernels`` run as
    generated kernels; both are 0 in other runtimes.
    """

    subject: str
    threads: int
    binding: str
    median: float
    least: float
    ratio: float
    low: Figure
    high: Figure
    error: Figure
    kernels: int = 0
    nodes: int = 0


@dataclass(frozen=True)
class BenchReport:
    """All rows of a benchmark; the baseline comes first for each binding and thread count."""

    model: str
    rows: tuple[BenchRow, ...]
    gflop: Mapping[str, float] = field(default_factory=dict)
    """GFLOP of one run's products, by binding; a multiply-add is two operations."""
    rounds: int = 0
    """Minimum number of rounds over all rows."""
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Reasons why sizes differ from the usual ones."""
    softmax: Mapping[str, float] = field(default_factory=dict)
    """Number of softmax results in one run, by binding."""
    schema_version: Literal[1] = 1

    def to_json(self) -> str:
        """Return the document ``docs/schema/bench.json``."""
        return to_json(self)


def render_bench(report: BenchReport) -> RenderableType:
    """Return a table with a section per binding and thread count, and the environment."""
    return Group(*_parts(report))


def environment_line(versions: Mapping[str, str], machine: Mapping[str, Any]) -> str:
    """Return the machine, its threads and the package versions in one line."""
    where = f"{machine['model']}, {machine['threads']} threads" if machine else ""
    packages = (f"{name} {versions[name]}" for name in _NAMED if name in versions)
    return ", ".join(filter(None, (where, *packages)))


def _parts(report: BenchReport) -> Iterator[RenderableType]:
    table = new_table(report.model)
    table.add_column("threads", "right")
    table.add_column("runtime", folds=True)
    spare = {"least": 3, "kernels": 2, "max error": 1}
    for name in ("median", "least", "speedup", "99 % bounds", "max error", "kernels"):
        table.add_column(name, "right", spare=spare.get(name, 0))
    bindings = list(dict.fromkeys(row.binding for row in report.rows))
    for (binding, threads), rows in groupby(report.rows, key=lambda r: (r.binding, r.threads)):
        table.add_section()
        if len(bindings) > 1 and threads == report.rows[0].threads:
            table.add_row("", Text(plain_text(binding), style="italic"))
        for index, row in enumerate(rows):
            table.add_row("" if index else str(threads), *_cells(row, index == 0))
    yield table
    for warning in report.warnings:
        yield Text(f"warning: {plain_text(warning)}")
    if len(bindings) == 1:
        work = _work(report.gflop.get(bindings[0], 0.0))
        yield Text("; ".join(filter(None, (plain_text(bindings[0]), work))))
    yield from (Text(plain_text(note)) for note in report.notes)
    yield Text(
        f'{report.rounds} interleaved rounds; errors are relative to max|y|; "kernels" counts '
        "the nodes that run as generated kernels"
    )
    yield Text(environment_line(report.versions, report.machine))


def _work(gflop: float) -> str:
    """Return operations in words; nothing for none, as where no operator's sizes are known."""
    if not gflop:
        return ""
    return f"{gflop:.3g} GFLOP" if gflop >= 0.1 else f"{gflop * 1e3:.3g} MFLOP"


def _cells(row: BenchRow, baseline: bool) -> tuple[str | Text, ...]:
    times = (f"{format_three_digits(row.median)} ms", f"{format_three_digits(row.least)} ms")
    if baseline:
        return (Text(plain_text(row.subject)), *times, "1", "", "", _kernels(row))
    bounds = "" if math.isinf(row.high) else f"{row.low:.2f}–{row.high:.2f}"
    rated = (f"{row.ratio:.2f}×", bounds, error_text(row.error))
    return (Text(plain_text(row.subject)), *times, *rated, _kernels(row))


def error_text(error: float, digits: int = 1) -> str:
    """Format an error for a table: ``1.2e-06``, or why there is none."""
    return "differs" if math.isinf(error) else f"{error:.{digits}e}"


def _kernels(row: BenchRow) -> str:
    return f"{row.kernels} of {row.nodes}" if row.kernels else ""
