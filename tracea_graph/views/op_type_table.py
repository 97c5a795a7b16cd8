"""Counts, FLOPs, bytes and times by op type, as a record and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tracea_graph.views.terminal_tables import (
    FittedTable,
    format_bytes,
    format_three_digits,
    new_table,
    text_cell,
)

__all__ = ["OpTypeRow", "op_type_table"]

_MOST = 10
"""Op types that have a row of their own."""


@dataclass(frozen=True)
class OpTypeRow:
    """Sums over all operators of one type.

    ``us`` is the time of one run; ``bytes`` are those of operands and results that the operators
    touch.  FLOPs and bytes leave out operators whose sizes are unknown.
    """

    op: str
    count: int
    flops: float
    bytes: float
    us: float


class _Sums(Protocol):
    """What :class:`OpTypeRow` shares with the totals of a profile."""

    @property
    def count(self) -> int: ...
    @property
    def flops(self) -> float: ...
    @property
    def bytes(self) -> float: ...
    @property
    def us(self) -> float: ...


def op_type_table(title: str, rows: Sequence[tuple[str, _Sums]], time: str) -> FittedTable:
    """Return a table of op types with their sums, the slowest type first.

    ``time`` is the title of the column of times.
    """
    table = new_table(title)
    table.add_column("op type", folds=True)
    for name in ("count", "MFLOP", "bytes", time, "share"):
        table.add_column(name, justify="right")
    total = sum(sums.us for _, sums in rows) or 1.0
    ordered = sorted(rows, key=lambda row: -row[1].us)
    for op, sums in ordered[:_MOST]:
        table.add_row(text_cell(op), *_cells([sums], total))
    if rest := [sums for _, sums in ordered[_MOST:]]:
        others = "1 other" if len(rest) == 1 else f"{len(rest)} others"
        table.add_row(text_cell(others), *_cells(rest, total))
    return table


def _cells(several: Sequence[_Sums], total: float) -> tuple[str, ...]:
    flops, moved, us = (
        sum(getattr(s, name) for s in several) for name in ("flops", "bytes", "us")
    )
    return (
        str(sum(s.count for s in several)),
        format_three_digits(flops / 1e6) if flops else "",
        format_bytes(moved) if moved else "",
        format_three_digits(us),
        f"{us / total:.1%}",
    )
