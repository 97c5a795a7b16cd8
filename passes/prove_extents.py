"""Prove extents equal, and read the extents that integer scalars of a graph hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tracea_graph.ir import Extent, combine
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.ttg import TileGraph

__all__ = [
    "constant_ints",
    "equal_as_polynomials",
    "reshape_target",
    "scalar_extent",
    "squeeze_axes",
    "tail_agrees",
]

_MAX_DEPTH = 12
_ARITHMETIC = {"Add": "add", "Sub": "sub", "Mul": "mul"}
Polynomial = Counter[tuple[str, ...]]


def equal_as_polynomials(a: Extent, b: Extent) -> bool:
    """Return whether two extents are equal as polynomials, such as past + seq and seq + past."""
    return a == b or _polynomial(a) == _polynomial(b)


def _polynomial(extent: Extent) -> Polynomial:
    """Return the coefficients of an extent's monomials (sorted factors).

    A subexpression with another operator than + − · counts as a factor.
    """
    if isinstance(extent, int):
        return _trimmed(Counter({(): extent}))
    if isinstance(extent, str) or extent.op not in _ARITHMETIC.values():
        return Counter({(str(extent),): 1})
    a, b = map(_polynomial, extent.args)
    result: Polynomial = Counter(a)
    if extent.op == "mul":
        result = Counter()
        for x, n in a.items():
            for y, m in b.items():
                result[tuple(sorted((*x, *y)))] += n * m
        return _trimmed(result)
    for y, m in b.items():
        result[y] += m if extent.op == "add" else -m
    return _trimmed(result)


def _trimmed(p: Polynomial) -> Polynomial:
    return Counter({k: n for k, n in p.items() if n})


def tail_agrees(a: tuple[Extent, ...], b: tuple[Extent, ...], count: int) -> bool:
    """Return whether the last ``count`` extents of ``a`` and ``b`` are proven pairwise equal."""
    return len(a) >= count <= len(b) and all(
        equal_as_polynomials(x, y) for x, y in zip(a[-count:], b[-count:], strict=True)
    )


def constant_ints(graph: TileGraph, value: str) -> tuple[int, ...] | None:
    """Return the elements of a small integer constant, flattened, or None."""
    weight = graph.weight(value)
    if weight is None or weight.count > 64 or not np.issubdtype(weight.array().dtype, np.integer):
        return None
    return tuple(int(v) for v in weight.array().reshape(-1))


def squeeze_axes(graph: TileGraph, value: str) -> tuple[int, ...] | None:
    """Return the axes of the Unsqueeze or Squeeze that writes a value, from attribute or
    operand."""
    region = graph.producer(value)
    if region is None:
        return None
    axes = attribute(region, "axes", None)
    if isinstance(axes, tuple):
        return tuple(int(a) for a in axes)
    return constant_ints(graph, region.operands[1]) if len(region.operands) > 1 else None


def scalar_extent(graph: TileGraph, value: str, depth: int = 0) -> Extent | None:
    """Return the extent that a one-element integer holds, or None.

    For example, Gather(Shape(x), 1) holds x's second extent.
    """
    if (known := constant_ints(graph, value)) is not None:
        return known[0] if len(known) == 1 else None
    region = graph.producer(value)
    if region is None or depth > _MAX_DEPTH or graph.spec(value).shape not in ((), (1,)):
        return None
    if region.op in _ARITHMETIC:
        a, b = (scalar_extent(graph, v, depth + 1) for v in region.operands)
        return None if a is None or b is None else combine(_ARITHMETIC[region.op], a, b)
    if region.op in ("Squeeze", "Unsqueeze", "Reshape", "Identity", "Cast"):
        return scalar_extent(graph, region.operands[0], depth + 1)
    if region.op == "Gather":
        index = constant_ints(graph, region.operands[1])
        sizes = _sizes(graph, region.operands[0])
        return sizes[index[0]] if index and sizes and index[0] < len(sizes) else None
    if region.op == "Shape":
        sizes = _sizes(graph, value)
        return sizes[0] if sizes and len(sizes) == 1 else None
    return None


def _sizes(graph: TileGraph, value: str) -> tuple[Extent, ...] | None:
    """Return the extents that a Shape operator returns as ``value``, or None."""
    region = graph.producer(value)
    if region is None or region.op != "Shape":
        return None
    shape = graph.spec(region.operands[0]).shape
    if shape is None:
        return None
    start, end = attribute(region, "start", 0), attribute(region, "end", len(shape))
    return shape[start:end] if isinstance(start, int) and isinstance(end, int) else None


def reshape_target(before: Sequence[Extent], after: Sequence[Extent]) -> tuple[int, ...] | None:
    """Return the second operand of a Reshape from shape ``before`` to shape ``after``.

    Its elements are numbers, 0 (copy the dimension) and at most one -1 (inferred).  None if this
    cannot express the shape.
    """
    target = tuple(
        d if isinstance(d, int) else 0 if list(before[i : i + 1]) == [d] else -1
        for i, d in enumerate(after)
    )
    return None if target.count(-1) > 1 or 0 in after else target
