"""Tile maps for display: roles, launch order, and the producer tiles each tile needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.loop_nest_model import BoundModel
from tracea_graph.ttg.tile_dependences import dependence_kind, dependences
from tracea_graph.ttg.tile_set import Shape, TileSet, expand_tiles

__all__ = ["TileDrawing", "TileFootprint", "tile_map"]

_SIDE = 12
"""Maximum tiles per side of a drawing if no tile size is given."""
_MOST = 4096


@dataclass(frozen=True)
class TileFootprint:
    """The part of an operand that each tile of a region reads, counted in the producer's tiles.

    ``rectangles`` are half-open: ``[tile, m, m_end, n, n_end]``.  ``read`` is the index of the
    operand among the region's reads.
    """

    read: int
    value: str
    producer: str
    kind: str
    grid: tuple[int, int]
    rectangles: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TileDrawing:
    """One region's tiles, few enough to draw."""

    region: str
    op: str
    axes: tuple[tuple[str, int, bool], ...]
    """Name, extent, and whether it is a reduction."""
    grid: tuple[int, int]
    tile: Shape
    batch: int
    roles: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    order: tuple[int, ...]
    needs: tuple[TileFootprint, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {**vars(self), "needs": [vars(need) for need in self.needs]}


def tile_map(
    graph: TileGraph,
    region: Region,
    bindings: Mapping[str, int],
    tile: Shape = (0, 0, 0),
    order: str = "row-major",
) -> TileDrawing:
    """Return the tiles of a region, and for each the tiles of other regions that it needs.

    Only producers with a loop model have tiles.  The default ``tile`` is chosen such that there
    are at most 12 × 12.  Raises GraphError if the region is opaque, a symbol has no binding, or
    there are more than 4096 tiles to draw.
    """
    model = graph.model(region)
    if model is None:
        raise GraphError(f"region {region.id} ({region.op}) is opaque: it has no tiles")
    bound = model.bind(bindings)
    tiles = expand_tiles(bound, tile if any(tile) else _drawable(bound), order)
    if len(tiles) > _MOST:
        raise GraphError(f"{len(tiles)} tiles are too many to draw: choose larger ones")
    sizes = bound.extents.tolist()
    axes = tuple((a.name, n, a.reduction) for a, n in zip(model.space.axes, sizes, strict=True))
    needs = tuple(
        need
        for value in dict.fromkeys(region.reads)
        if (need := _need(graph, region, value, tiles, bindings)) is not None
    )
    table = tiles.table
    return TileDrawing(
        region.id, region.op, axes, tiles.grid, tiles.tile, tiles.batch,
        tuple(table["role"].tolist()), tuple(table["region_m"].tolist()),
        tuple(table["region_n"].tolist()), tuple(tiles.order.tolist()), needs,
    )  # fmt: skip


def _drawable(bound: BoundModel) -> Shape:
    """Power-of-two tile sizes that yield at most :data:`_SIDE` tiles per side."""
    batch, m, n, _ = bound.problem
    rows = max(1, _SIDE // max(batch, 1))
    return _power(m, rows), _power(n, _SIDE), 0


def _power(extent: int, parts: int) -> int:
    return 1 << max(0, -(-extent // parts) - 1).bit_length()


def _need(
    graph: TileGraph, region: Region, value: str, consumer: TileSet, bindings: Mapping[str, int]
) -> TileFootprint | None:
    """Return the tiles of ``value`` that each tile of ``consumer`` reads.

    None if no modelled region produces the value, or if it has too many tiles to draw.
    """
    producer = graph.producer(value)
    model = graph.model(producer) if producer is not None else None
    if producer is None or model is None:
        return None
    bound = model.bind(bindings)
    tiles = expand_tiles(bound, _drawable(bound))
    if len(tiles) > _MOST or value not in {a.value for a in bound.writes}:
        return None
    if value not in {a.value for a in (consumer.model.reads if consumer.model else ())}:
        return None
    rectangles = dependences(tiles, consumer, value)
    rows = tuple(tuple(row) for row in rectangles.tolist())
    kind = dependence_kind(rectangles, tiles)
    return TileFootprint(region.reads.index(value), value, producer.id, kind, tiles.grid, rows)
