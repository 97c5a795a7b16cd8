"""Connect, then schedule, then plan memory: what runs together, and where values lie meanwhile.

*Connect*: for every value that one region hands to another, the memory level at which the
consumer takes it.  Both are staged with tiles of the consumer: a level whose capacity the
footprint exceeds is rejected, and one where the pair moves more than the two regions would apart
is too, so that weights read again for every tile are weighed against the value that stays.
*Schedule*: links within a core's own levels (all but the outermost, which cores share), those
that save most traffic first, join convex groups as long as the group has a tile that fits.
*Memory*: values between groups live from the group that makes them to the last one that reads
them, and share one arena.

Everything follows from access maps and symbol values; a decision depends on shape, and the best
few tiles are there to be measured.  Source: Shi et al., "Welder", OSDI 2023.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tracea_graph.errors import GraphError
from tracea_graph.ir import TensorSpec, product
from tracea_graph.ttg.arena import Arena, Life, lay_out
from tracea_graph.ttg.blocks import signature
from tracea_graph.ttg.dependence import dependence_kind, dependences
from tracea_graph.ttg.model import RegionModel
from tracea_graph.ttg.region import Region
from tracea_graph.ttg.space import number
from tracea_graph.ttg.tiles import Shape, expand
from tracea_graph.ttg.traffic import MemoryLevel, Staging

if TYPE_CHECKING:
    from tracea_graph.ttg.graph import TileGraph

__all__ = ["REGISTERS", "Candidate", "Group", "Link", "Plan", "connect", "make_plan", "row_blocks"]

REGISTERS = "registers"
OUTSIDE = "DRAM"
_ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Rows of a tile that are tried."""
_COLUMNS = 64
"""Columns of a tile where whole rows do not fit: some register tiles wide."""
_MOST_TILES = 1 << 14
_MOST_RECOMPUTED = 1.1
"""Operations of a pair over those of its regions: halos yes, whole rows again no."""

Levels = Sequence[MemoryLevel]
"""Innermost first; what fits none of them lies in DRAM."""


@dataclass(frozen=True)
class Candidate:
    """A row block of some regions at one level, with what it costs there (bytes)."""

    level: str
    tile: Shape
    footprint: float
    traffic: float


@dataclass(frozen=True)
class Link:
    """A value on its way from one region to another; ``saved`` bytes do not move."""

    value: str
    producer: str
    consumer: str
    level: str
    tile: Shape = (0, 0, 0)
    saved: float = 0.0


@dataclass(frozen=True)
class Group:
    """Regions that run as one, producers first; ``tile`` is a block of the last one's result.

    ``level`` holds the tile with all it needs; a group of one region has none.
    """

    regions: tuple[str, ...]
    level: str = ""
    tile: Shape = (0, 0, 0)
    footprint: float = 0.0
    traffic: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What runs together, the level of every value handed on, and the arena of those between."""

    groups: tuple[Group, ...]
    links: tuple[Link, ...]
    arena: Arena

    @cached_property
    def group_of(self) -> Mapping[str, int]:
        """By region, the number of its group, in the order in which groups run."""
        return {name: i for i, group in enumerate(self.groups) for name in group.regions}

    def level(self, value: str, consumer: str) -> str:
        """Where a region takes a value.  Raises GraphError if no other region hands it one."""
        for link in self.links:
            if (link.value, link.consumer) == (value, consumer):
                return link.level
        raise GraphError(f"no region hands {value!r} to {consumer!r}")


def row_blocks(
    models: Sequence[RegionModel], bindings: Mapping[str, int], levels: Levels,
    kept: frozenset[str] = frozenset(), best: int = 3,
) -> list[Candidate]:  # fmt: skip
    """The best few row blocks of connected regions: rejected by footprint, ranked by traffic.

    At every level the blocks whose tile fits, least traffic first; ties go to larger blocks,
    which have fewer edges.  Empty if nothing fits, or only by computing much again.
    """
    bound = models[-1].bind(bindings)
    rows = bound.problem[1]
    found: list[Candidate] = []
    alone = sum(model.flops(bindings) for model in models)
    for level in levels:
        fitting: list[Candidate] = []
        for count in dict.fromkeys(min(r, rows) for r in _ROWS):
            if bound.problem[0] * -(-rows // max(count, 1)) > _MOST_TILES:
                continue
            tiles = ((count, width, 0) for width in (0, _COLUMNS))
            stagings = (Staging(models, bindings, {level.name: t}, kept=kept) for t in tiles)
            staging = next((s for s in stagings if s.fits(level)), None)
            if staging is None:
                break  # more rows never need less room
            if staging.flops(level) <= _MOST_RECOMPUTED * alone:
                tile, size = staging.tiles[level.name], staging.footprint(level)
                assert isinstance(tile, tuple)
                fitting.append(Candidate(level.name, tile, size, staging.traffic(level)))
        found += sorted(fitting, key=lambda c: (c.traffic, -c.tile[0]))[:best]
    return found


def connect(
    graph: TileGraph, value: str, consumer: Region, bindings: Mapping[str, int], levels: Levels
) -> Link:
    """The innermost level at which a region may take a value from the region that writes it.

    Raises GraphError if no region writes the value.
    """
    producer = graph.producer(value)
    if producer is None:
        raise GraphError(f"no region writes {value!r}")
    size = _bytes(graph.spec(value), bindings)
    ends = value, producer.id, consumer.id
    here = next((level.name for level in levels if size <= level.bytes / 2), OUTSIDE)
    first, last = graph.model(producer), graph.model(consumer)
    if first is None or last is None or not _hands(first, last, value):
        return Link(*ends, here)
    needed_outside = graph.is_output(value) or len(graph.readers(producer)) > 1
    kept = frozenset((value,)) if needed_outside else frozenset[str]()
    if _in_registers(first, last, value, bindings):
        return Link(*ends, REGISTERS, (1, 1, 0), 0.0 if kept else 2.0 * size)
    for level in levels:
        apart = _least((first,), bindings, level) + _least((last,), bindings, level)
        together = row_blocks((first, last), bindings, (level,), kept, best=1)
        if together and together[0].traffic < apart:
            return Link(*ends, level.name, together[0].tile, apart - together[0].traffic)
    return Link(*ends, here)


def make_plan(graph: TileGraph, bindings: Mapping[str, int], levels: Levels) -> Plan:
    """Groups, levels and memory of a graph under symbol values.

    Raises GraphError if a symbol has no value.
    """
    links = _connect_all(graph, bindings, levels)
    groups = _Schedule(graph, bindings, levels[:-1]).run(links)
    return Plan(tuple(groups), tuple(links), _memory(graph, groups, bindings))


# ---- connect ---------------------------------------------------------------------------


def _connect_all(graph: TileGraph, bindings: Mapping[str, int], levels: Levels) -> list[Link]:
    """Every value handed on; equal pairs of regions are decided once."""
    known: dict[tuple[str, str, int], Link] = {}
    links = []
    for region in graph.regions():
        for i, value in enumerate(region.operands):
            if value and (producer := graph.producer(value)) is not None:
                key = signature(graph, producer), signature(graph, region), i
                if key not in known:
                    known[key] = connect(graph, value, region, bindings, levels)
                like = known[key]
                ends = value, producer.id, region.id
                links.append(Link(*ends, like.level, like.tile, like.saved))
    return links


def _hands(first: RegionModel, last: RegionModel, value: str) -> bool:
    writes = any(a.value == value for a in first.writes)
    return writes and any(a.value == value for a in last.reads)


def _in_registers(
    first: RegionModel, last: RegionModel, value: str, bindings: Mapping[str, int]
) -> bool:
    """True if each element of the consumer needs one element of the value: nothing is summed."""
    if last.space.reductions or first.space.points(bindings) == 0:
        return False
    rows = max(m.bind(bindings).problem[1] // _MOST_TILES + 1 for m in (first, last))
    source, target = (expand(m.bind(bindings), (rows, 0, 0)) for m in (first, last))
    access = next(a for a in last.bind(bindings).reads if a.value == value)
    starts, stops = target.ranges()
    single = bool((access.touched(starts, stops) <= (stops - starts).prod(-1)).all())
    kind = dependence_kind(dependences(source, target, value), source)
    return single and kind in ("one-to-one", "none")


def _least(
    models: Sequence[RegionModel], bindings: Mapping[str, int], level: MemoryLevel
) -> float:
    """The traffic of regions at their best tile; what no tile fits moves once at least."""
    found = row_blocks(models, bindings, (level,), best=1)
    return found[0].traffic if found else Staging(models, bindings, {}).least_traffic


def _bytes(spec: TensorSpec, bindings: Mapping[str, int]) -> int:
    """Nothing is reserved for a value of unknown rank."""
    if spec.shape is None:
        return 0
    count = number(product(spec.shape), bindings)
    return int(count * (spec.dtype.size if spec.dtype else 4))


# ---- schedule --------------------------------------------------------------------------


class _Schedule:
    """Joins the ends of links, those that save most first, while the group fits a level."""

    def __init__(self, graph: TileGraph, bindings: Mapping[str, int], levels: Levels) -> None:
        self.graph, self.bindings, self.levels = graph, bindings, levels
        self._known: dict[Hashable, Group | None] = {}
        self._alone: dict[tuple[str, str], float] = {}

    def run(self, links: Sequence[Link]) -> list[Group]:
        groups = {r.id: Group((r.id,)) for r in self.graph.regions()}
        near = {REGISTERS, *(level.name for level in self.levels)}
        for link in sorted(links, key=lambda link: -link.saved):
            a, b = groups[link.producer], groups[link.consumer]
            if link.saved > 0 and link.level in near and a is not b:
                joined = self._join((*a.regions, *b.regions))
                if joined is not None:
                    groups |= dict.fromkeys(joined.regions, joined)
        place = {r.id: i for i, r in enumerate(self.graph.regions())}
        return sorted(
            {g.regions: g for g in groups.values()}.values(), key=lambda g: place[g.regions[-1]]
        )

    def _join(self, names: Sequence[str]) -> Group | None:
        """The group of these regions; None if it is not convex, or better apart."""
        graph, inside = self.graph, set(names)
        members = graph.convex(r for n in names if (r := graph.region(n)) is not None)
        if len(members) > len(names) or not _one_end(graph, members, inside):
            return None
        numbers = {v: i for i, r in enumerate(members) for v in r.writes}
        kept = frozenset(
            v for r in members for v in r.writes
            if graph.is_output(v) or any(u.region.id not in inside for u in graph.uses(v))
        )  # fmt: skip
        key = tuple(
            (signature(graph, r), tuple(numbers.get(v, -1) for v in r.reads),
             tuple(v in kept for v in r.writes))
            for r in members
        )  # fmt: skip
        if key not in self._known:
            self._known[key] = self._group(members, kept)
        like = self._known[key]
        return None if like is None else replace(like, regions=tuple(r.id for r in members))

    def _group(self, members: Sequence[Region], kept: frozenset[str]) -> Group | None:
        models = [m for r in members if (m := self.graph.model(r)) is not None]
        if len(models) < len(members):
            return None
        for level in self.levels:
            found = row_blocks(models, self.bindings, (level,), kept, best=1)
            apart = sum(self._least(r, m, level) for r, m in zip(members, models, strict=True))
            if found and found[0].traffic < apart:
                c = found[0]
                return Group((), c.level, c.tile, c.footprint, c.traffic)
        return None

    def _least(self, region: Region, model: RegionModel, level: MemoryLevel) -> float:
        key = signature(self.graph, region), level.name
        if key not in self._alone:
            self._alone[key] = _least((model,), self.bindings, level)
        return self._alone[key]


def _one_end(graph: TileGraph, members: Sequence[Region], inside: set[str]) -> bool:
    """True if every region but the last hands something on inside."""
    return all(any(r.id in inside for r in graph.readers(m)) for m in members[:-1])


# ---- memory ----------------------------------------------------------------------------


def _memory(graph: TileGraph, groups: Sequence[Group], bindings: Mapping[str, int]) -> Arena:
    """Lives of values that one group hands to another; graph outputs have memory of their own."""
    of = {name: i for i, group in enumerate(groups) for name in group.regions}
    lives = []
    for region in graph.regions():
        for value in region.writes:
            readers = [of[u.region.id] for u in graph.uses(value)]
            outside = [i for i in readers if i != of[region.id]]
            if outside and not graph.is_output(value):
                size = _bytes(graph.spec(value), bindings)
                lives.append(Life(value, size, of[region.id], max(outside)))
    return lay_out(lives)
