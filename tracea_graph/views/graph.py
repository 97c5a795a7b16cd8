"""A region graph as a table."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from tracea_graph.ttg import TileGraph

__all__ = ["render_graph"]


def render_graph(graph: TileGraph, bindings: Mapping[str, int]) -> Table:
    """One row per region: operator, result shapes, rule, and what it reads."""
    regions = graph.regions()
    sizes = ", ".join(f"{k}={v}" for k, v in bindings.items())
    table = Table(title=escape(f"{graph.name or 'graph'}: {len(regions)} regions {sizes}".strip()))
    for name in ("region", "result", "rule", "reads"):
        table.add_column(name, overflow="fold")
    for region in regions:
        results = " ".join(str(graph.spec(v)) for v in region.writes)
        reads = " ".join(region.reads)
        table.add_row(escape(region.op), escape(results), region.rule, escape(reads))
    return table
