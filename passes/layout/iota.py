"""Match values that are affine in their indices, such as positions and centres of grid cells.

Cast(Range(0, Gather(Shape(x), 2), 1)) + 0.5                    -> FusedIota(x)
Expand(Reshape(…, [-1, 1]), Concat(Shape(…), Shape(…)))         -> FusedIota over two axes
ConstantOfShape(arithmetic over Shape(x))                       -> FusedIota with steps of 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tracea_graph.ir import DType, Expr, Extent, combine
from tracea_graph.ops.elementwise import MAX_RANK
from tracea_graph.ops.index_map import resolve_target
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.size_expressions import resolve_extent, substitute_symbols
from tracea_graph.passes.convolution.symbolic_size_tensors import ShapeValues
from tracea_graph.passes.prove_extents import equal_as_polynomials, squeeze_axes
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    input_with,
    operand_producer,
    with_private_producers,
)
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Iota", "read_difference", "read_iota", "read_triangle"]

_SINCE = 11
"""Opset that introduced Range."""
_DEEPEST = 16
_WHOLE = (DType.I64, DType.I32)
_NUMBERS = (DType.F32, *_WHOLE)
_PARTS, _LARGEST = 256, 65536
"""Numbers must be multiples of 1/``_PARTS`` and at most the second constant.

float32 then holds them and all intermediate results exactly, in any order of evaluation.
"""


Source = Callable[[str, int], tuple[str, int]]
"""Returns, for a value and an axis, the value and axis to take this size from."""


@dataclass(frozen=True)
class _Affine:
    """A tensor ``start + offset + Σ steps[a] · index[a]`` with extents over :class:`ShapeValues`
    symbols."""

    sizes: tuple[Extent, ...]
    start: float
    steps: tuple[float, ...]
    offset: Extent = 0

    def scaled(self, factor: float) -> _Affine | None:
        """Return the tensor times a number; None for a sum with a size, which may change sign."""
        if factor == 1:
            return self
        if self.offset != 0:
            return None
        steps = tuple(s * factor for s in self.steps)
        return replace(self, start=self.start * factor, steps=steps)

    def multiples(self, parts: int) -> bool:
        """Return whether all numbers are multiples of 1 / ``parts`` and exact in float32."""
        numbers = (self.start, *self.steps)
        return all((n * parts).is_integer() and abs(n) < _LARGEST for n in numbers)


@dataclass
class _IotaReader:
    """Read values as affine functions of indices, and record the value and axis of each extent."""

    graph: TileGraph
    lengths: ShapeValues = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = ShapeValues(self.graph)

    def read(self, value: str, depth: int = 0) -> _Affine | None:
        spec = self.graph.spec(value)
        if spec.dtype not in _NUMBERS or spec.rank is None or depth > _DEEPEST:
            return None
        if (number := constant_number(self.graph, value)) is not None:
            return _Affine((1,) * spec.rank, float(number), (0.0,) * spec.rank)
        region = self.graph.producer(value)
        if region is None:
            return None
        if isinstance(region.params, IotaParams):
            return self._again(region)
        reader = None if region.fused else _READERS.get(region.op)
        found = reader(self, region, depth + 1) if reader else None
        parts = _PARTS if spec.dtype is DType.F32 else 1  # truncated numbers are not affine
        return found if found is not None and found.multiples(parts) else None

    def _again(self, region: Region) -> _Affine:
        """Read the parameters of a FusedIota that an earlier rewrite made."""

        def name(symbol: str) -> str:
            operand, axis = symbol.split(".")
            value = region.operands[int(operand)]
            self.lengths.dims[f"{value}.{axis}"] = (value, int(axis))
            return f"{value}.{axis}"

        p: IotaParams = region.params
        sizes = tuple(substitute_symbols(s, name) for s in p.sizes)
        return _Affine(sizes, p.start, p.steps, substitute_symbols(p.offset, name))

    def sizes(self, value: str) -> tuple[Extent, ...] | None:
        """Return the elements of a short integer vector, or None.

        Sizes that come from an earlier iota are returned as the operands of that iota.
        """
        found = self.lengths.read(value)
        if found is None:
            return None
        return tuple(substitute_symbols(size, self._origin) for size in found.reshape(-1))

    def _origin(self, symbol: str) -> Extent:
        value, axis = self.lengths.dims[symbol]
        grid = self.read(value)
        return symbol if grid is None else grid.sizes[axis]


def _range(r: _IotaReader, region: Region, _: int) -> _Affine | None:
    """Read a range from a number of positions on, of as many as are added to it."""
    number, step = (constant_number(r.graph, region.operands[i]) for i in (0, 2))
    end = r.sizes(region.operands[1])
    first = r.sizes(region.operands[0]) if number is None else (0,) if number == 0 else None
    if step != 1 or first is None or end is None or not _counts(first[0]):
        return None
    start, (stop,) = first[0], end
    if number is not None:
        return _Affine((stop,), 0.0, (1.0,)) if _counts(stop) else None
    added = [*stop.args] if isinstance(stop, Expr) and stop.op == "add" else []
    if start not in added:
        return None
    added.remove(start)
    return _Affine((added[0],), 0.0, (1.0,), start) if _counts(added[0]) else None


def _counts(extent: Extent) -> bool:
    """Return whether an extent cannot be negative."""
    if isinstance(extent, int):
        return extent >= 0
    return isinstance(extent, str) or (extent.op != "sub" and all(map(_counts, extent.args)))


def _fill(r: _IotaReader, region: Region, _: int) -> _Affine | None:
    held, sizes = attribute(region, "value", None), r.sizes(region.operands[0])
    if sizes is None:
        return None
    number = 0.0 if held is None else float(np.asarray(held).reshape(()))
    return _Affine(sizes, number, (0.0,) * len(sizes))


def _cast(r: _IotaReader, region: Region, depth: int) -> _Affine | None:
    return r.read(region.operands[0], depth)


def _arithmetic(r: _IotaReader, region: Region, depth: int) -> _Affine | None:
    """Read a sum, difference or product of an affine value and a number."""
    a, b = (r.read(v, depth) for v in region.operands)
    if a is None or b is None:
        return None
    lone = [all(s == 1 for s in g.sizes) for g in (a, b)]
    if not any(lone) or max(len(a.sizes), len(b.sizes)) > len((a if lone[1] else b).sizes):
        return None
    if (b if lone[1] else a).offset != 0:
        return None
    if region.op == "Mul":
        return a.scaled(b.start) if lone[1] else b.scaled(a.start)
    sign = -1.0 if region.op == "Sub" else 1.0
    if lone[1]:
        return replace(a, start=a.start + sign * b.start)
    signed = b.scaled(sign)
    return signed and replace(signed, start=signed.start + a.start)


def _expand(r: _IotaReader, region: Region, depth: int) -> _Affine | None:
    grid, target = r.read(region.operands[0], depth), r.sizes(region.operands[1])
    if grid is None or target is None or len(target) < len(grid.sizes):
        return None
    lead = len(target) - len(grid.sizes)
    sizes, steps = list(target), [0.0] * lead
    for axis, (size, step) in enumerate(zip(grid.sizes, grid.steps, strict=True), lead):
        if size != 1:
            if target[axis] != 1 and not equal_as_polynomials(size, target[axis]):
                return None
            sizes[axis] = size
        steps.append(0.0 if size == 1 else step)
    return _Affine(tuple(sizes), grid.start, tuple(steps))


def _reshape(r: _IotaReader, region: Region, depth: int) -> _Affine | None:
    """Read a Reshape that adds or removes axes of size 1."""
    grid, target = r.read(region.operands[0], depth), r.sizes(region.operands[1])
    if grid is None or target is None or attribute(region, "allowzero", 0):
        return None
    numbers = [t for t in target if isinstance(t, int)]
    try:
        wanted = (
            resolve_target(grid.sizes, tuple(numbers)) if len(numbers) == len(target) else target
        )
    except ValueError:
        return None
    return _with_ones(grid, wanted)


def _unsqueeze(r: _IotaReader, region: Region, depth: int) -> _Affine | None:
    grid, after = r.read(region.operands[0], depth), r.graph.spec(region.results[0]).rank
    axes = squeeze_axes(r.graph, region.results[0])
    if grid is None or axes is None or after is None:
        return None
    ones = {a % after for a in axes}
    sizes = iter(grid.sizes)
    return _with_ones(grid, [1 if i in ones else next(sizes) for i in range(after)])


def _squeeze(r: _IotaReader, region: Region, depth: int) -> _Affine | None:
    grid, axes = r.read(region.operands[0], depth), squeeze_axes(r.graph, region.results[0])
    if grid is None or axes is None:
        return None
    gone = {a % len(grid.sizes) for a in axes}
    if any(grid.sizes[a] != 1 for a in gone):
        return None
    return _with_ones(grid, [s for a, s in enumerate(grid.sizes) if a not in gone])


def _with_ones(grid: _Affine, sizes: Sequence[Extent]) -> _Affine | None:
    """Return the values with axes of size 1 inserted or removed; one number fits any shape."""
    if not any(grid.steps):
        return replace(grid, sizes=tuple(sizes), steps=(0.0,) * len(sizes))
    moving = [(d, s) for d, s in zip(grid.sizes, grid.steps, strict=True) if d != 1]
    wanted = [d for d in sizes if d != 1]
    if len(moving) != len(wanted) or not all(
        map(equal_as_polynomials, (d for d, _ in moving), wanted)
    ):
        return None
    left = iter(moving)
    return replace(
        grid, sizes=tuple(sizes), steps=tuple(0.0 if d == 1 else next(left)[1] for d in sizes)
    )


def _transpose(r: _IotaReader, region: Region, depth: int) -> _Affine | None:
    grid, perm = r.read(region.operands[0], depth), attribute(region, "perm", None)
    if grid is None:
        return None
    turned = range(len(grid.sizes))[::-1]
    order = tuple(map(int, perm)) if isinstance(perm, tuple) else tuple(turned)
    sizes, steps = tuple(grid.sizes[a] for a in order), tuple(grid.steps[a] for a in order)
    return replace(grid, sizes=sizes, steps=steps)


_READERS: Mapping[str, Callable[[_IotaReader, Region, int], _Affine | None]] = MappingProxyType(
    {
        "Range": _range,
        "ConstantOfShape": _fill,
        "Cast": _cast,
        "Identity": _cast,
        "Add": _arithmetic,
        "Sub": _arithmetic,
        "Mul": _arithmetic,
        "Expand": _expand,
        "Reshape": _reshape,
        "Unsqueeze": _unsqueeze,
        "Squeeze": _squeeze,
        "Transpose": _transpose,
    }
)


def _worth(graph: TileGraph, value: str) -> bool:
    """Return whether to convert a value: it is float32, or a fused region reads its integers.

    Such integers are, for example, positions that are looked up in a table.
    """
    spec = graph.spec(value)
    if not spec.rank or spec.rank > MAX_RANK:
        return False
    if spec.dtype is DType.F32:
        return True
    return spec.dtype in _NUMBERS and any(use.region.fused for use in graph.uses(value))


def read_iota(
    graph: TileGraph, value: str, source: Source | None = None
) -> tuple[IotaParams, list[str]] | Reason:
    """Return a value that is affine in its indices as an index ramp, and the ramp's operands.

    Returns the reason if it is none, or if all its sizes are constant.  ``source`` returns, for a
    value and an axis, the value and axis to take this size from.
    """
    spec, reader = graph.spec(value), _IotaReader(graph)
    grid = reader.read(value) if graph.opset >= _SINCE else None
    if grid is None or all(isinstance(s, int) for s in grid.sizes):
        return unsuited_reason(
            f"{value!r} is not affine in its indices, or all its sizes are constant"
        )
    return _ramp(reader, grid, value, spec.dtype or DType.F32, source)


def read_difference(
    graph: TileGraph, a: str, b: str, value: str, source: Source | None = None
) -> tuple[IotaParams, list[str], bool] | None:
    """Return the difference of two integer tensors that are affine in their indices.

    It has the shape of ``value`` and is an index ramp of int64: ``a - b``, or ``b - a`` if the
    last result is True.  Returns None if it is no such ramp.
    """
    reader, rank = _IotaReader(graph), graph.spec(value).rank
    whole_numbers = all(graph.spec(v).dtype in _WHOLE for v in (a, b))
    if graph.opset < _SINCE or rank is None or not whole_numbers:
        return None
    first, second = reader.read(a), reader.read(b)
    if first is None or second is None:
        return None
    swapped = second.offset != 0
    if swapped:
        first, second = second, first
    negative = second.scaled(-1.0)
    if negative is None:
        return None
    sizes, steps = [list[Any](), list[Any]()], list[float]()
    for own, grid in zip(sizes, (first, negative), strict=True):
        own += [1] * (rank - len(grid.sizes)) + [*grid.sizes]
    for grid in (first, negative):
        padded = [0.0] * (rank - len(grid.steps)) + [*grid.steps]
        steps = [x + y for x, y in zip(steps, padded, strict=True)] if steps else padded
    both = list[Extent]()
    for x, y in zip(*sizes, strict=True):
        if 1 not in (x, y) and x != y:
            return None
        both.append(y if x == 1 else x)
    whole = _Affine(tuple(both), first.start + negative.start, tuple(steps), first.offset)
    found = _ramp(reader, whole, value, DType.I64, source)
    return None if isinstance(found, Reason) else (*found, swapped)


def read_triangle(
    graph: TileGraph, region: Region, source: Source | None = None
) -> tuple[IotaParams, list[str], float] | None:
    """Return a Trilu of one repeated number as the index ramp j - i - k, and that number.

    The Trilu keeps the number where the ramp is not negative if it is an upper one, else where it
    is not positive.  Returns None for a Trilu of anything else.
    """
    (value,) = region.results
    maker = operand_producer(graph, region.operands[0], "ConstantOfShape")
    k = constant_number(graph, region.operands[1]) if len(region.operands) > 1 else 0
    if maker is None or k is None or graph.spec(value).dtype is not DType.F32:
        return None
    reader, held = _IotaReader(graph), attribute(maker, "value", None)
    sizes = reader.sizes(maker.operands[0])
    if sizes is None or len(sizes) < 2:
        return None
    steps = (*(0.0 for _ in sizes[2:]), -1.0, 1.0)
    found = _ramp(reader, _Affine(sizes, -float(k), steps), value, DType.I64, source)
    number = 0.0 if held is None else float(np.asarray(held).reshape(()))
    return None if isinstance(found, Reason) else (*found, number)


def _ramp(
    reader: _IotaReader, grid: _Affine, value: str, dtype: DType, source: Source | None
) -> tuple[IotaParams, list[str]] | Reason:
    """Return affine values of the shape of ``value`` as an index ramp, and its operands."""
    graph, spec, values = reader.graph, reader.graph.spec(value), list[str]()

    def numbered(read: str, axis: int) -> str:
        if read not in values:
            values.append(read)
        return f"{values.index(read)}.{axis}"

    def number(symbol: str) -> str:
        read, axis = reader.lengths.dims[symbol]
        return numbered(*(source(read, axis) if source else (read, axis)))

    def size(axis: int, extent: Extent) -> Extent:
        """Write a sum of sizes as the graph does: programs compare such sums word by word.

        An input of that size, such as a mask, says that it is the same.
        """
        wanted = (spec.shape or ())[axis] if len(spec.shape or ()) == len(grid.sizes) else 0
        if source is None or not isinstance(extent, Expr):
            return substitute_symbols(extent, number)
        if whole := input_with(graph, wanted):
            return numbered(*whole)
        made = substitute_symbols(extent, number)
        assert isinstance(made, Expr)
        turned = combine(made.op, *made.args[::-1]) if made.op == "add" else made
        shapes = [graph.spec(v).shape or () for v in values]
        return turned if resolve_extent(turned, shapes) == wanted else made

    sizes = tuple(size(axis, extent) for axis, extent in enumerate(grid.sizes))
    offset = substitute_symbols(grid.offset, number)
    params = IotaParams(len(values), sizes, grid.start, grid.steps, dtype, offset)
    known = params.infer([graph.spec(v) for v in values])[0].shape or ()
    if len(known) != spec.rank or not all(map(equal_as_polynomials, known, spec.shape or ())):
        return Reason(f"the shape of {value!r} is not proven", Code.UNKNOWN_SHAPE)
    return params, values


class Iota:
    """Convert an integer or float tensor that is affine in its indices.

    Its extents may be those of other values.
    """

    name = "iota"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op not in _READERS or graph.opset < _SINCE:
            return
        value = region.results[0]
        if not _worth(graph, value):
            why = unsuited_reason(
                "its rank is not supported, or no fused region reads its integers"
            )
            yield Miss(self.name, region.id, why)
            return
        found = read_iota(graph, value)
        if isinstance(found, Reason):
            yield Miss(self.name, region.id, found)
            return
        params, values = found
        covered = with_private_producers(graph, [region], values)
        new = fused_region(self.name, params, values, region.results, covered)
        yield Proposal(self.name, tuple(covered), (new,))
