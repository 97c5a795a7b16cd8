"""Access maps of what is read through index maps, and the models built on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracea_graph.ir import Extent, combine
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.index_map import IndexMap, Layout, Move
from tracea_graph.ops.space_parts import (
    Shape,
    access,
    aligned,
    axes_named,
    model_of,
    reshape_groups,
)
from tracea_graph.ttg.graph import Region, TileGraph
from tracea_graph.ttg.model import RegionModel, Work
from tracea_graph.ttg.space import AccessMap, Dim

__all__ = ["concat", "elementwise"]


@dataclass(frozen=True)
class _Index:
    """offset + Σ coefficient · axis"""

    terms: tuple[tuple[str, Extent], ...] = ()
    offset: Extent = 0

    def scaled(self, factor: Extent) -> _Index:
        terms = tuple((n, combine("mul", c, factor)) for n, c in self.terms)
        return _Index(terms, combine("mul", self.offset, factor))

    def plus(self, other: _Index) -> _Index:
        return _Index(self.terms + other.terms, combine("add", self.offset, other.offset))


class _NotAffine(Exception):
    """An index is no affine form of the axes."""


def elementwise(region: Region, graph: TileGraph) -> RegionModel | None:
    """A point per element of the result; operands through their maps."""
    return _model(region, graph)


def concat(region: Region, graph: TileGraph) -> RegionModel | None:
    """A point per element; every part reads as if it reached over the whole axis.

    What a part is said to read beyond its own stretch is too much, never too little.
    """
    return _model(region, graph)


def _model(region: Region, graph: TileGraph) -> RegionModel | None:
    params: ElementwiseParams | ConcatParams = region.params
    try:
        (shape,) = {s.shape for s in params.infer([graph.spec(v) for v in region.operands])}
        names, space = axes_named("d", shape or ())
        here = [_Index(((n, 1),)) for n in names]
        if params.target:
            common = params.common([graph.spec(v).shape or () for v in region.operands])
            here = _unshaped(common, shape or (), here)
        reads = _reads(graph, params, region.operands, here)
        writes = [aligned(graph, v, names) for v in region.writes]
    except (ValueError, _NotAffine):
        return None
    work = (Work(names, params.flops),)
    return model_of(region, space, reads, writes, work, names[:-1], names[-1:])


def _reads(
    graph: TileGraph,
    params: ElementwiseParams | ConcatParams,
    names: Sequence[str],
    here: Sequence[_Index],
) -> list[AccessMap | None]:
    if isinstance(params, ElementwiseParams):
        pairs = zip(names, params.views, strict=True)
        return [_seen(graph, name, index_map, here) for name, index_map in pairs]
    found: list[AccessMap | None] = []
    start: Extent = 0
    shapes = params.shapes([graph.spec(v).shape or () for v in names])
    for part, shape in zip(params.parts, shapes, strict=True):
        shifted = list(here)
        back = _Index((), combine("sub", 0, start) if start != 0 else 0)
        shifted[params.axis] = here[params.axis].plus(back)
        found += _reads(graph, part.params, [names[i] for i in part.operands], shifted)
        start = combine("add", start, shape[params.axis])
    return found


def _seen(
    graph: TileGraph, value: str, index_map: IndexMap, here: Sequence[_Index]
) -> AccessMap | None:
    """Where in a stored tensor the element of its view at ``here`` lies."""
    stages = [graph.spec(value).shape or ()]
    for move in index_map.moves:
        stages.append(IndexMap((move,)).shape(stages[-1]))
    seen = stages.pop()
    at = [
        _Index() if e == 1 else i for i, e in zip(here[len(here) - len(seen) :], seen, strict=True)
    ]
    for move, before in zip(reversed(index_map.moves), reversed(stages), strict=True):
        at = _before(move, before, at)
    return access(graph, value, [Dim(i.terms, i.offset) for i in at])


def _before(move: Move, shape: Shape, at: Sequence[_Index]) -> list[_Index]:
    """The index into a tensor of this shape, from the index into what a move makes of it."""
    ints = move.ints
    if move.op == "transpose":
        return [at[ints.index(axis)] for axis in range(len(ints))]
    if move.op == "unsqueeze":
        return [i for axis, i in enumerate(at) if axis not in ints]
    if move.op == "reshape":
        return _unshaped(shape, IndexMap((move,)).shape(shape), at)
    if move.op == "expand":
        return [_Index() if d == 1 else i for d, i in zip(shape, at, strict=True)]
    left = list(at)
    if move.op == "squeeze":
        for axis in sorted(ints):
            left.insert(axis, _Index())
        return left
    axis = ints[0]
    ones = Layout(tuple(shape), tuple(int(i == axis) for i in range(len(shape))))
    first = IndexMap((move,)).layout(ones).offset
    if move.op == "select":
        left.insert(axis, _Index((), first))
    else:
        left[axis] = left[axis].scaled(ints[3]).plus(_Index((), first))
    return left


def _unshaped(before: Shape, after: Shape, at: Sequence[_Index]) -> list[_Index]:
    """Split axes are digits of the axis they come from; a merged axis is no affine form."""
    groups = reshape_groups(before, after)
    if groups is None or any(len(old) > 1 for old, _ in groups):
        raise _NotAffine
    left = [_Index()] * len(before)
    for (axis,), new in groups:
        step: Extent = 1
        for j in reversed(new):
            left[axis] = left[axis].plus(at[j].scaled(step))
            step = combine("mul", step, after[j])
    return left
