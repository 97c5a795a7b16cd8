"""Match values that are affine in their indices, such as positions and centres of grid cells.

Cast(Range(0, Gather(Shape(x), 2), 1)) + 0.5                    -> FusedIota(x)
Expand(Reshape(…, [-1, 1]), Concat(Shape(…), Shape(…)))         -> FusedIota over two axes
ConstantOfShape(arithmetic over Shape(x))                       -> FusedIota with steps of 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from tracea_graph.ir import DType, Extent
from tracea_graph.ops.elementwise import MAX_RANK
from tracea_graph.ops.index_map import resolve_target
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.size_expressions import substitute_symbols
from tracea_graph.passes.convolution.symbolic_size_tensors import ShapeValues
from tracea_graph.passes.prove_extents import equal_as_polynomials, squeeze_axes
from tracea_graph.passes.region_helpers import attribute, fused_region, with_private_producers
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Iota", "read_iota"]

_SINCE = 11
"""Opset that introduced Range."""
_DEEPEST = 16
_NUMBERS = (DType.F32, DType.I64, DType.I32)
_PARTS, _LARGEST = 256, 65536
"""Numbers must be multiples of 1/``_PARTS`` and at most the second constant.

float32 then holds them and all intermediate results exactly, in any order of evaluation.
"""


@dataclass(frozen=True)
class _Affine:
    """A tensor ``start + Σ steps[a] · index[a]`` with extents over :class:`ShapeValues`
    symbols."""

    sizes: tuple[Extent, ...]
    start: float
    steps: tuple[float, ...]

    def scaled(self, factor: float) -> _Affine:
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
        return _Affine(tuple(substitute_symbols(s, name) for s in p.sizes), p.start, p.steps)

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
    start, step = (constant_number(r.graph, region.operands[i]) for i in (0, 2))
    count = r.sizes(region.operands[1])
    if start != 0 or step != 1 or count is None or not _counts(count[0]):
        return None
    return _Affine(count, 0.0, (1.0,))


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
    if region.op == "Mul":
        return a.scaled(b.start) if lone[1] else b.scaled(a.start)
    sign = -1.0 if region.op == "Sub" else 1.0
    if lone[1]:
        return replace(a, start=a.start + sign * b.start)
    b = b.scaled(sign)
    return replace(b, start=b.start + a.start)


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
    graph: TileGraph, value: str, source: Callable[[str, int], tuple[str, int]] | None = None
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
    values = list[str]()

    def number(symbol: str) -> str:
        read, axis = reader.lengths.dims[symbol]
        if source is not None:
            read, axis = source(read, axis)
        if read not in values:
            values.append(read)
        return f"{values.index(read)}.{axis}"

    sizes = tuple(substitute_symbols(s, number) for s in grid.sizes)
    dtype = spec.dtype or DType.F32
    params = IotaParams(len(values), sizes, grid.start, grid.steps, dtype)
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
