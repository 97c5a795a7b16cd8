"""From a region to its iteration space: the one place the tile graph learns about operators."""

from __future__ import annotations

from tracea_graph.ops import spaces_fused, spaces_onnx
from tracea_graph.ttg.graph import Region, TileGraph
from tracea_graph.ttg.model import RegionModel

__all__ = ["space_of"]


def space_of(region: Region, graph: TileGraph) -> RegionModel | None:
    """The loops, accesses and arithmetic of a region; None if it is opaque.

    Opaque are operators without a model, and regions whose shapes, axes or slice bounds are not
    known well enough to say what an output tile reads.
    """
    models = spaces_fused.MODELS if region.fused else spaces_onnx.MODELS
    model = models.get(region.op)
    return model(region, graph) if model and region.writes else None
