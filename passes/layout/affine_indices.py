"""Express integer and boolean tensors as functions of their own indices.

    Unsqueeze(Range(0, n, 1), 0)                     value[i, j] = j
    LessOrEqual(j + 0, i + past)                     band: true where key j ≤ query i + past
    And(LessOrEqual(…), x)                           a band and the condition x
    Where(Less(j, i + 1), 0, −∞)                     a band, as an additive mask
    constant lower triangle, cut by Slice            a band

A boolean mask becomes a conjunction of the tightest proven bound on key − query and the remaining
values.  Nothing is evaluated at concrete sizes: a condition that is not proven stays a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import DType, Extent, combine
from tracea_graph.passes.prove_extents import (
    constant_ints,
    equal_as_polynomials,
    scalar_extent,
    tail_agrees,
)
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.rewrite import constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "AffineTensor",
    "Band",
    "affine_form",
    "conjunction_factors",
    "masked_out_number",
    "masking_where",
]

_MAX_DEPTH = 16
_MAX_TRIANGLE = 1 << 24
"""Number of elements up to which a constant is compared with a triangle."""
_COMPARISONS = {
    "LessOrEqual": (1, 0),
    "Less": (1, 1),
    "GreaterOrEqual": (-1, 0),
    "Greater": (-1, 1),
}
_MOVERS = ("Expand", "Unsqueeze", "Identity", "Slice", "Reshape")
_NEGATED = {"LessOrEqual": "Greater", "Less": "GreaterOrEqual", "GreaterOrEqual": "Less",
            "Greater": "LessOrEqual"}  # fmt: skip


@dataclass(frozen=True)
class AffineTensor:
    """An integer tensor whose element at ``index`` is ``const + Σ steps[a] · index[a]``."""

    const: Extent
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Band:
    """A boolean tensor that is true where ``key ≤ query + reach``.

    ``query`` and ``key`` are the indices along its last two axes.
    """

    reach: Extent


# ---- integers ----------------------------------------------------------------------------


def affine_form(graph: TileGraph, value: str, depth: int = 0) -> AffineTensor | None:
    """Return the affine form of an integer tensor, or None if its structure proves none."""
    shape = graph.spec(value).shape
    if shape is None or depth > _MAX_DEPTH:
        return None
    if all(d == 1 for d in shape):
        number = scalar_extent(graph, value)
        return None if number is None else AffineTensor(number, (0,) * len(shape))
    if graph.weight(value) is not None:
        return _constant_line(graph, value)
    region = graph.producer(value)
    if region is None or region.fused:
        return None
    if region.op == "Range":
        start, step = (scalar_extent(graph, region.operands[i]) for i in (0, 2))
        return (
            AffineTensor(start, (step,)) if start is not None and isinstance(step, int) else None
        )
    if region.op in ("Identity", "Cast") and graph.spec(value).dtype in (DType.I64, DType.I32):
        return affine_form(graph, region.operands[0], depth + 1)
    if region.op in ("Unsqueeze", "Squeeze", "Reshape", "Expand"):
        inner = affine_form(graph, region.operands[0], depth + 1)
        return None if inner is None else _reshaped(graph, region, inner)
    if region.op in ("Add", "Sub"):
        a, b = (affine_form(graph, v, depth + 1) for v in region.operands)
        return _sum(a, b, 1 if region.op == "Add" else -1, len(shape)) if a and b else None
    return None


def _constant_line(graph: TileGraph, value: str) -> AffineTensor | None:
    """Return the affine form of a constant that counts along its last axis."""
    weight = graph.weights[value]
    if weight.dtype not in (DType.I64, DType.I32) or weight.count > _MAX_TRIANGLE:
        return None
    array = weight.array()
    if any(d != 1 for d in array.shape[:-1]):
        return None
    row = array.reshape(-1).astype(np.int64)
    step = int(row[1] - row[0])
    if not np.array_equal(row, row[0] + step * np.arange(len(row))):
        return None
    return AffineTensor(int(row[0]), (*(0,) * (array.ndim - 1), step))


def _reshaped(graph: TileGraph, region: Region, inner: AffineTensor) -> AffineTensor | None:
    """Follow a Reshape that adds, removes or moves axes of size 1."""
    before = graph.spec(region.operands[0]).shape or ()
    after = graph.spec(region.results[0]).shape or ()
    if region.op == "Expand":
        lead = len(after) - len(before)
        grown = zip(before, after[lead:], inner.steps, strict=True)
        if lead < 0 or any(d != 1 and not equal_as_polynomials(d, full) for d, full, _ in grown):
            return None
        return AffineTensor(inner.const, (*(0,) * lead, *(s if d != 1 else 0
                      for d, s in zip(before, inner.steps, strict=True))))  # fmt: skip
    moving = [(d, s) for d, s in zip(before, inner.steps, strict=True) if d != 1]
    steps = []
    for size in after:
        if size == 1:
            steps.append(0)
        elif moving and equal_as_polynomials(moving[0][0], size):
            steps.append(moving.pop(0)[1])
        else:
            return None
    return None if moving else AffineTensor(inner.const, tuple(steps))


def _sum(a: AffineTensor, b: AffineTensor, sign: int, rank: int) -> AffineTensor:
    left, right = ((0,) * (rank - len(x.steps)) + x.steps for x in (a, b))
    steps = tuple(x + sign * y for x, y in zip(left, right, strict=True))
    return AffineTensor(combine("add" if sign > 0 else "sub", a.const, b.const), steps)


# ---- booleans ----------------------------------------------------------------------------


def conjunction_factors(
    graph: TileGraph, value: str, negated: bool = False
) -> list[Band | str] | None:
    """Return boolean values and bands whose conjunction is ``value``; None if there are none.

    With ``negated``, their conjunction is the negation of ``value``.  An empty list means that it
    is true everywhere.  A float32 mask counts as true where it is 0, see :func:`masking_where`.
    """
    weight, region = graph.weight(value), graph.producer(value)
    if weight is not None:
        return _constant_mask(graph, value, negated)
    if region is None or region.fused:
        plain = negated or graph.spec(value).dtype is not DType.BOOL
        return None if plain else [value]
    parts: list[Band | str] | None = None
    if region.op == "Not":
        parts = conjunction_factors(graph, region.operands[0], not negated)
    elif region.op == "And" and not negated:
        parts = _all_of(graph, region.operands)
    elif region.op == "Or" and negated:
        parts = _all_of(graph, region.operands, negated)
    elif region.op in _COMPARISONS:
        parts = _comparison(graph, region, negated)
    elif region.op in _MOVERS:
        parts = _moved(graph, region, negated)
    elif region.op == "Cast" and graph.spec(region.operands[0]).dtype is DType.BOOL:
        parts = conjunction_factors(graph, region.operands[0], negated)
    elif region.op == "Trilu" and not negated:
        parts = _triangle(graph, region)
    elif (
        region.op == "Where"
        and not negated
        and (chosen := masking_where(graph, region)) is not None
    ):
        parts = conjunction_factors(graph, region.operands[0], chosen[1])
    if parts is None and not negated and graph.spec(value).dtype is DType.BOOL:
        return [value]
    return parts


def masking_where(graph: TileGraph, region: Region) -> tuple[float, bool] | None:
    """Return the number that ``Where(keep, 0, number)`` writes where a score is masked.

    Also returns whether it is ``Where(drop, number, 0)`` instead.  None for any other Where.
    """
    a, b = (constant_fill(graph, v) for v in region.operands[1:])
    if a is None or b is None or {a == 0.0, b == 0.0} != {True, False}:
        return None
    return (b, False) if a == 0.0 else (a, True)


def constant_fill(graph: TileGraph, value: str) -> float | None:
    """Return the number that every element of a value equals, or None."""
    if (number := constant_number(graph, value)) is not None:
        return number
    region = graph.producer(value)
    if region is None or region.fused:
        return None
    if region.op == "Expand":
        return constant_fill(graph, region.operands[0])
    if region.op == "ConstantOfShape":
        held = attribute(region, "value", None)
        return 0.0 if held is None else float(np.asarray(held).reshape(()))
    return None


def masked_out_number(graph: TileGraph, value: str) -> float | None:
    """Return the number that an additive mask has where scores are masked (elsewhere it has 0).

    None if the value is not known to be such a mask.
    """
    region = graph.producer(value)
    if region is None or region.fused:
        return None
    if region.op in _MOVERS:
        return masked_out_number(graph, region.operands[0])
    if region.op == "Trilu":
        return constant_fill(graph, region.operands[0])
    chosen = masking_where(graph, region) if region.op == "Where" else None
    return chosen[0] if chosen else None


def _triangle(graph: TileGraph, region: Region) -> list[Band | str] | None:
    """Match a constant that is 0 up to a diagonal, and another single number above it."""
    if not attribute(region, "upper", 1) or not constant_fill(graph, region.operands[0]):
        return None
    shift: Extent | None = 0
    if len(region.operands) > 1 and region.operands[1]:
        shift = scalar_extent(graph, region.operands[1])
    return None if shift is None else [Band(combine("sub", shift, 1))]


def _all_of(
    graph: TileGraph, values: tuple[str, ...], negated: bool = False
) -> list[Band | str] | None:
    parts = [conjunction_factors(graph, v, negated) for v in values]
    return None if any(p is None for p in parts) else [x for p in parts for x in p or ()]


def _comparison(graph: TileGraph, region: Region, negated: bool) -> list[Band | str] | None:
    """Match a − b compared with 0, where a − b is ± (key − query) + c."""
    a, b = (affine_form(graph, v) for v in region.operands)
    rank = graph.spec(region.results[0]).rank
    if a is None or b is None or rank is None or rank < 2:
        return None
    sign, strict = _COMPARISONS[_NEGATED[region.op] if negated else region.op]
    difference = _sum(a, b, -1, rank)
    if any(difference.steps[:-2]) or difference.steps[-2:] != (-sign, sign):
        return None
    # sign·(key − query) + c ≤ 0 (or < 0); the comparison is flipped for sign −1
    c = difference.const if sign > 0 else combine("sub", 0, difference.const)
    return [Band(combine("sub", combine("sub", 0, c), strict))]


def _moved(graph: TileGraph, region: Region, negated: bool) -> list[Band | str] | None:
    """Follow bands through operators that insert axes of size 1, repeat or slice.

    A factor that is no band must not be sliced.
    """
    source, result = region.operands[0], region.results[0]
    before, after = graph.spec(source).shape, graph.spec(result).shape
    parts = conjunction_factors(graph, source, negated)
    if parts is None or before is None or after is None:
        return None
    shift: Extent = 0
    if region.op == "Slice":
        starts = _band_starts(graph, region, len(before))
        if starts is None:
            return None
        shift = combine("sub", starts[0], starts[1])
    elif region.op == "Expand":
        if len(after) < len(before):
            return None
    elif len(before) < 2 or not tail_agrees(before, after, 2):
        return None
    if region.op != "Expand" and before != after and any(isinstance(p, str) for p in parts):
        return None
    return [Band(combine("add", p.reach, shift)) if isinstance(p, Band) else p for p in parts]


def _band_starts(graph: TileGraph, region: Region, rank: int) -> tuple[Extent, Extent] | None:
    """Return where a Slice of step 1 starts along the last two axes."""
    if len(region.operands) < 4 or not all(region.operands[1:4]):
        return None
    axes = constant_ints(graph, region.operands[3])
    step = constant_ints(graph, region.operands[4]) if len(region.operands) > 4 else (1,)
    start = scalar_extent(graph, region.operands[1])
    if axes is None or len(axes) != 1 or step != (1,) or start is None:
        return None
    if isinstance(start, int) and start < 0:
        return None
    axis = axes[0] % rank
    if axis < rank - 2:
        return 0, 0
    return (start, 0) if axis == rank - 2 else (0, start)


def _constant_mask(graph: TileGraph, value: str, negated: bool) -> list[Band | str] | None:
    """Match a constant that is true everywhere or a triangle."""
    weight = graph.weights[value]
    if weight.dtype is not DType.BOOL:
        return None
    if not 0 < weight.count <= _MAX_TRIANGLE:
        return None if negated else [value]
    array = np.asarray(weight.array()) != negated
    if array.all():
        return []
    if array.ndim >= 2 and all(d == 1 for d in array.shape[:-2]):
        plane = array.reshape(array.shape[-2:])
        reach = int(plane[0].sum()) - 1
        if np.array_equal(plane, np.tri(plane.shape[0], plane.shape[1], reach, dtype=bool)):
            return [Band(reach)]
    return None if negated else [value]
