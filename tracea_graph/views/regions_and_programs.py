"""Intermediate stages of a model as tables: regions, programs, sources."""

from __future__ import annotations

from collections.abc import Iterable

from tracea_graph.kernels.generated_source import Source
from tracea_graph.kernels.program import Call, Program, View
from tracea_graph.ttg import TileGraph
from tracea_graph.views.layer_names import model_name
from tracea_graph.views.terminal_tables import FittedTable, new_table, text_cell

__all__ = ["render_graph", "render_programs", "render_stages"]

Programs = Iterable[tuple[str, Program]]


def render_stages(graph: TileGraph, programs: Programs, sources: Iterable[Source]) -> FittedTable:
    """Return a table of the latest stage present: sources, else programs, else regions."""
    if sources := tuple(sources):
        return render_sources(sources)
    if programs := tuple(programs):
        return render_programs(programs)
    return render_graph(graph)


def render_graph(graph: TileGraph) -> FittedTable:
    """Return a row per region: operator, result shapes, rule, and operands."""
    regions = graph.regions()
    table = new_table(f"{model_name(graph)}: {len(regions)} region{'s' * (len(regions) != 1)}")
    table.add_column("region")
    for name in ("result", "rule", "reads"):
        table.add_column(name, folds=True)
    for region in regions:
        results = " ".join(str(graph.spec(v)) for v in region.writes)
        reads = " ".join(region.reads)
        table.add_row(
            text_cell(region.op), text_cell(results), text_cell(region.rule), text_cell(reads)
        )
    return table


def render_sources(sources: Iterable[Source]) -> FittedTable:
    """Return a row per generated source: its symbol and length."""
    table = new_table("sources (--keep-sources DIR writes those of a result)")
    table.add_column("symbol")
    table.add_column("lines", justify="right")
    for source in sources:
        table.add_row(text_cell(source.symbol), str(source.text.count("\n")))
    return table


def render_programs(programs: Programs) -> FittedTable:
    """Return a row per kernel call of each distinct type: its views, parameters and chain."""
    table = new_table("programs")
    for name in ("type", "kernel"):
        table.add_column(name)
    for name in ("views", "chain"):
        table.add_column(name, folds=True)
    for type_name, program in dict(programs).items():
        for call in program.calls:
            views = "  ".join("-" if v is None else _view(v) for v in call.views)
            table.add_row(
                text_cell(type_name),
                text_cell(_kernel(call)),
                text_cell(views),
                text_cell(_chain(call)),
            )
    return table


def _view(view: View) -> str:
    dims = ",".join(map(str, view.dims))
    return f"{view.buffer.kind}{view.buffer.index}[{dims}]"


def _kernel(call: Call) -> str:
    values = ", ".join(f"{name}={value}" for name, value in call.attributes.items())
    return f"{call.name}({values})" if values else call.name


def _chain(call: Call) -> str:
    return call.chain.text if call.chain else ""
