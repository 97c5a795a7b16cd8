"""The region graph: one node per region, graph input, output and constant; one edge per use.

A region is one or more fused operators.  After import every ONNX operator is a region of its own;
passes replace sets of regions by fused ones.  ``graph.nx`` is the same as a
``networkx.MultiDiGraph``, so everything networkx offers (ancestors, paths, drawing) works on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Protocol

from networkx import MultiDiGraph

from tracea_graph.errors import GraphError, StillReadError
from tracea_graph.ir import Node, TensorSpec, Weight
from tracea_graph.ttg.export import region_graph, to_dot, to_json, to_networkx
from tracea_graph.ttg.model import RegionModel
from tracea_graph.ttg.region import Region, Use, region_of
from tracea_graph.ttg.tiles import Shape, TileSet, expand
from tracea_graph.ttg.traffic import Staging
from tracea_graph.ttg.wiring import History, Wiring

__all__ = ["Region", "TileGraph", "Use", "Viewer"]

UNKNOWN = TensorSpec(None, None)
NO_BINDINGS: Mapping[str, int] = MappingProxyType({})


class TileGraph:
    """A model as regions over named values.

    ``specs`` holds what is known of every value; ``weights`` the constants; ``opset`` the version
    of the default operator set.  ``nx`` is the networkx view: nodes ``input:NAME``,
    ``const:NAME``, ``output:NAME`` and one per region id, edges keyed ``(value, operand)``.
    ``describe`` says what a region does; whoever knows operators sets it, until then all are
    opaque.  ``open`` gives the steps of a region of several as a graph.  ``appraise`` says what a
    region costs (``microseconds``, ``bound`` …), and ``viewer`` draws.  ``bindings`` are symbol
    values that every question assumes that is asked without.  An axis of a ``loose`` symbol may
    have a size of 1 instead, except in what is made of all the inputs of one of the sets the
    symbol has.
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
        """Raises GraphError on a cycle, a value written twice, or one nothing produces."""
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.weights, self.specs = dict(weights), dict(specs)
        self.opset, self.name = opset, name
        self.describe: Describe = _opaque
        self.open: Open = _closed
        self.appraise: Appraise = _unknown
        self.viewer: Viewer | None = None
        self.bindings: Mapping[str, int] = {}
        self.loose: Mapping[str, frozenset[frozenset[str]]] = {}
        self._entries, self._sinks = frozenset(self.inputs), frozenset(self.outputs)
        self._wiring = Wiring()
        self._wiring.add([((i, 0), region) for i, region in enumerate(regions)])
        self._view: MultiDiGraph | None = None
        self._models: dict[tuple[Describe, Region], RegionModel | None] = {}
        for value in (*self.outputs, *(v for r in self._wiring.regions.values() for v in r.reads)):
            self._source(value)
        self._wiring.order()

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
        """A graph with one region per operator."""
        regions = (region_of(node, i) for i, node in enumerate(nodes))
        return cls(regions, inputs, outputs, weights, specs, opset, name)

    def copy(self, history: History | None = None) -> TileGraph:
        """An independent graph that shares regions and weights.

        Copies with one ``history`` tell by number what became of a value: see :meth:`states`.
        """
        twin = TileGraph(
            self.regions(), self.inputs, self.outputs, self.weights, self.specs, self.opset,
            self.name,
        )  # fmt: skip
        twin.describe, twin.appraise, twin.open = self.describe, self.appraise, self.open
        twin.viewer, twin.bindings, twin.loose = self.viewer, self.bindings, self.loose
        if history is not None:
            twin.record(history)
            twin._models = self._models
        return twin

    @property
    def nx(self) -> MultiDiGraph:
        """The networkx view, made when it is asked for and kept until the graph changes."""
        if self._view is None:
            self._view = region_graph(self, self._source)
        return self._view

    # ---- questions ---------------------------------------------------------------------

    def regions(self) -> list[Region]:
        """All regions, producers before consumers, original order otherwise."""
        return list(self._wiring.order())

    def region(self, name: str) -> Region | None:
        """The region with this id, or None."""
        return self._wiring.region(name)

    def producer(self, value: str) -> Region | None:
        """The region that writes a value; None for inputs, weights and ``""``."""
        return self._wiring.writer(value)

    def uses(self, value: str) -> tuple[Use, ...]:
        """Who reads a value; a graph output is not a use, see :meth:`is_output`."""
        return tuple(self._wiring.uses(value))

    def sources(self, region: Region) -> list[Region]:
        """The regions that write what it reads, each once."""
        return list({r.id: r for r in self._wiring.sources(region)}.values())

    def readers(self, region: Region) -> list[Region]:
        """The regions that read what it writes, each once."""
        return list({r.id: r for r in self._wiring.readers(region)}.values())

    def convex(self, regions: Iterable[Region]) -> list[Region]:
        """The regions and all that lie on paths between them, producers first.

        Only such a set can run as one program: no path leaves it and comes back.
        """
        return self.in_order(self._wiring.regions[n] for n in self._wiring.between(regions))

    def joining(self, inside: Mapping[str, Region], near: Region) -> list[Region]:
        """What has to join a convex set of regions by name for ``near`` to, itself included, so
        that the set stays convex; producers first."""
        names = self._wiring.joining(inside, near)
        return self.in_order([near, *(self._wiring.regions[name] for name in names)])

    def in_order(self, regions: Iterable[Region]) -> list[Region]:
        """Some of its regions, producers before consumers."""
        rank = self._wiring.places()
        return sorted(regions, key=lambda r: rank[r.id])

    def is_output(self, value: str) -> bool:
        return value in self._sinks

    def only_use(self, value: str) -> Use | None:
        """The single use of a value that is no graph output, or None."""
        uses = self.uses(value)
        return uses[0] if len(uses) == 1 and not self.is_output(value) else None

    def spec(self, value: str) -> TensorSpec:
        """What is known of a value; never fails."""
        if value in self.weights:
            return self.weights[value].spec
        return self.specs.get(value, UNKNOWN)

    def weight(self, value: str) -> Weight | None:
        return self.weights.get(value)

    # ---- what answers depend on --------------------------------------------------------

    def record(self, history: History) -> None:
        """Number states from here on: see :meth:`states`."""
        self._wiring.record(history)

    def watched(self) -> AbstractContextManager[set[str]]:
        """What the answers that are given meanwhile depend on: while all of it is in the same
        :meth:`states` they are the same, in every copy with the same history."""
        return self._wiring.watched()

    def states(self, values: Iterable[str]) -> list[int]:
        """Of each value a number that changes with who writes and who reads it."""
        return self._wiring.states(values)

    # ---- surgery -----------------------------------------------------------------------

    def replace(
        self,
        old: Sequence[Region],
        new: Sequence[Region],
        specs: Mapping[str, TensorSpec] | None = None,
        weights: Mapping[str, Weight] | None = None,
    ) -> None:
        """Put ``new`` in the place of ``old``.

        Raises GraphError, leaving the graph unchanged, if somebody else still reads a value only
        ``old`` wrote, if ``new`` writes what others write or reads what nothing produces, or if
        the result would have a cycle.
        """
        gone = {r.id for r in old}
        self._check_values(gone, old, new, weights or {})
        news = {v for v, spec in (specs or {}).items() if self._known(v) and self.spec(v) != spec}
        self._wiring.exchange(old, new)
        if news:
            self._wiring.relearn()
            self._models = {}
        self.specs.update(specs or {})
        self.weights.update(weights or {})
        self._view = None

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
            if value in written or value in self._entries:
                continue
            if not (value in self.weights or value in weights or self._survives(value, gone)):
                raise GraphError(f"value {value!r} is read but nothing produces it")

    def _survives(self, value: str, gone: set[str]) -> bool:
        """True if a region that is not going writes the value."""
        writer = self.producer(value)
        return writer is not None and writer.id not in gone

    def prune(self) -> int:
        """Drop regions none of whose results is read; return how many went."""
        dropped, doubtful = 0, [*self._wiring.regions.values()]
        while doubtful:
            dead = [r for r in doubtful if not any(map(self._needed, r.writes))]
            sources = {s.id: s for r in dead for s in self._wiring.sources(r)}
            if dead:
                self._wiring.drop(dead)
            dropped += len(dead)
            doubtful = [r for r in sources.values() if r.id in self._wiring.regions]
        self._view = None
        return dropped

    def check(self) -> None:
        """Raise GraphError unless the graph is acyclic and every value read has a source."""
        for region in self._wiring.order():
            for value in region.reads:
                if not self._known(value):
                    raise GraphError(f"region {region.id} reads {value!r}, which nothing produces")

    # ---- loops and tiles ---------------------------------------------------------------

    def model(self, region: Region) -> RegionModel | None:
        """The loops, accesses and arithmetic of a region; None if it is opaque.

        They follow from the region and what is known of its values, and are made once.
        """
        key = self.describe, region
        if key not in self._models:
            self._models[key] = self.describe(region, self)
        return self._models[key]

    def expand(
        self,
        region: Region,
        bindings: Mapping[str, int] = NO_BINDINGS,
        tile: Shape = (0, 0, 0),
        order: str = "row-major",
    ) -> TileSet:
        """The tiles (m, n, k) of a region; a size of 0 is the whole extent.

        Raises GraphError if the region is opaque or a symbol has no binding.
        """
        return expand(self._modelled(region).bind(self._bound(bindings)), tile, order)

    def stage(
        self,
        regions: Sequence[Region],
        bindings: Mapping[str, int],
        tiles: Mapping[str, Shape | TileSet],
        order: str = "row-major",
    ) -> Staging:
        """Footprint, traffic and intensity of connected regions, producers first.

        ``tiles`` maps a memory level's name to the last region's tile there.  Values other
        regions or the outputs need are written out.  Raises GraphError if a region is opaque,
        they are not connected, or a symbol has no binding.
        """
        ids, written = {r.id for r in regions}, [v for r in regions for v in r.writes]
        outside = (v for v in written if any(u.region.id not in ids for u in self.uses(v)))
        kept = {*outside, *(v for v in written if self.is_output(v))}
        models = [self._modelled(r) for r in regions]
        return Staging(models, self._bound(bindings), tiles, order, kept)

    def _bound(self, bindings: Mapping[str, int]) -> dict[str, int]:
        """Symbol values: those given, else the graph's own."""
        return {**self.bindings, **bindings}

    def critical_path(
        self, bindings: Mapping[str, int] = NO_BINDINGS
    ) -> tuple[list[Region], float]:
        """The regions that have to run one after another and take longest, and their cost.

        Cost is what :attr:`appraise` says in microseconds, else operations (opaque regions: 0).
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
        known = self.appraise(region).get("microseconds")
        if known is not None:
            return float(known)
        model = self.model(region)
        return model.flops(bindings) if model else 0.0

    def _modelled(self, region: Region) -> RegionModel:
        if model := self.model(region):
            return model
        raise GraphError(f"region {region.id} ({region.op}) is opaque: it has no tiles")

    # ---- views -------------------------------------------------------------------------

    def show(
        self,
        name: str,
        bindings: Mapping[str, int] | None = None,
        tile: Shape = (0, 0, 0),
        order: str = "row-major",
    ) -> Any:
        """The tile map of a region, by its id or a value or original node it stands for.

        A region of several steps shows its last one; ``ID#N`` names the step that writes its value
        N.  Raises GraphError if there is no such region, it is opaque, a symbol has no binding, or
        nobody draws this graph.
        """
        return self._drawn_by().tiles(self, name, self._bound(bindings or {}), tile, order)

    def diff(self, after: TileGraph) -> Any:
        """This graph beside what became of it.  Raises GraphError if nobody draws it."""
        return self._drawn_by().diff(self, after)

    def to_networkx(self) -> MultiDiGraph:
        """A copy with plain attributes only, for networkx's own writers."""
        return to_networkx(self)

    def to_dot(self) -> str:
        """Graphviz text."""
        return to_dot(self)

    def to_json(self) -> str:
        """Node-link JSON (``networkx.node_link_graph`` reads it)."""
        return to_json(self)

    def _repr_html_(self) -> str | None:
        return self.viewer.html(self) if self.viewer else None

    def _drawn_by(self) -> Viewer:
        if self.viewer is None:
            raise GraphError("this graph has no viewer: tracea_graph.load gives it one")
        return self.viewer

    def _needed(self, value: str) -> bool:
        return self.is_output(value) or self._wiring.read(value)

    def _known(self, value: str) -> bool:
        return value in self._wiring.producer or value in self._entries or value in self.weights

    def _source(self, value: str) -> str:
        """The node of the networkx view that a value comes from."""
        if (region := self.producer(value)) is not None:
            return region.id
        if value in self._entries:
            return f"input:{value}"
        if value in self.weights:
            return f"const:{value}"
        raise GraphError(f"value {value!r} is read but nothing produces it")


class Viewer(Protocol):
    """Draws graphs; what it draws shows itself in a notebook."""

    def html(self, graph: TileGraph) -> str:
        """An HTML fragment."""
        ...

    def diff(self, before: TileGraph, after: TileGraph) -> Any:
        """Two graphs side by side."""
        ...

    def tiles(
        self, graph: TileGraph, name: str, bindings: Mapping[str, int], tile: Shape, order: str
    ) -> Any:
        """The tile map of a region; see :meth:`TileGraph.show`."""
        ...


Describe = Callable[[Region, TileGraph], RegionModel | None]


Open = Callable[[Region, "TileGraph"], "TileGraph | None"]


Appraise = Callable[[Region], Mapping[str, float | str]]


def _opaque(region: Region, graph: TileGraph) -> RegionModel | None:
    return None


def _closed(region: Region, graph: TileGraph) -> TileGraph | None:
    return None


def _unknown(region: Region) -> Mapping[str, float | str]:
    return {}
