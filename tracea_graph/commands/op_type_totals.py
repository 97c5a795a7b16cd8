"""Counts, FLOPs, bytes and predicted times of a graph by op type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from tracea_graph.commands.op_statistics import touched_bytes
from tracea_graph.errors import GraphError
from tracea_graph.ir import assumed_size
from tracea_graph.ops.elementwise import is_pure_reshape
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.policy import CostModel
from tracea_graph.policy.ort_cost import SHAPE_ONLY
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.views.op_type_table import OpTypeRow

__all__ = ["op_type_totals"]


def op_type_totals(graph: TileGraph, cost: CostModel) -> tuple[OpTypeRow, ...]:
    """Return a row per op type, in descending order of predicted time.

    Each step of a program counts under its own op type.  Times add up to those of the regions.
    Bytes are those that the ops touch.  Ops whose iteration space is unknown count no FLOPs.
    """
    found: dict[str, list[float]] = {}
    for place, region, us in _steps(graph, cost):
        flops, moved = _work(place, region, cost.bindings)
        sums = found.setdefault(region.op, [0, 0.0, 0.0, 0.0])
        for i, more in enumerate((1, flops, moved, us)):
            sums[i] += more
    rows = (OpTypeRow(op, int(n), flops, moved, us) for op, (n, flops, moved, us) in found.items())
    return tuple(sorted(rows, key=lambda row: -row.us))


def _steps(graph: TileGraph, cost: CostModel) -> Iterator[tuple[TileGraph, Region, float]]:
    """Yield every region that is no program, and every step of a program, with graph and µs.

    What a program takes or saves as a whole is shared among its steps by their times.
    """
    for region in graph.regions():
        us = cost(graph, region)
        if isinstance(region.params, RegionParams):
            inside = Subgraph(graph, region)
            alone = [
                0.0 if is_pure_reshape(step.params) else cost.within(inside, step)
                for step in inside.steps
            ]
            share = us / (sum(alone) or 1.0)
            for step, own in zip(inside.steps, alone, strict=True):
                yield inside, step, own * share
        else:
            yield graph, region, us


def _work(graph: TileGraph, region: Region, sizes: Mapping[str, int]) -> tuple[float, float]:
    """Return FLOPs, and the bytes touched of all operands and results."""

    def bytes_of(value: str) -> float:
        spec = graph.spec(value)
        if spec.dtype is None or spec.shape is None:
            return 0.0
        return prod(assumed_size(extent, sizes) for extent in spec.shape) * spec.dtype.size

    if region.op in SHAPE_ONLY:
        return 0.0, 0.0
    try:
        model = graph.model(region)
        sides = touched_bytes(graph, region, sizes, bytes_of)
        flops = model.flops(sizes) if model else 0.0
    except GraphError:  # a size is not known
        return 0.0, 0.0
    return flops, sum(size for side in sides for value, size in side.items() if value)
