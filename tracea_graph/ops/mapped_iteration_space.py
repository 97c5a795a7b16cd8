"""Iteration spaces of ops that read through index maps: one point per element of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tracea_graph.ir import Extent, TensorSpec, combine
from tracea_graph.ops.index_map import IndexMap, StridedLayout, ViewMove
from tracea_graph.ops.iteration_space_parts import (
    Shape,
    access_map,
    aligned_access,
    axes_named,
    region_model,
    reshape_groups,
)
from tracea_graph.ttg.iteration_space import AccessMap, DimIndex
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["AffineIndex", "MappedParams", "mapped_space"]


@dataclass(frozen=True)
class AffineIndex:
    """An affine index: offset + Σ coefficient · axis."""

    terms: tuple[tuple[str, Extent], ...] = ()
    offset: Extent = 0

    def scaled(self, factor: Extent) -> AffineIndex:
        terms = tuple((n, combine("mul", c, factor)) for n, c in self.terms)
        return AffineIndex(terms, combine("mul", self.offset, factor))

    def plus(self, other: AffineIndex) -> AffineIndex:
        return AffineIndex(self.terms + other.terms, combine("add", self.offset, other.offset))


class MappedParams(Protocol):
    """Parameters of an op whose operands are read through index maps."""

    @property
    def target(self) -> tuple[int, ...]:
        """Shape the result is reshaped to; empty for no reshape."""
        ...

    @property
    def flops(self) -> float:
        """Vector instructions per element vector."""
        ...

    def infer(self, operands: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        """Return the specs of the results."""
        ...

    def common(self, shapes: Sequence[Shape]) -> Shape:
        """Return the shape the operands broadcast to."""
        ...

    def reads(
        self, graph: TileGraph, names: Sequence[str], here: Sequence[AffineIndex]
    ) -> Iterator[tuple[str, IndexMap, Sequence[AffineIndex]]]:
        """Yield, per operand, its name, its map, and the index in its view that ``here`` reads."""
        ...


class _NotAffine(Exception):
    """Raised if an index is not an affine form of the axes."""


def mapped_space(params: MappedParams, region: Region, graph: TileGraph) -> RegionModel | None:
    """Model one point per element of the result; operands are read through their maps."""
    try:
        (shape,) = {s.shape for s in params.infer([graph.spec(v) for v in region.operands])}
        names, space = axes_named("d", shape or ())
        here = [AffineIndex(((n, 1),)) for n in names]
        if params.target:
            common = params.common([graph.spec(v).shape or () for v in region.operands])
            here = _unshaped(common, shape or (), here)
        reads = [
            _seen(graph, value, index_map, at)
            for value, index_map, at in params.reads(graph, region.operands, here)
        ]
        writes = [aligned_access(graph, v, names) for v in region.writes]
    except (ValueError, _NotAffine):
        return None
    work = (LoopWork(names, params.flops),)
    return region_model(region, space, reads, writes, work, names[:-1], names[-1:])


def _seen(
    graph: TileGraph, value: str, index_map: IndexMap, here: Sequence[AffineIndex]
) -> AccessMap | None:
    """Access map into a stored tensor of the element ``here`` of its view."""
    stages = [graph.spec(value).shape or ()]
    for move in index_map.moves:
        stages.append(IndexMap((move,)).shape(stages[-1]))
    seen = stages.pop()
    at = [
        AffineIndex() if e == 1 else i
        for i, e in zip(here[len(here) - len(seen) :], seen, strict=True)
    ]
    for move, before in zip(reversed(index_map.moves), reversed(stages), strict=True):
        at = _before(move, before, at)
    return access_map(graph, value, [DimIndex(i.terms, i.offset) for i in at])


def _before(move: ViewMove, shape: Shape, at: Sequence[AffineIndex]) -> list[AffineIndex]:
    """Map an index into a move's result to an index into its operand, of the given shape."""
    ints = move.ints
    if move.op == "transpose":
        return [at[ints.index(axis)] for axis in range(len(ints))]
    if move.op == "unsqueeze":
        return [i for axis, i in enumerate(at) if axis not in ints]
    if move.op == "reshape":
        return _unshaped(shape, IndexMap((move,)).shape(shape), at)
    if move.op == "expand":
        return [AffineIndex() if d == 1 else i for d, i in zip(shape, at, strict=True)]
    left = list(at)
    if move.op == "squeeze":
        for axis in sorted(ints):
            left.insert(axis, AffineIndex())
        return left
    axis = ints[0]
    ones = StridedLayout(tuple(shape), tuple(int(i == axis) for i in range(len(shape))))
    first = IndexMap((move,)).layout(ones).offset
    if move.op == "select":
        left.insert(axis, AffineIndex((), first))
    else:
        left[axis] = left[axis].scaled(ints[3]).plus(AffineIndex((), first))
    return left


def _unshaped(before: Shape, after: Shape, at: Sequence[AffineIndex]) -> list[AffineIndex]:
    """Invert a Reshape: split axes are digits of their source axis; merges are not affine."""
    groups = reshape_groups(before, after)
    if groups is None or any(len(old) > 1 for old, _ in groups):
        raise _NotAffine
    left = [AffineIndex()] * len(before)
    for (axis,), new in groups:
        step: Extent = 1
        for j in reversed(new):
            left[axis] = left[axis].plus(at[j].scaled(step))
            step = combine("mul", step, after[j])
    return left
