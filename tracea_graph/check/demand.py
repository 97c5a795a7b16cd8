"""What the uses of a graph input ask of its values, found by walking from the input forwards.

A walk follows a value through operators that only move or retype elements (Cast, Reshape,
Concat …) and through Add, Sub and Mul with a constant, keeping the affine map from the input to
the value it stands at.  Where it meets an operator that is particular about that operand, the
operator's wish is carried back through the map:

    ids --Cast--> --Add 2--> Gather(table [514, H])     =>   ids in [-2, 512), so [0, 512)
    n --Unsqueeze--> Concat(b, n, 64) --> Reshape        =>   n = dim 1 of the reshaped tensor
    m --Cast--> 1 - m --> Mul -1e4                       =>   m is a mask, 1 means "attend"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.check.wishes import EXACT, FLAGS, INDEX, POSITIVE, Dims, Vector
from tracea_graph.ir import DType
from tracea_graph.ttg.graph import Region, TileGraph

__all__ = ["Demand", "demand", "integers"]

_MOVES = frozenset(
    (
        "Cast", "CastLike", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
        "Expand", "Tile", "Slice", "Split", "Concat", "Gather", "GatherElements", "GatherND",
        "Pad", "Abs", "Relu", "Dropout", "Ceil", "Floor", "Round",
    )
)  # fmt: skip
"""Operators whose results hold elements of their first operand (of any operand for Concat)."""

_NEGLIGIBLE = -1e3
"""A score lowered by this much has no weight after a softmax."""


@dataclass(frozen=True)
class Demand:
    """Wanted values: ``exact`` numbers, or integers in ``[low, high)``, or what ``kind`` names.

    Kinds: ``any``, ``mask`` (0/1 or boolean, ``attend`` is the value that keeps an element),
    ``additive`` (0 keeps, a large negative number masks), ``flag`` (free boolean), ``positive``.
    """

    kind: str = "any"
    low: int | None = None
    high: int | None = None
    exact: tuple[float, ...] | None = None
    attend: int = 1


@dataclass(frozen=True)
class _Place:
    """Where a walk stands: ``value = scale · input + offset``, element ``at`` of a vector."""

    value: str
    scale: int = 1
    offset: int = 0
    at: int = 0
    flipped: bool = False
    added: bool = False


def demand(graph: TileGraph, name: str, dims: Dims) -> Demand:
    """Everything the uses of input ``name`` ask for, as one demand."""
    count = _count(dims(name))
    found, seen, todo = Demand(), {name}, [_Place(name)]
    while todo:
        place = todo.pop()
        for use in graph.uses(place.value):
            if use.operand < 0:
                continue
            found = _merge(found, _wish(graph, use.region, use.operand, place, dims, count))
            for step in _steps(graph, use.region, use.operand, place, dims):
                if step.value not in seen:
                    seen.add(step.value)
                    todo.append(step)
    return found


# ---- wishes ----------------------------------------------------------------------------


def _wish(
    graph: TileGraph, region: Region, operand: int, place: _Place, dims: Dims, count: int
) -> Demand | None:
    key = (region.op.rpartition("::")[2], operand)
    if key in INDEX:
        limit = INDEX[key](graph, region, dims)
        return _range(0, limit, place) if limit is not None else None
    if key in EXACT:
        return _exact(EXACT[key](graph, region, dims), place, count)
    if key in POSITIVE:
        return Demand("positive", *((1, 8) if place.scale == 1 else (None, None)))
    return _mask_wish(graph, region, operand, place, dims, key)


def _mask_wish(
    graph: TileGraph,
    region: Region,
    operand: int,
    place: _Place,
    dims: Dims,
    key: tuple[str, int],
) -> Demand | None:
    if key == ("Where", 0):
        return _where_wish(graph, region, place, dims)
    if key[0] == "Mul":
        factor = integers(graph, region.operands[1 - operand])
        if factor is not None and factor.size == 1 and float(factor.flat[0]) <= _NEGLIGIBLE:
            return Demand("mask", attend=int(place.flipped))
    if key[0] == "Softmax" and place.added:
        return Demand("additive")
    if key in FLAGS:
        boolean = graph.spec(place.value).dtype is DType.BOOL
        return Demand("flag" if boolean and _count(dims(place.value)) == 1 else "mask")
    if key[0] == "Cast" and region.node.attrs.get("to") == DType.BOOL.onnx:
        return Demand("mask", attend=int(not place.flipped))
    return None


def _where_wish(graph: TileGraph, region: Region, place: _Place, dims: Dims) -> Demand:
    if _count(dims(place.value)) == 1:
        return Demand("flag")
    chosen = integers(graph, region.operands[1])
    hides = chosen is not None and chosen.size == 1 and float(chosen.flat[0]) <= _NEGLIGIBLE
    return Demand("mask", attend=int(hides == place.flipped))


def _range(low: int, high: int, place: _Place) -> Demand | None:
    if place.scale <= 0:
        return None
    first = -(-(low - place.offset) // place.scale)
    last = -(-(high - place.offset) // place.scale)
    return Demand(low=max(first, 0), high=max(last, 1))


def _exact(wanted: Vector | None, place: _Place, count: int) -> Demand | None:
    if wanted is None or place.scale == 0:
        return None
    part = (wanted * count if len(wanted) == 1 else wanted)[place.at : place.at + count]
    solved = tuple((v - place.offset) / place.scale for v in part)
    return Demand(exact=solved) if len(solved) == count else None


def _merge(a: Demand, b: Demand | None) -> Demand:
    """Both demands at once; where they contradict each other the earlier wins."""
    if b is None:
        return a
    low = max((x.low for x in (a, b) if x.low is not None), default=None)
    high = min((x.high for x in (a, b) if x.high is not None), default=None)
    inconclusive = a.kind in ("any", "flag") and b.kind != "any"
    kind, attend = (b.kind, b.attend) if inconclusive else (a.kind, a.attend)
    return Demand(kind, low, high, a.exact if a.exact is not None else b.exact, attend)


# ---- steps -----------------------------------------------------------------------------


def _steps(
    graph: TileGraph, region: Region, operand: int, place: _Place, dims: Dims
) -> Iterator[_Place]:
    """The places behind an operator that keeps the input's values recognisable."""
    op = region.op
    if op == "Concat":
        before = sum(_count(dims(v)) for v in region.operands[:operand])
        yield replace(place, value=region.results[0], at=place.at + before)
    elif op in _MOVES and operand == 0:
        for value in region.writes:
            yield replace(place, value=value)
    elif op in ("Add", "Sub", "Mul"):
        yield from _arithmetic(graph, region, operand, place)
    elif op == "Not" or (op == "Equal" and _is_zero(graph, region.operands[1 - operand])):
        yield replace(place, value=region.results[0], flipped=not place.flipped)
    elif op in ("Greater", "GreaterOrEqual", "Equal", "And", "Or"):
        yield replace(place, value=region.results[0])


def _arithmetic(graph: TileGraph, region: Region, operand: int, place: _Place) -> Iterator[_Place]:
    result, other = region.results[0], integers(graph, region.operands[1 - operand])
    if other is None or other.size != 1:
        if region.op == "Add":
            yield replace(place, value=result, added=True)
        return
    number = float(other.flat[0])
    whole = int(number) if number.is_integer() else 0
    if region.op == "Add":
        yield replace(place, value=result, offset=place.offset + whole)
    elif region.op == "Mul":
        yield replace(place, value=result, scale=place.scale * whole, offset=place.offset * whole)
    elif operand == 0:
        yield replace(place, value=result, offset=place.offset - whole)
    else:
        yield replace(
            place, value=result, scale=-place.scale, offset=whole - place.offset,
            flipped=place.flipped != (whole == 1),
        )  # fmt: skip


def _is_zero(graph: TileGraph, value: str) -> bool:
    found = integers(graph, value)
    return found is not None and found.size == 1 and float(found.flat[0]) == 0.0


def integers(graph: TileGraph, value: str) -> npt.NDArray[Any] | None:
    """The elements of a small constant, behind Constant, Cast and Identity too; else None."""
    weight, producer = graph.weight(value), graph.producer(value)
    if weight is not None:
        return weight.array() if weight.count <= 64 else None
    if producer is None:
        return None
    if producer.op in ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape"):
        return integers(graph, producer.operands[0])
    if producer.op == "Constant":
        found = next(iter(producer.node.attrs.values()), None)
        array = np.asarray(found) if isinstance(found, int | float | tuple | np.ndarray) else None
        return array if array is not None and array.size <= 64 else None
    return None


def _count(shape: Sequence[int | None] | None) -> int:
    """Elements of a shape, unknown dims counting as one."""
    return int(np.prod([1 if d is None else d for d in shape or ()], dtype=np.int64))
