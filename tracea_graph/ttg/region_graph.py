"""The region graph: a ``networkx.MultiDiGraph`` of regions, graph inputs, outputs and constants.

A region is one or more fused operators.  After import every ONNX operator is a region of its own;
passes replace sets of regions by fused ones.  An edge leads from the source of a value to each
operand that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import networkx as nx
from networkx import MultiDiGraph

from tracea_graph.errors import CycleError, GraphError, StillReadError
from tracea_graph.ir import Node, TensorSpec, Weight
from tracea_graph.ttg.cached_query_dependences import History, ValueStates
from tracea_graph.ttg.graph_export import to_dot, to_json, to_networkx
from tracea_graph.ttg.hand_set_tiles import TilePattern
from tracea_graph.ttg.loop_nest_model import RegionModel
from tracea_graph.ttg.memory_traffic import StagedRegions
from tracea_graph.ttg.region import Region, ValueUse, region_of
from tracea_graph.ttg.tile_set import Shape, TileSet, expand_tiles
from tracea_graph.ttg.topological_order import Rank, TopologicalOrder

__all__ = ["GraphRenderer", "Region", "TileGraph", "ValueUse"]

UNKNOWN = TensorSpec(None, None)
NO_BINDINGS: Mapping[str, int] = MappingProxyType({})


class TileGraph:
    """A model as regions over named values.

    ``specs`` holds what is known of every value, ``weights`` the constants, ``opset`` the version
    of the default operator set.  ``bindings`` are default values of symbols.  ``loose`` maps a
    symbol to sets of inputs: an axis of that symbol may have size 1 instead, except in values
    computed from all inputs of a set.  ``iterations`` maps a value to the loops on whose iteration
    it depends.

    The callbacks are set by the code that knows operators: ``model_of`` returns the model of a
    region (by default all are opaque), ``subgraph_of`` the steps of a program region as a graph,
    ``cost_of`` a region's cost (``microseconds``, ``bound`` …), and ``pattern_of`` the pattern of
    hand-set tiles; ``viewer`` draws.  ``patterns`` are hand-set tiles by the name of their masking
    constant, and ``source`` is the file the graph was read from.
    """

    def __init__(
        self,
        regions: Iterable[Region],
        inputs: Sequence[str],
        outputs: Sequence[str],
        weights: Mapping[str, Weight],
        specs: Mapping[str, TensorSpec],
        opset: int = 17,
        name: str = "",
    ) -> None:
        """Raise GraphError for a cycle, a value written twice, or a value nothing produces."""
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.weights, self.specs = dict(weights), dict(specs)
        self.opset, self.name = opset, name
        self.model_of: ModelOf = _opaque
        self.subgraph_of: SubgraphOf = _closed
        self.cost_of: CostOf = _unknown
        self.viewer: GraphRenderer | None = None
        self.bindings: Mapping[str, int] = {}
        self.loose: Mapping[str, frozenset[frozenset[str]]] = {}
        self.sums: Mapping[str, str] = {}
        self.iterations: Mapping[str, frozenset[str]] = {}
        self.pattern_of: PatternOf = _no_tiles
        self.patterns: Mapping[str, TilePattern] = {}
        self.source: Path | None = None
        self._sinks = frozenset(self.outputs)
        self._nx = MultiDiGraph(name=name)
        self._shown = nx.graphviews.generic_graph_view(self._nx)
        self._writers: dict[str, Region] = {}
        self._states, self._topology = ValueStates(), TopologicalOrder(self._nx)
        self._models: dict[tuple[ModelOf, Region], RegionModel | None] = {}
        self._nx.add_nodes_from((f"input:{v}", {"kind": "input", "value": v}) for v in self.inputs)
        self._add([((i, 0), region) for i, region in enumerate(regions)])
        for value in (*self.outputs, *(v for n in self._topology.rank for v in self._at(n).reads)):
            if not self._known(value):
                raise GraphError(f"value {value!r} is read but nothing produces it")
        self._topology.order()
        for value in self.outputs:
            self._nx.add_node(f"output:{value}", kind="output", value=value)
            self._link(value, f"output:{value}", 0, None)

    @classmethod
    def of_nodes(
        cls,
        nodes: Iterable[Node],
        inputs: Sequence[str],
        outputs: Sequence[str],
        weights: Mapping[str, Weight],
        specs: Mapping[str, TensorSpec],
        opset: int = 17,
        name: str = "",
    ) -> TileGraph:
        """Build a graph with one region per operator."""
        regions = (region_of(node, i) for i, node in enumerate(nodes))
        return cls(regions, inputs, outputs, weights, specs, opset, name)

    def copy(self, history: History | None = None) -> TileGraph:
        """Return an independent graph that shares regions and weights.

        Copies with one ``history`` number the states of values consistently: see :meth:`states`.
        """
        twin = TileGraph(
            self.regions(), self.inputs, self.outputs, self.weights, self.specs, self.opset,
            self.name,
        )  # fmt: skip
        twin.model_of, twin.cost_of, twin.subgraph_of = (
            self.model_of,
            self.cost_of,
            self.subgraph_of,
        )
        twin.viewer, twin.bindings, twin.loose = self.viewer, self.bindings, self.loose
        twin.sums, twin.iterations = self.sums, self.iterations
        twin.pattern_of, twin.patterns, twin.source = self.pattern_of, self.patterns, self.source
        if history is not None:
            twin.record(history)
            twin._models = self._models
        return twin

    @property
    def nx(self) -> MultiDiGraph:
        """The underlying graph, which only this class may change.

        Nodes are ``input:NAME``, ``output:NAME`` and, if anything reads them, ``const:NAME``, with
        ``kind`` and ``value``, and one per region id, with ``kind`` and ``region``.  Edges are
        keyed ``(value, operand)`` and have both as attributes; the operand of a captured value is
        -1.
        """
        self._states.ask_all()
        return self._shown

    # ---- queries -----------------------------------------------------------------------

    def regions(self) -> list[Region]:
        """Return all regions, producers before consumers, otherwise in their original order."""
        self._states.ask_all()
        return [self._at(name) for name in self._topology.order()]

    def region(self, name: str) -> Region | None:
        """Return the region with this id, or None."""
        self._states.ask_all()
        return self._at(name) if name in self._topology.rank else None

    def find(self, name: str) -> Region | None:
        """Return the region that has an id, writes a value or contains an original operator."""
        named = (r for r in self.regions() if any(n.name == name for n in r.nodes))
        return self.region(name) or self.producer(name) or next(named, None)

    def producer(self, value: str) -> Region | None:
        """Return the region that writes a value; None for inputs, weights and ``""``."""
        self._states.ask(value)
        return self._writers.get(value)

    def uses(self, value: str) -> tuple[ValueUse, ...]:
        """Return the operands that read a value, without graph outputs (:meth:`is_output`)."""
        self._states.ask(value)
        return tuple(self._uses(value))

    def _uses(self, value: str) -> Iterator[ValueUse]:
        edges = self._nx._succ.get(self._origin(value), _NO_EDGES)
        for keyed in edges.values():
            for (name, _), edge in keyed.items():
                if name == value and edge["use"] is not None:
                    yield edge["use"]

    def sources(self, region: Region) -> list[Region]:
        """Return the regions that write what a region reads, each once."""
        self._states.ask_all(region.reads)
        found = (self._writers[v] for v in region.reads if v in self._writers)
        return list({r.id: r for r in found}.values())

    def readers(self, region: Region) -> list[Region]:
        """Return the regions that read what a region writes, each once."""
        self._states.ask_all(region.writes)
        found = (use.region for v in region.writes for use in self._uses(v))
        return list({r.id: r for r in found}.values())

    def convex(self, regions: Iterable[Region]) -> list[Region]:
        """Return regions and everything on paths between them, producers first.

        Only a convex set can run as one program: no path leaves it and comes back.
        """
        self._states.ask_all()
        names = self._topology.between([r.id for r in regions])
        return [*map(self._at, self._topology.order_of_convex(names))]

    def convex_closure(self, chosen: Mapping[str, Region], near: Region) -> list[Region]:
        """Return the regions that must join a convex set together with ``near`` to keep it convex.

        ``near`` is included; producers come first.
        """
        self._states.ask_all()
        names = self._topology.convex_closure(chosen, near.id)
        return [*map(self._at, self._topology.order_of_convex({near.id, *names}))]

    def in_order(self, regions: Iterable[Region]) -> list[Region]:
        """Return the given regions, producers before consumers."""
        self._states.ask_all()
        places = self._topology.places()
        return sorted(regions, key=lambda r: places[r.id])

    def is_output(self, value: str) -> bool:
        return value in self._sinks

    def only_use(self, value: str) -> ValueUse | None:
        """Return the single use of a value that is not a graph output, or None."""
        uses = self.uses(value)
        return uses[0] if len(uses) == 1 and not self.is_output(value) else None

    def spec(self, value: str) -> TensorSpec:
        """Return what is known of a value; never fails."""
        if value in self.weights:
            return self.weights[value].spec
        return self.specs.get(value, UNKNOWN)

    def weight(self, value: str) -> Weight | None:
        return self.weights.get(value)

    # ---- dependence tracking -----------------------------------------------------------

    def record(self, history: History) -> None:
        """Number states of values from here on: see :meth:`states`."""
        self._states.record(history)

    def watched(self) -> AbstractContextManager[set[str]]:
        """Collect the values that queries in this context depend on.

        While all of them keep their :meth:`states`, the answers stay valid, in every copy with an
        equal history.
        """
        return self._states.watched()

    def states(self, values: Iterable[str]) -> list[int]:
        """Return a number per value that changes with the writer and the readers of the value."""
        return self._states.of(values)

    # ---- surgery -----------------------------------------------------------------------

    def replace(
        self,
        old: Sequence[Region],
        new: Sequence[Region],
        specs: Mapping[str, TensorSpec] | None = None,
        weights: Mapping[str, Weight] | None = None,
    ) -> None:
        """Replace the regions ``old`` by ``new``.

        Raises GraphError, leaving the graph unchanged, if another region still reads a value that
        only ``old`` wrote, if ``new`` writes what others write or reads what nothing produces, or
        if the result would have a cycle.
        """
        gone = {r.id for r in old}
        self._check_values(gone, old, new, weights or {})
        news = {v for v, spec in (specs or {}).items() if self._known(v) and self.spec(v) != spec}
        self._exchange(old, new)
        if news:
            self._states.relearn()
            self._models = {}
        self.specs.update(specs or {})
        self.weights.update(weights or {})

    def _exchange(self, old: Sequence[Region], new: Sequence[Region]) -> None:
        """Replace ``old`` by ``new``; raises CycleError, leaving the graph unchanged."""
        self._topology.update_positions()
        readers = self._remove(old)
        left = {r.id: self._topology.leave(r.id) for r in old}
        last = max((rank for rank, _ in left.values()), default=(len(self._topology.rank), 0))
        self._add([((last[0], last[1] + 1 + i), r) for i, r in enumerate(new)], readers)
        least = max((place or 0 for _, place in left.values()), default=0)
        if self._topology.place([r.id for r in new], least):
            return
        readers = self._remove(new)
        for region in new:
            self._topology.leave(region.id)
        self._add([(left[r.id][0], r) for r in old], readers)
        for name, was in left.items():
            self._topology.back(name, was)
        raise CycleError(f"fusing {sorted(left)} would make a cycle")

    def _check_values(
        self,
        gone: set[str],
        old: Sequence[Region],
        new: Sequence[Region],
        weights: Mapping[str, Weight],
    ) -> None:
        """Raise GraphError unless every value has one writer before and after a replacement."""
        written: set[str] = set()
        for value in (v for r in new for v in r.writes):
            if value in written or self._survives(value, gone):
                raise GraphError(f"value {value!r} is written twice")
            written.add(value)
        for value in (v for r in old for v in r.writes if v not in written):
            readers = [u.region.id for u in self.uses(value) if u.region.id not in gone]
            if self.is_output(value) or readers:
                raise StillReadError(value, str(readers or "the outputs"))
        for value in (v for r in new for v in r.reads):
            if value in written or self._is_input(value):
                continue
            if not (value in self.weights or value in weights or self._survives(value, gone)):
                raise GraphError(f"value {value!r} is read but nothing produces it")

    def _survives(self, value: str, gone: set[str]) -> bool:
        """Whether a remaining region writes the value."""
        writer = self.producer(value)
        return writer is not None and writer.id not in gone

    def prune(self) -> int:
        """Drop regions whose results are not read; returns how many were dropped."""
        dropped, doubtful = 0, [*map(self._at, self._topology.rank)]
        while doubtful:
            dead = [r for r in doubtful if not any(map(self._needed, r.writes))]
            sources = {s.id: s for r in dead for s in self.sources(r)}
            self._remove(dead)
            for region in dead:
                self._topology.leave(region.id)
            dropped += len(dead)
            doubtful = [r for r in sources.values() if r.id in self._topology.rank]
        return dropped

    def check(self) -> None:
        """Raise GraphError unless the graph is acyclic and every value read has a source."""
        for region in self.regions():
            for value in region.reads:
                if not self._known(value):
                    raise GraphError(f"region {region.id} reads {value!r}, which nothing produces")

    # ---- edges -------------------------------------------------------------------------

    def _add(self, ranked: Sequence[tuple[Rank, Region]], readers: Sequence[_Link] = ()) -> None:
        """Add regions, and the ``readers`` that existing regions have of their results.

        Raises GraphError if one of their values or names exists already.
        """
        for rank, region in ranked:
            if region.id in self._topology.rank:
                raise GraphError(f"two regions are called {region.id!r}")
            self._nx.add_node(region.id, kind="region", region=region)
            self._topology.enter(region.id, rank)
            self._states.change(region, came=True)
            for value in region.writes:
                if value in self._writers:
                    raise GraphError(f"value {value!r} is written twice")
                self._writers[value] = region
        for link in readers:
            self._link(*link)
        for _, region in ranked:
            for operand, value in enumerate(region.operands):
                if value:
                    self._link(value, region.id, operand, ValueUse(region, operand))
            for value in region.captures:
                self._link(value, region.id, -1, ValueUse(region, -1))

    def _link(self, value: str, reader: str, operand: int, use: ValueUse | None) -> None:
        """Add an edge from the source of a value; a value without another source is a constant."""
        origin = self._origin(value)
        if origin not in self._nx:
            self._nx.add_node(origin, kind="const", value=value)
        self._nx.add_edge(
            origin, reader, key=(value, operand), value=value, operand=operand, use=use
        )

    def _remove(self, regions: Sequence[Region]) -> list[_Link]:
        """Remove regions; return the edges from them to others, in the order they were added."""
        names = {r.id for r in regions}
        leading = [
            (value, reader, operand, edge["use"])
            for region in regions
            for reader, keyed in self._nx._succ[region.id].items()
            if reader not in names
            for (value, operand), edge in keyed.items()
        ]
        for region in regions:
            self._states.change(region, came=False)
            for value in region.writes:
                del self._writers[value]
            constants = [n for n in self._nx._pred[region.id] if n.startswith("const:")]
            self._nx.remove_node(region.id)
            self._nx.remove_nodes_from([n for n in constants if not self._nx._succ[n]])
        return leading

    # ---- loops and tiles ---------------------------------------------------------------

    def model(self, region: Region) -> RegionModel | None:
        """Return the loops, accesses and arithmetic of a region; None if it is opaque.

        Models are derived from the region and the specs of its values, and cached.
        """
        key = self.model_of, region
        if key not in self._models:
            self._models[key] = self.model_of(region, self)
        return self._models[key]

    def expand(
        self,
        region: Region,
        bindings: Mapping[str, int] = NO_BINDINGS,
        tile: Shape = (0, 0, 0),
        order: str = "row-major",
    ) -> TileSet:
        """Return the tiles (m, n, k) of a region; a size of 0 is the whole extent.

        Raises GraphError if the region is opaque or a symbol has no binding.
        """
        return expand_tiles(self._modelled(region).bind(self._bound(bindings)), tile, order)

    def set_tiles(self, region: Region | str, tiles: TileSet) -> None:
        """Compute only these tiles of a region, which may be given by a name for :meth:`find`.

        For a product with a constant matrix they are one row of tiles: ``region_n`` counts the
        columns of the matrix and k its rows; outside them it becomes zero.  For attention,
        ``region_m`` counts queries and ``region_n`` keys; other scores become −∞.  Tiles that are
        set later for the region replace these.  ``tracea_graph.optimize`` accepts the graph.
        Raises GraphError for an unknown region, one that takes no tiles, and tiles that overlap or
        do not fit.
        """
        found = self.find(region) if isinstance(region, str) else region
        if found is None or self.region(found.id) is not found:
            raise GraphError(f"this graph has no region {getattr(region, 'id', region)!r}")
        pattern = self.pattern_of(found, self, tiles)
        self.patterns = {**self.patterns, pattern.constant: pattern}

    def stage(
        self,
        regions: Sequence[Region],
        bindings: Mapping[str, int],
        tiles: Mapping[str, Shape | TileSet],
        order: str = "row-major",
    ) -> StagedRegions:
        """Return footprint, traffic and intensity of connected regions, given producers first.

        ``tiles`` maps a memory level's name to the last region's tile at that level.  Values that
        other regions or graph outputs need are written out.  Raises GraphError if a region is
        opaque, if they are not connected, or if a symbol has no binding.
        """
        ids, written = {r.id for r in regions}, [v for r in regions for v in r.writes]
        outside = (v for v in written if any(u.region.id not in ids for u in self.uses(v)))
        kept = {*outside, *(v for v in written if self.is_output(v))}
        models = [self._modelled(r) for r in regions]
        return StagedRegions(models, self._bound(bindings), tiles, order, kept)

    def _bound(self, bindings: Mapping[str, int]) -> dict[str, int]:
        """The given symbol values, or the graph's own."""
        return {**self.bindings, **bindings}

    def critical_path(
        self, bindings: Mapping[str, int] = NO_BINDINGS
    ) -> tuple[list[Region], float]:
        """Return the costliest sequence of dependent regions and its cost.

        The cost is :attr:`cost_of` in µs if that is known, else operations (0 for opaque regions).
        """
        bound = self._bound(bindings)
        best: dict[str, float] = {}
        after: dict[str, Region | None] = {}
        for region in reversed(self.regions()):
            follower = max(self.readers(region), key=lambda r: best[r.id], default=None)
            after[region.id] = follower
            best[region.id] = self._cost(region, bound) + (best[follower.id] if follower else 0.0)
        path: list[Region] = []
        at = max(self.regions(), key=lambda r: best[r.id], default=None)
        while at is not None:
            path.append(at)
            at = after[at.id]
        return path, best[path[0].id] if path else 0.0

    def _cost(self, region: Region, bindings: Mapping[str, int]) -> float:
        known = self.cost_of(region).get("microseconds")
        if known is not None:
            return float(known)
        model = self.model(region)
        return model.flops(bindings) if model else 0.0

    def _modelled(self, region: Region) -> RegionModel:
        if model := self.model(region):
            return model
        raise GraphError(f"region {region.id} ({region.op}) is opaque: it has no tiles")

    # ---- export and drawing ------------------------------------------------------------

    def show(
        self,
        name: str,
        bindings: Mapping[str, int] | None = None,
        tile: Shape = (0, 0, 0),
        order: str = "row-major",
    ) -> Any:
        """Return the tile map of a region, found as by :meth:`find`.

        A region of several steps shows its last one; ``ID#N`` names the step that writes its value
        N. Raises GraphError if there is no such region, it is opaque, a symbol has no binding, or
        the graph has no viewer.
        """
        return self._drawn_by().tiles(self, name, self._bound(bindings or {}), tile, order)

    def diff(self, after: TileGraph) -> Any:
        """Draw this graph beside a later one; raises GraphError without a viewer."""
        return self._drawn_by().diff(self, after)

    def to_networkx(self) -> MultiDiGraph:
        """Return a copy with plain attributes, for networkx's own writers."""
        return to_networkx(self._nx, self.spec)

    def to_dot(self) -> str:
        """Return Graphviz text."""
        return to_dot(self._nx, self.spec)

    def to_json(self) -> str:
        """Return node-link JSON (``networkx.node_link_graph`` reads it)."""
        return to_json(self._nx, self.spec)

    def _repr_html_(self) -> str | None:
        return self.viewer.html(self) if self.viewer else None

    def _drawn_by(self) -> GraphRenderer:
        if self.viewer is None:
            raise GraphError("this graph has no viewer: load it with tracea_graph.load")
        return self.viewer

    def _needed(self, value: str) -> bool:
        self._states.ask(value)
        return self.is_output(value) or next(self._uses(value), None) is not None

    def _known(self, value: str) -> bool:
        return value in self._writers or self._is_input(value) or value in self.weights

    def _is_input(self, value: str) -> bool:
        return f"input:{value}" in self._nx

    def _at(self, name: str) -> Region:
        """Region of a graph node."""
        region: Region = self._nx._node[name]["region"]
        return region

    def _origin(self, value: str) -> str:
        """Name of the graph node that is the source of a value."""
        if (writer := self._writers.get(value)) is not None:
            return writer.id
        return f"input:{value}" if self._is_input(value) else f"const:{value}"


class GraphRenderer(Protocol):
    """Draws graphs; drawings display themselves in notebooks."""

    def html(self, graph: TileGraph) -> str:
        """Return an HTML fragment of a graph."""
        ...

    def diff(self, before: TileGraph, after: TileGraph) -> Any:
        """Draw two graphs side by side."""
        ...

    def tiles(
        self, graph: TileGraph, name: str, bindings: Mapping[str, int], tile: Shape, order: str
    ) -> Any:
        """Draw the tile map of a region; see :meth:`TileGraph.show`."""
        ...


_Link = tuple[str, str, int, ValueUse | None]
"""An edge: value, reader, operand, and the use it stands for."""

_NO_EDGES: Mapping[str, Mapping[tuple[str, int], Mapping[str, Any]]] = {}

ModelOf = Callable[[Region, TileGraph], RegionModel | None]


SubgraphOf = Callable[[Region, "TileGraph"], "TileGraph | None"]


CostOf = Callable[[Region], Mapping[str, float | str]]


def _opaque(region: Region, graph: TileGraph) -> RegionModel | None:
    return None


def _closed(region: Region, graph: TileGraph) -> TileGraph | None:
    return None


PatternOf = Callable[[Region, TileGraph, TileSet], TilePattern]


def _no_tiles(region: Region, graph: TileGraph, tiles: TileSet) -> TilePattern:
    raise GraphError("tiles can be set only in a graph that tracea_graph.load returned")


def _unknown(region: Region) -> Mapping[str, float | str]:
    return {}
