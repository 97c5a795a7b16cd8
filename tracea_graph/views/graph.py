"""A region graph, and the programs it lowers to, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.markup import escape
from rich.table import Table

from tracea_graph.ops.program import Call, Program, View
from tracea_graph.ttg import TileGraph

__all__ = ["render_graph", "render_programs"]


def render_graph(graph: TileGraph, bindings: Mapping[str, int]) -> Table:
    """One row per region: operator, result shapes, rule, and what it reads."""
    regions = graph.regions()
    sizes = ", ".join(f"{k}={v}" for k, v in bindings.items())
    title = f"{graph.name or 'graph'}: {len(regions)} regions {sizes}".strip()
    table = Table(title=escape(title), title_justify="left")
    for name in ("region", "result", "rule", "reads"):
        table.add_column(name, overflow="fold")
    for region in regions:
        results = " ".join(str(graph.spec(v)) for v in region.writes)
        reads = " ".join(region.reads)
        table.add_row(escape(region.op), escape(results), region.rule, escape(reads))
    return table


def render_programs(programs: Iterable[tuple[str, Program]]) -> Table:
    """One row per kernel call of each distinct type: its views, parameters and chain."""
    table = Table(title="programs", title_justify="left")
    for name in ("type", "kernel", "views", "chain"):
        table.add_column(name, overflow="fold")
    seen: set[str] = set()
    for type_name, program in programs:
        if type_name in seen:
            continue
        seen.add(type_name)
        for call in program.calls:
            views = "  ".join("-" if v is None else _view(v) for v in call.views)
            table.add_row(type_name, _kernel(call), escape(views), _chain(call))
    return table


def _view(view: View) -> str:
    dims = ",".join(map(str, view.dims))
    return f"{view.buffer.kind}{view.buffer.index}[{dims}]"


def _kernel(call: Call) -> str:
    numbers = ",".join(f"{n:g}" for n in (*call.ints, *call.floats))
    return f"{call.kernel}({numbers})" if numbers else call.kernel


def _chain(call: Call) -> str:
    return escape(call.chain.text) if call.chain else ""
