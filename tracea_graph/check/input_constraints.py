"""Derive constraints on a graph input's values from its uses, tracing the input forwards.

The trace follows a value through operators that only move or convert elements (Cast, Reshape,
Concat …) and through Add, Sub and Mul with a constant, and keeps the affine map from the input to
the current value.  At an operator that constrains that operand, the constraint is mapped back to
the input:

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

from tracea_graph.check.operand_constraints import (
    ADJUSTABLE,
    EXACT,
    FLAGS,
    INDEX,
    POSITIVE,
    Dims,
    Vector,
)
from tracea_graph.ir import DType
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["InputConstraint", "input_constraint", "small_constant_integers"]

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
class InputConstraint:
    """Allowed values: ``exact`` numbers, integers in ``[low, high)``, or a ``kind``.

    ``adjustable`` numbers may be replaced by others in the range, if other uses need that.  A
    ``guessed`` kind gives way to one that is known.

    Kinds: ``any``, ``mask`` (0/1 or boolean; ``attend`` is the value that keeps an element),
    ``additive`` (0 keeps, a large negative number masks), ``flag`` (free boolean), ``positive``.
    """

    kind: str = "any"
    low: int | None = None
    high: int | None = None
    exact: tuple[float, ...] | None = None
    attend: int = 1
    adjustable: bool = False
    guessed: bool = False


@dataclass(frozen=True)
class _TracedValue:
    """A traced value: ``value = scale · input + offset``, element ``at`` of a vector."""

    value: str
    scale: int = 1
    offset: int = 0
    at: int = 0
    flipped: bool = False
    added: bool = False


def input_constraint(graph: TileGraph, name: str, dims: Dims) -> InputConstraint:
    """Merge the constraints that all uses put on input ``name``."""
    count = _count(dims(name))
    found, seen, todo = InputConstraint(), {name}, [_TracedValue(name)]
    while todo:
        traced = todo.pop()
        for use in graph.uses(traced.value):
            if use.operand < 0:
                continue
            found = _merge(
                found, _constraint_at(graph, use.region, use.operand, traced, dims, count)
            )
            for step in _steps(graph, use.region, use.operand, traced, dims):
                if step.value not in seen:
                    seen.add(step.value)
                    todo.append(step)
    return found


# ---- constraints -----------------------------------------------------------------------


def _constraint_at(
    graph: TileGraph, region: Region, operand: int, traced: _TracedValue, dims: Dims, count: int
) -> InputConstraint | None:
    key = (region.op.rpartition("::")[2], operand)
    if key in INDEX:
        limit = INDEX[key](graph, region, dims)
        return _range(0, limit, traced) if limit is not None else None
    if key in EXACT:
        exact = _exact(EXACT[key](graph, region, dims), traced, count)
        if exact is None or key not in ADJUSTABLE:
            return exact
        limits = _range(*ADJUSTABLE[key](graph, region, dims), traced)
        return _merge(replace(exact, adjustable=True), limits)
    if key in POSITIVE:
        return InputConstraint("positive", *((1, 8) if traced.scale == 1 else (None, None)))
    return _mask_constraint(graph, region, operand, traced, dims, key)


def _mask_constraint(
    graph: TileGraph,
    region: Region,
    operand: int,
    traced: _TracedValue,
    dims: Dims,
    key: tuple[str, int],
) -> InputConstraint | None:
    if key == ("Where", 0):
        return _where_constraint(graph, region, traced, dims)
    if key[0] == "Mul":
        factor = small_constant_integers(graph, region.operands[1 - operand])
        if factor is not None and factor.size == 1 and float(factor.flat[0]) <= _NEGLIGIBLE:
            return InputConstraint("mask", attend=int(traced.flipped))
    if key[0] == "Softmax" and traced.added:
        return InputConstraint("additive")
    if key in FLAGS:
        boolean = graph.spec(traced.value).dtype is DType.BOOL
        alone = boolean and _count(dims(traced.value)) == 1
        attend = int(not (traced.flipped and key[0] == "And"))  # what is kept meets what is kept
        return InputConstraint("flag" if alone else "mask", attend=attend, guessed=True)
    if key[0] == "Cast" and region.node.attrs.get("to") == DType.BOOL.onnx:
        return InputConstraint("mask", attend=int(not traced.flipped))
    return None


def _where_constraint(
    graph: TileGraph, region: Region, traced: _TracedValue, dims: Dims
) -> InputConstraint:
    if _count(dims(traced.value)) == 1:
        return InputConstraint("flag")
    chosen = small_constant_integers(graph, region.operands[1])
    hides = chosen is not None and chosen.size == 1 and float(chosen.flat[0]) <= _NEGLIGIBLE
    return InputConstraint("mask", attend=int(hides == traced.flipped))


def _range(low: int | None, high: int | None, traced: _TracedValue) -> InputConstraint | None:
    if traced.scale <= 0:
        return None
    first, last = (
        None if limit is None else -(-(limit - traced.offset) // traced.scale)
        for limit in (low, high)
    )
    return InputConstraint(
        low=None if first is None else max(first, 0), high=None if last is None else max(last, 1)
    )


def _exact(wanted: Vector | None, traced: _TracedValue, count: int) -> InputConstraint | None:
    if wanted is None or traced.scale == 0:
        return None
    part = (wanted * count if len(wanted) == 1 else wanted)[traced.at : traced.at + count]
    solved = tuple((v - traced.offset) / traced.scale for v in part)
    return InputConstraint(exact=solved) if len(solved) == count else None


def _merge(a: InputConstraint, b: InputConstraint | None) -> InputConstraint:
    """Merge two constraints; where they contradict each other, the first wins.

    Numbers that must be exact win over adjustable ones, which are moved into the common range.
    """
    if b is None:
        return a
    low = max((x.low for x in (a, b) if x.low is not None), default=None)
    high = min((x.high for x in (a, b) if x.high is not None), default=None)
    chosen = b if (a.guessed or a.kind in ("any", "flag")) and b.kind != "any" else a
    exacts = sorted((x for x in (a, b) if x.exact is not None), key=lambda x: x.adjustable)
    exact, adjustable = (exacts[0].exact, exacts[0].adjustable) if exacts else (None, False)
    if exact is not None and adjustable:
        exact = tuple(_within(number, low, high) for number in exact)
    return InputConstraint(
        chosen.kind, low, high, exact, chosen.attend, adjustable, chosen.guessed
    )


def _within(number: float, low: int | None, high: int | None) -> float:
    below = number if high is None else min(number, high - 1)
    return below if low is None else max(below, low)


# ---- steps -----------------------------------------------------------------------------


def _steps(
    graph: TileGraph, region: Region, operand: int, traced: _TracedValue, dims: Dims
) -> Iterator[_TracedValue]:
    """Yield the results of an operator that keeps the input's values traceable."""
    op = region.op
    if op == "Concat":
        before = sum(_count(dims(v)) for v in region.operands[:operand])
        yield replace(traced, value=region.results[0], at=traced.at + before)
    elif op in _MOVES and operand == 0:
        for value in region.writes:
            yield replace(traced, value=value)
    elif op in ("Add", "Sub", "Mul"):
        yield from _arithmetic(graph, region, operand, traced)
    elif op == "Not" or (op == "Equal" and _is_zero(graph, region.operands[1 - operand])):
        yield replace(traced, value=region.results[0], flipped=not traced.flipped)
    elif op in ("Greater", "GreaterOrEqual", "Equal", "And", "Or"):
        yield replace(traced, value=region.results[0])


def _arithmetic(
    graph: TileGraph, region: Region, operand: int, traced: _TracedValue
) -> Iterator[_TracedValue]:
    result, other = region.results[0], small_constant_integers(graph, region.operands[1 - operand])
    if other is None or other.size != 1:
        if region.op == "Add":
            yield replace(traced, value=result, added=True)
        return
    number = float(other.flat[0])
    whole = int(number) if number.is_integer() else 0
    if region.op == "Add":
        yield replace(traced, value=result, offset=traced.offset + whole)
    elif region.op == "Mul":
        yield replace(
            traced, value=result, scale=traced.scale * whole, offset=traced.offset * whole
        )
    elif operand == 0:
        yield replace(traced, value=result, offset=traced.offset - whole)
    else:
        yield replace(
            traced, value=result, scale=-traced.scale, offset=whole - traced.offset,
            flipped=traced.flipped != (whole == 1),
        )  # fmt: skip


def _is_zero(graph: TileGraph, value: str) -> bool:
    found = small_constant_integers(graph, value)
    return found is not None and found.size == 1 and float(found.flat[0]) == 0.0


def small_constant_integers(graph: TileGraph, value: str) -> npt.NDArray[Any] | None:
    """Return the elements of a small constant, or None if the value is none.

    The constant may be followed by Cast, Identity, and operators that only change the shape.
    """
    weight, producer = graph.weight(value), graph.producer(value)
    if weight is not None:
        return weight.array() if weight.count <= 64 else None
    if producer is None:
        return None
    if producer.op in ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape"):
        return small_constant_integers(graph, producer.operands[0])
    if producer.op == "Constant":
        found = next(iter(producer.node.attrs.values()), None)
        array = np.asarray(found) if isinstance(found, int | float | tuple | np.ndarray) else None
        return array if array is not None and array.size <= 64 else None
    return None


def _count(shape: Sequence[int | None] | None) -> int:
    """Return the number of elements of a shape, unknown dims counting as one."""
    return int(np.prod([1 if d is None else d for d in shape or ()], dtype=np.int64))
