"""Execution plan of a graph or of a program: connect, schedule, plan memory.

*Connect*: choose, for every value passed between regions, the memory level at which the consumer
reads it.  Regions fused over row tiles (:mod:`tracea_graph.ttg.row_tiling`) pass one tile in the
memory private to a core; any other value is read whole, from the innermost level that still holds
it. *Schedule*: order the regions and their row tiles: tiles that do not fit are rejected by
footprint, the others ranked by traffic.  :mod:`tracea_graph.ttg.program_partition` decides where
programs end. *Memory*: a value lives from the region that makes it to the last that reads it, and
through the loops it crosses; values alive at the same time are disjoint in one arena.

All decisions follow from access maps and symbol values, none from operator names. Source: Shi et
al., "Welder", OSDI 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracea_graph.errors import GraphError
from tracea_graph.ir import TensorSpec, product
from tracea_graph.ttg.arena_allocation import (
    Arena,
    Lifetime,
    live_range,
    place_values,
    placement_order,
)
from tracea_graph.ttg.iteration_space import extent_value
from tracea_graph.ttg.memory_traffic import MemoryLevel, innermost_level
from tracea_graph.ttg.region import Region
from tracea_graph.ttg.region_graph import TileGraph
from tracea_graph.ttg.row_tiling import (
    CACHE_FRACTIONS,
    RowReuse,
    RowReuseOf,
    RowTiling,
    row_tilings_by_size,
)

__all__ = [
    "OUTSIDE",
    "ExecutionPlan",
    "ValueLink",
    "assume_row_tileable",
    "make_execution_plan",
    "make_execution_plans",
]

OUTSIDE = "DRAM"
"""Level of a value that no cache holds."""

Levels = Sequence[MemoryLevel]
"""Memory levels, innermost first; the last one is shared by all cores."""


@dataclass(frozen=True)
class ValueLink:
    """A value passed from one region to another: its memory level and the bytes read at a time."""

    value: str
    producer: str
    consumer: str
    level: str
    bytes: float


@dataclass(frozen=True)
class ExecutionPlan:
    """Regions in order, row tilings, a link for every value passed on, and the arena."""

    order: tuple[str, ...]
    row_tilings: tuple[RowTiling, ...]
    links: tuple[ValueLink, ...]
    arena: Arena

    def level(self, value: str, consumer: str) -> str:
        """Return the level at which a region reads a value.

        Raises GraphError if no other region passes the value to it.
        """
        for link in self.links:
            if (link.value, link.consumer) == (value, consumer):
                return link.level
        raise GraphError(f"no region passes {value!r} to {consumer!r}")

    def describe(self) -> str:
        """Return one sentence: links by level, row tiles, and the arena."""
        if not self.links:
            return "no values are passed between steps"
        at: dict[str, int] = {}
        for link in self.links:
            at[link.level] = at.get(link.level, 0) + 1
        taken = ", ".join(f"{count} in {level}" for level, count in at.items())
        iterations = "".join(
            f"; {len(t.regions)} regions in {t.iterations} row tiles of {t.rows} rows"
            for t in self.row_tilings
        )
        size, least = (f"{n / 1e6:.3g} MB" for n in (self.arena.bytes, self.arena.least))
        used = "" if size == least else f", of which at most {least} are in use at once"
        return (
            f"values passed between steps: {len(self.links)}, {taken}{iterations}; "
            f"arena {size}{used}"
        )


def assume_row_tileable(region: Region) -> RowReuse:
    """Assume that a region can be tiled by rows and passes over its rows once."""
    return RowReuse()


def make_execution_plan(
    graph: TileGraph, bindings: Mapping[str, int], levels: Levels,
    row_reuse: RowReuseOf = assume_row_tileable, cache_fraction: float = CACHE_FRACTIONS[0],
) -> ExecutionPlan:  # fmt: skip
    """Return row tilings, memory levels and arena of a graph under symbol values.

    ``row_reuse`` says how a region's kernel passes over its rows.  A row tile takes
    ``cache_fraction`` of the memory level next to a core.  Symbols that are not in ``bindings``
    take the values of the graph's own bindings.  Raises GraphError if a symbol is in neither.
    """
    return next(make_execution_plans(graph, bindings, levels, row_reuse, (cache_fraction,)))


def make_execution_plans(
    graph: TileGraph, bindings: Mapping[str, int], levels: Levels, row_reuse: RowReuseOf,
    cache_fractions: Iterable[float],
) -> Iterator[ExecutionPlan]:  # fmt: skip
    """Yield :func:`make_execution_plan` for each cache fraction; the graph is analysed once."""
    bindings = {**graph.bindings, **bindings}
    near = levels[-2] if len(levels) > 1 else levels[0]
    order = tuple(region.id for region in graph.regions())
    for found in row_tilings_by_size(graph, bindings, near, row_reuse, cache_fractions):
        yield ExecutionPlan(
            order, tuple(found), tuple(_connect(graph, bindings, levels, near, found)),
            _memory(graph, order, found, bindings),
        )  # fmt: skip


def _connect(
    graph: TileGraph, bindings: Mapping[str, int], levels: Levels, near: MemoryLevel,
    found: Sequence[RowTiling],
) -> list[ValueLink]:  # fmt: skip
    tiled = {name: tiling for tiling in found for name in tiling.regions}
    links = []
    for region in graph.regions():
        for value in region.reads:
            if (producer := graph.producer(value)) is None:
                continue
            ends = value, producer.id, region.id
            tiling = tiled.get(region.id)
            if tiling is not None and value in tiling.held:
                links.append(ValueLink(*ends, near.name, tiling.held[value]))
                continue
            size = _bytes(graph.spec(value), bindings)
            level = innermost_level(size, levels)
            links.append(ValueLink(*ends, level.name if level else OUTSIDE, size))
    return links


def _memory(
    graph: TileGraph, order: Sequence[str], found: Sequence[RowTiling], bindings: Mapping[str, int]
) -> Arena:
    """Arena of the values passed between regions; graph outputs have memory of their own."""
    at = {name: i for i, name in enumerate(order)}
    iterations = [(at[tiling.regions[0]], at[tiling.regions[-1]]) for tiling in found]
    held = {value: size for tiling in found for value, size in tiling.held.items()}
    lives = []
    for region in graph.regions():
        for value in region.writes:
            readers = sorted(at[use.region.id] for use in graph.uses(value))
            if readers and not graph.is_output(value):
                # rows shared by iterations are carried from one to the next
                steps = live_range([at[region.id], *readers], iterations, value in held)
                size = held.get(value, _bytes(graph.spec(value), bindings))
                lives.append(Lifetime(value, int(size), *steps))
    return place_values([lives[i] for i in placement_order(lives)])


def _bytes(spec: TensorSpec, bindings: Mapping[str, int]) -> float:
    """Bytes of a value, 0 if its rank is unknown."""
    if spec.shape is None:
        return 0.0
    return extent_value(product(spec.shape), bindings) * (spec.dtype.size if spec.dtype else 4)
