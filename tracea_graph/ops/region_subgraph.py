"""The subgraph of a region with several steps: each step is a region of its own."""

from __future__ import annotations

from tracea_graph.ops import OPS
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.operator_iteration_spaces import space_of
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Subgraph", "subgraph_of"]

_OP_NAMES = {kind: op for op, kind in OPS}


class Subgraph(TileGraph):
    """The steps of a region as a graph, in execution order.

    A value between steps is named after the region and its number in the program.
    """

    def __init__(self, graph: TileGraph, region: Region) -> None:
        params: RegionParams = region.params
        names = list(region.operands)
        found = params.infer_all([graph.spec(v) for v in names])
        self.steps: list[Region] = []
        nodes = region.step_nodes or ((),) * len(params.steps)
        for step, own in zip(params.steps, nodes, strict=True):
            made = tuple(f"{region.id}#{len(names) + i}" for i in range(step.results))
            reads = tuple(names[i] for i in step.operands)
            op = _OP_NAMES[type(step.params)]
            self.steps.append(Region(made[0], op, reads, made, own, step.params))
            names += made
        weights = {v: w for v in region.operands if (w := graph.weight(v)) is not None}
        inputs = dict.fromkeys(v for v in region.operands if v and v not in weights)
        leaving = dict.fromkeys(names[i] for i in params.results)
        specs = dict(zip(names, found, strict=True))
        super().__init__(self.steps, tuple(inputs), tuple(leaving), weights, specs, graph.opset)
        self.model_of = space_of


def subgraph_of(region: Region, graph: TileGraph) -> TileGraph | None:
    """Return the subgraph of a region; None for a region of a single operator."""
    return Subgraph(graph, region) if isinstance(region.params, RegionParams) else None
