"""Connect, then schedule, then plan memory: how a graph, or the inside of a program, is to run.

*Connect*: for every value that one region hands to another, the memory level at which the consumer
takes it.  Regions that take turns (:mod:`tracea_graph.ttg.bands`) hand some rows at a time on, in
the memory a core has for itself; any other value is taken whole, from the innermost level that
still has it.
*Schedule*: the order of regions and their turns: chains whose turn does not fit are rejected by
footprint, the rest ranked by traffic.  Where programs end says :mod:`tracea_graph.ttg.programs`.
*Memory*: a value lives from the region that makes it to the last that reads it, and as long as the
turns it crosses; what lives at the same time lies apart in one arena.

Everything follows from access maps and symbol values; no decision looks at what an operator is
called.  Source: Shi et al., "Welder", OSDI 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracea_graph.errors import GraphError
from tracea_graph.ir import TensorSpec, product
from tracea_graph.ttg.arena import Arena, Life, lay_out, placement, span
from tracea_graph.ttg.bands import ROOMS, Band, Walk, Walks, bands_by_room
from tracea_graph.ttg.graph import TileGraph
from tracea_graph.ttg.region import Region
from tracea_graph.ttg.space import number
from tracea_graph.ttg.traffic import MemoryLevel, level_of

__all__ = ["OUTSIDE", "Link", "Plan", "any_rows", "make_plan", "make_plans"]

OUTSIDE = "DRAM"
"""Where a value lies that no level keeps."""

Levels = Sequence[MemoryLevel]
"""Innermost first; cores share the last one."""


@dataclass(frozen=True)
class Link:
    """A value on its way from one region to another: where it is taken, and how much at once."""

    value: str
    producer: str
    consumer: str
    level: str
    bytes: float


@dataclass(frozen=True)
class Plan:
    """Regions in order, those that take turns, the level of every value handed on, the arena."""

    order: tuple[str, ...]
    bands: tuple[Band, ...]
    links: tuple[Link, ...]
    arena: Arena

    def level(self, value: str, consumer: str) -> str:
        """Where a region takes a value.  Raises GraphError if no other region hands it one."""
        for link in self.links:
            if (link.value, link.consumer) == (value, consumer):
                return link.level
        raise GraphError(f"no region hands {value!r} to {consumer!r}")

    def describe(self) -> str:
        """In a sentence: links by level, turns, and the arena."""
        if not self.links:
            return "nothing is handed on"
        at: dict[str, int] = {}
        for link in self.links:
            at[link.level] = at.get(link.level, 0) + 1
        taken = ", ".join(f"{count} in {level}" for level, count in at.items())
        turns = "".join(
            f"; {len(b.regions)} regions take {b.turns} turns of {b.rows} rows" for b in self.bands
        )
        size, least = self.arena.bytes / 1e6, self.arena.least / 1e6
        return (
            f"hands on {len(self.links)} values, {taken}{turns}; "
            f"arena {size:.3g} MB, of which {least:.3g} MB are alive at once"
        )


def any_rows(region: Region) -> Walk:
    """Every region can take turns, and goes through its rows once."""
    return Walk()


def make_plan(
    graph: TileGraph, bindings: Mapping[str, int], levels: Levels, walks: Walks = any_rows,
    room: float = ROOMS[0],
) -> Plan:  # fmt: skip
    """Turns, levels and memory of a graph under symbol values.

    ``walks`` says how kernels go through their rows; a turn takes up to ``room`` times the level
    next to a core.  Symbols without a value have the graph's own.  Raises GraphError if one has
    none.
    """
    return next(make_plans(graph, bindings, levels, walks, (room,)))


def make_plans(
    graph: TileGraph, bindings: Mapping[str, int], levels: Levels, walks: Walks,
    rooms: Iterable[float],
) -> Iterator[Plan]:  # fmt: skip
    """:func:`make_plan` for one room after another, of one look at the graph."""
    bindings = {**graph.bindings, **bindings}
    near = levels[-2] if len(levels) > 1 else levels[0]
    order = tuple(region.id for region in graph.regions())
    for found in bands_by_room(graph, bindings, near, walks, rooms):
        yield Plan(
            order, tuple(found), tuple(_connect(graph, bindings, levels, near, found)),
            _memory(graph, order, found, bindings),
        )  # fmt: skip


def _connect(
    graph: TileGraph, bindings: Mapping[str, int], levels: Levels, near: MemoryLevel,
    found: Sequence[Band],
) -> list[Link]:  # fmt: skip
    turning = {name: band for band in found for name in band.regions}
    links = []
    for region in graph.regions():
        for value in region.reads:
            if (producer := graph.producer(value)) is None:
                continue
            ends = value, producer.id, region.id
            band = turning.get(region.id)
            if band is not None and value in band.held:
                links.append(Link(*ends, near.name, band.held[value]))
                continue
            size = _bytes(graph.spec(value), bindings)
            level = level_of(size, levels)
            links.append(Link(*ends, level.name if level else OUTSIDE, size))
    return links


def _memory(
    graph: TileGraph, order: Sequence[str], found: Sequence[Band], bindings: Mapping[str, int]
) -> Arena:
    """Of values that one region hands to another; graph outputs have memory of their own."""
    at = {name: i for i, name in enumerate(order)}
    turns = [(at[band.regions[0]], at[band.regions[-1]]) for band in found]
    held = {value: size for band in found for value, size in band.held.items()}
    lives = []
    for region in graph.regions():
        for value in region.writes:
            readers = sorted(at[use.region.id] for use in graph.uses(value))
            if readers and not graph.is_output(value):
                # rows that turns share are moved on from one to the next
                steps = span([at[region.id], *readers], turns, value in held)
                size = held.get(value, _bytes(graph.spec(value), bindings))
                lives.append(Life(value, int(size), *steps))
    return lay_out([lives[i] for i in placement(lives)])


def _bytes(spec: TensorSpec, bindings: Mapping[str, int]) -> float:
    """Nothing is reserved for a value of unknown rank."""
    if spec.shape is None:
        return 0.0
    return number(product(spec.shape), bindings) * (spec.dtype.size if spec.dtype else 4)
