"""The record of ways to serve a model, and its table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.json_documents import to_json
from tracea_graph.views.bench import environment_line
from tracea_graph.views.terminal_tables import (
    format_three_digits,
    new_table,
    plain_text,
    text_cell,
)

__all__ = ["ServingReport", "ServingRow", "quantile", "render_serving"]


@dataclass(frozen=True)
class ServingRow:
    """One model in ``sessions`` sessions of ``threads`` threads each, all running at once.

    ``per_second`` is the median number of runs per second over rounds, ``least`` and ``most`` the
    extremes; ``p50``, ``p95`` and ``p99`` are quantiles of the ms of all ``runs`` runs, whose
    sizes ``binding`` names.
    """

    subject: str
    sessions: int
    threads: int
    per_second: float
    least: float
    most: float
    p50: float
    p95: float
    p99: float
    runs: int
    binding: str = ""


@dataclass(frozen=True)
class ServingReport:
    """Throughput and latency of models, each in one session and in several concurrent sessions.

    All configurations were measured alternately, in ``rounds``.  ``binding`` names all sizes.
    """

    model: str
    binding: str
    rows: tuple[ServingRow, ...]
    rounds: int
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    schema_version: Literal[1] = 1

    def to_json(self) -> str:
        """Return the document ``docs/schema/serving.json``."""
        return to_json(self)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the given numbers that is not below a ``share`` of all of them.

    ``ordered`` are the numbers in ascending order.  Raises ValueError if there are none.
    """
    if not ordered:
        raise ValueError("no entries")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def render_serving(report: ServingReport) -> RenderableType:
    """Return a table of all models and configurations, then the best one for each model."""
    return Group(*_parts(report))


def _parts(report: ServingReport) -> Iterator[RenderableType]:
    bindings = tuple(dict.fromkeys(row.binding for row in report.rows))
    several = len(bindings) > 1
    for binding in bindings:
        rows = tuple(row for row in report.rows if row.binding == binding)
        yield _table(plain_text(f"{report.model}, {binding}" if several else report.model), rows)
        by_model = groupby(rows, key=lambda row: row.subject)
        yield from (Text(_best(name, tuple(own))) for name, own in by_model)
    yield from (Text(f"warning: {plain_text(warning)}") for warning in report.warnings)
    yield Text(
        f"{plain_text(report.binding)}; {report.rounds} rounds, in which all sessions run at once"
    )
    yield Text(environment_line(report.versions, report.machine))


def _table(title: str, rows: Sequence[ServingRow]) -> RenderableType:
    table = new_table(title)
    table.add_column("model", folds=True)
    for name in ("sessions", "threads", "runs/s", "p50", "p95", "p99"):
        table.add_column(name, "right")
    for row in rows:
        times = (f"{format_three_digits(ms)} ms" for ms in (row.p50, row.p95, row.p99))
        table.add_row(
            text_cell(row.subject), str(row.sessions), str(row.threads),
            format_three_digits(row.per_second),
            *times,
        )  # fmt: skip
    return table


def _best(name: str, rows: Sequence[ServingRow]) -> str:
    """Say which way to serve gives the most runs per second, and what that costs in latency."""
    best = max(rows, key=lambda row: row.per_second)
    quickest = min(rows, key=lambda row: row.p50)
    said = f"{plain_text(name)}: most runs per second with {_way(best)}"
    if quickest is best:
        return f"{said}, which also has the shortest median run"
    return (
        f"{said}; the median run is {best.p50 / quickest.p50:.2f}× as fast with {_way(quickest)}"
    )


def _way(row: ServingRow) -> str:
    sessions = f"{row.sessions} session{'s' * (row.sessions != 1)}"
    return f"{sessions} of {row.threads} thread{'s' * (row.threads != 1)}"
