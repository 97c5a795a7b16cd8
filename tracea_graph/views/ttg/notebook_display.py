"""Notebook displays: graphs, tile maps, and differences of two graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracea_graph.errors import GraphError
from tracea_graph.ttg import TileGraph
from tracea_graph.ttg.tile_set import Shape
from tracea_graph.views.ttg.graph_html import diff_html, graph_html, tile_map_html
from tracea_graph.views.ttg.tile_map import TileDrawing, tile_map

__all__ = ["NOTEBOOK", "GraphDiff", "Notebook", "TileDisplay"]


@dataclass(frozen=True)
class TileDisplay:
    """A tile map that displays itself in a notebook."""

    map: TileDrawing

    def _repr_html_(self) -> str:
        return tile_map_html(self.map)


@dataclass(frozen=True)
class GraphDiff:
    """Two graphs that display themselves in a notebook, with changes in color."""

    before: TileGraph
    after: TileGraph

    def _repr_html_(self) -> str:
        return diff_html(self.before, self.after)


class Notebook:
    """The viewer of a ``TileGraph``: draws graphs as HTML fragments."""

    def html(self, graph: TileGraph) -> str:
        """Return the drawing of a graph."""
        return graph_html(graph)

    def diff(self, before: TileGraph, after: TileGraph) -> GraphDiff:
        """Return two graphs side by side."""
        return GraphDiff(before, after)

    def tiles(
        self, graph: TileGraph, name: str, bindings: Mapping[str, int], tile: Shape, order: str
    ) -> TileDisplay:
        """Return the tile map of a region found by ``name`` (:meth:`TileGraph.show`)."""
        program, _, step = name.partition("#")
        region = graph.find(program)
        if region is None:
            raise GraphError(f"no region is called {name!r}, writes it or replaces it")
        inside = graph.subgraph_of(region, graph)
        if inside is not None:
            found = inside.region(f"{region.id}#{step}") if step else inside.regions()[-1]
            if found is None:
                raise GraphError(f"{region.id!r} has no step that writes its value {step}")
            region, graph = found, inside
        return TileDisplay(tile_map(graph, region, bindings, tile, order))


NOTEBOOK = Notebook()
