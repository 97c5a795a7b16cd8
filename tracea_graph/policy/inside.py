"""A region of several steps, looked at from inside: its steps as regions of their own."""

from __future__ import annotations

from tracea_graph.ir import TensorSpec, Weight
from tracea_graph.ops import VOCABULARY
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.region import RegionParams
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Inside", "reordered"]

_WORDS = {kind: word for word, kind in VOCABULARY}


class Inside(TileGraph):
    """The steps of a region, and what is known of their values; those between have numbers."""

    def __init__(self, graph: TileGraph, region: Region) -> None:
        params: RegionParams = region.params
        self._graph, self.opset = graph, graph.opset
        names = list(region.operands)
        found = params.infer_all([graph.spec(v) for v in names])
        self.steps: list[Region] = []
        for step in params.steps:
            made = tuple(f"{region.id}#{len(names) + i}" for i in range(step.results))
            reads = tuple(names[i] for i in step.operands)
            word = _WORDS[type(step.params)]
            self.steps.append(Region(made[0], word, reads, made, (), step.params))
            names += made
        self._specs = dict(zip(names, found, strict=True))
        self.leaving = {names[i] for i in params.results}

    def spec(self, value: str) -> TensorSpec:
        return self._specs[value]

    def weight(self, value: str) -> Weight | None:
        return self._graph.weight(value)


def reordered(region: Region) -> tuple[str, ...]:
    """Values a step wants in blocks, or writes so."""
    params = region.params
    if isinstance(params, ConvParams):
        reads = region.operands[:1] if params.layout != "stem" else ()
        return (*reads, *region.results) if params.in_blocks else ()
    if isinstance(params, PoolParams):
        return (region.operands[0], *(region.results if params.window else ()))
    if isinstance(params, ResizeParams):
        return (*region.operands, *region.results)
    return ()
