"""Tiles of several regions as one graph, with dependences across regions.

Tiles are numbered consecutively within a region, and regions follow each other in graph order.  An
opaque region is one tile: it waits for everything it reads, and its readers wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from tracea_graph.errors import GraphError
from tracea_graph.ttg.region import Region
from tracea_graph.ttg.region_graph import TileGraph
from tracea_graph.ttg.tile_dependences import DEPENDENCE, dependence_kind, dependences
from tracea_graph.ttg.tile_set import (
    EDGE,
    TILE,
    EdgeKind,
    Ids,
    Shape,
    TileMetadata,
    TileRole,
    TileSet,
    expand_tiles,
)  # fmt: skip

__all__ = ["RegionTiles", "TileDependence", "tile_regions"]

Records = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class TileDependence:
    """The producer tiles that each tile of a consumer waits for.

    ``rectangles``, of dtype ``DEPENDENCE``, are rectangles of the producer's grid.  ``producer``
    and ``consumer`` are indices of regions.
    """

    value: str
    producer: int
    consumer: int
    kind: str
    rectangles: Records = field(repr=False)


@dataclass(frozen=True, eq=False)
class RegionTiles:
    """The tiles of several regions, numbered consecutively, and the dependences between them."""

    regions: tuple[str, ...]
    sets: tuple[TileSet, ...]
    needs: tuple[TileDependence, ...]

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def starts(self) -> Ids:
        """Number of each region's first tile, then the number of all tiles."""
        return np.cumsum([0, *(len(s) for s in self.sets)]).astype(np.int32)

    @cached_property
    def table(self) -> Records:
        """Every tile's metadata, dtype ``TILE``, by number."""
        return np.concatenate([s.table for s in self.sets]) if self.sets else np.empty(0, TILE)

    def region_of(self, tile: int) -> str:
        """Return the region a tile belongs to."""
        return self.regions[int(np.searchsorted(self.starts, tile, "right")) - 1]

    def __getitem__(self, tile: int) -> TileMetadata:
        place = int(np.searchsorted(self.starts, tile, "right")) - 1
        return self.sets[place][tile - int(self.starts[place])]

    @cached_property
    def edges(self) -> Records:
        """Every edge, dtype ``EDGE``: those of each region, then ``DATA`` edges between regions.

        A tile that waits for a rectangle of tiles has one edge, from the last tile of the
        rectangle.  In row-major order that tile implies the others; :attr:`needs` lists the whole
        rectangle.
        """
        parts = []
        for first, tiles in zip(self.starts.tolist(), self.sets, strict=False):
            own = tiles.edges.copy()
            own["source"] += first
            own["target"] += first
            parts.append(own)
        for need in self.needs:
            made = np.empty(len(need.rectangles), EDGE)
            producer = self._numbers[need.producer]
            rows = need.rectangles
            made["source"] = producer[rows["m_stop"] - 1, rows["n_stop"] - 1]
            made["target"] = rows["tile"] + self.starts[need.consumer]
            made["kind"] = EdgeKind.DATA
            parts.append(made)
        return np.concatenate(parts) if parts else np.empty(0, EDGE)

    @cached_property
    def depth_first(self) -> Ids:
        """Launch order in which each tile runs just after the tiles it depends on.

        Tiles of regions that no other region reads keep their own order.  A tile of any other
        region runs only if another tile needs it.
        """
        read = {need.producer for need in self.needs}
        order = list[int]()
        done = np.zeros(len(self), bool)
        for place, tiles in enumerate(self.sets):
            if place not in read:
                for tile in tiles.order.tolist():
                    self._launch(tile + int(self.starts[place]), done, order)
        return np.array(order, np.int32)

    def _launch(self, tile: int, done: npt.NDArray[np.bool_], order: list[int]) -> None:
        waiting = [(tile, self._waits_for(tile))] if not done[tile] else []
        while waiting:
            at, needs = waiting[-1]
            following = next((n for n in needs if not done[n]), None)
            if following is not None:
                waiting.append((following, self._waits_for(following)))
                continue
            waiting.pop()
            if not done[at]:
                done[at] = True
                order.append(at)

    def _waits_for(self, tile: int) -> Iterator[int]:
        """Active tiles of other regions that a tile needs, and the slice of its sum before it."""
        place = int(np.searchsorted(self.starts, tile, "right")) - 1
        own = tile - int(self.starts[place])
        if own and self.sets[place].table["k_start"][own] > 0:
            yield tile - 1
        for need, rows in self._by_consumer.get(place, ()):
            first, end = np.searchsorted(rows["tile"], [own, own + 1])
            for _, m0, m1, n0, n1 in rows[first:end].tolist():
                numbers = self._numbers[need.producer][m0:m1, n0:n1]
                yield from (
                    int(n) for n in numbers.ravel() if self.table["role"][n] != TileRole.SKIP
                )

    @cached_property
    def _by_consumer(self) -> dict[int, list[tuple[TileDependence, Records]]]:
        found: dict[int, list[tuple[TileDependence, Records]]] = {}
        for need in self.needs:
            rows = need.rectangles[np.argsort(need.rectangles["tile"], kind="stable")]
            found.setdefault(need.consumer, []).append((need, rows))
        return found

    @cached_property
    def _numbers(self) -> tuple[Ids, ...]:
        """Per region, the number of the last slice at every grid position."""
        found = []
        for first, tiles in zip(self.starts.tolist(), self.sets, strict=False):
            numbers = np.full(tiles.grid, -1, np.int32)
            ids = np.arange(len(tiles), dtype=np.int32) + first
            numbers[tiles.table["region_m"], tiles.table["region_n"]] = ids
            found.append(numbers)
        return tuple(found)

    def to_networkx(self) -> nx.MultiDiGraph:
        """Return a graph of tiles, with region and metadata; its edges have a kind."""
        view = nx.MultiDiGraph()
        for tile in range(len(self)):
            view.add_node(tile, region=self.region_of(tile), **vars(self[tile]))
        for source, target, kind in self.edges.tolist():
            view.add_edge(source, target, key=EdgeKind(kind).name, kind=EdgeKind(kind))
        return view

    def __str__(self) -> str:
        return f"{len(self)} tiles of {len(self.regions)} regions, {len(self.needs)} needs"


def tile_regions(
    graph: TileGraph,
    regions: Sequence[Region],
    bindings: Mapping[str, int],
    tiles: Mapping[str, Shape] | None = None,
    order: str = "row-major",
) -> RegionTiles:
    """Return the tiles of some regions and their dependences.

    ``tiles`` maps region ids to tile sizes (m, n, k); each other region is one tile.  Raises
    GraphError for an unknown region or order, and for a symbol that neither ``bindings`` nor the
    graph binds.
    """
    bindings = {**graph.bindings, **bindings}
    chosen, members = tiles or {}, graph.in_order(regions)
    if unknown := chosen.keys() - {r.id for r in members}:
        raise GraphError(f"no region in this list is called {sorted(unknown)[0]!r}")
    sets = []
    for region in members:
        model = graph.model(region)
        shape = chosen.get(region.id, (0, 0, 0))
        sets.append(expand_tiles(model.bind(bindings), shape, order) if model else _ONE)
    place = {r.id: i for i, r in enumerate(members)}
    needs = []
    for consumer, region in enumerate(members):
        for value in dict.fromkeys(region.reads):
            source = graph.producer(value)
            if source is not None and source.id in place:
                producer = place[source.id]
                rows = _needed(sets[producer], sets[consumer], value)
                kind = dependence_kind(rows, sets[producer])
                needs.append(TileDependence(value, producer, consumer, kind, rows))
    return RegionTiles(tuple(r.id for r in members), tuple(sets), tuple(needs))


_ONE = TileSet(np.array([(0, 0, 0, 1, TileRole.MAIN)], TILE), np.zeros(1, np.int32), (1, 1))
"""Tile set of an opaque region."""


def _needed(producer: TileSet, consumer: TileSet, value: str) -> Records:
    """Rectangles of tiles; the whole grid if one side is opaque or has no access to the value."""
    if producer.model and consumer.model:
        written = any(a.value == value for a in producer.model.writes)
        if written and any(a.value == value for a in consumer.model.reads):
            return dependences(producer, consumer, value)
    rows = np.empty(len(consumer.order), DEPENDENCE)
    rows["tile"], rows["m_start"], rows["n_start"] = consumer.order, 0, 0
    rows["m_stop"], rows["n_stop"] = producer.grid
    return rows
