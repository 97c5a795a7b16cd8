"""Read operators that prepare the operands of kernels as steps of a whole-model program.

Casts, masks, positions and views of integers: in a program of its own nothing of this would pay,
but between kernels each of them would take values from the device and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType

from tracea_graph.ir import DType, Extent
from tracea_graph.ops import OpParams
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.elementwise import MAX_RANK, ElementwiseParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.size_expressions import substitute_symbols
from tracea_graph.passes.convolution.symbolic_size_tensors import ShapeValues
from tracea_graph.passes.layout.iota import read_difference, read_iota, read_triangle
from tracea_graph.passes.layout.read_views import RESHAPES, read_view
from tracea_graph.passes.pointwise.compose_elementwise import ElementwiseOperation
from tracea_graph.passes.prove_extents import constant_ints, equal_as_polynomials
from tracea_graph.passes.region_helpers import attribute, same_shape, sized_alike
from tracea_graph.reason_codes import Reason
from tracea_graph.rewrite import constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Steps", "converts_halves", "gives", "preparation_steps"]

_NUMBERS = (DType.BOOL, DType.I32, DType.I64)
"""Types other than float32 that programs may hold."""
_COMPARISONS = MappingProxyType(
    {
        "Equal": ("equal", False), "Less": ("less", False), "Greater": ("less", True),
        "LessOrEqual": ("less_equal", False), "GreaterOrEqual": ("less_equal", True),
    }
)  # fmt: skip
"""Steps of comparisons, and whether their operands are swapped."""
_EXACT = 1 << 24
"""float32 holds all integers below this one exactly."""

Steps = Sequence[tuple[OpParams, tuple[str, ...], tuple[str, ...]]]
"""Parameters, operands and results of the steps."""


def preparation_steps(graph: TileGraph, region: Region) -> Steps | None:
    """Return the steps that a region becomes; None if it prepares no operand of kernels."""
    return (
        _of_any_type(graph, region)
        or _first_positions(graph, region)
        or _expanded(graph, region)
        or _compared(graph, region)
        or _compared_positions(graph, region)
        or _triangle(graph, region)
        or _counted(graph, region)
        or _half_cast(graph, region)
    )


def gives(graph: TileGraph, seen: ElementwiseOperation, value: str) -> bool:
    """Return whether the program can infer the value's shape from the operation's operands."""
    shape = graph.spec(value).shape
    try:
        (found,) = seen.params.infer([graph.spec(n) for n in seen.names])
    except ValueError:
        return False
    if shape is None or found.shape is None or len(shape) > MAX_RANK:
        return False
    return len(shape) == len(found.shape) and all(map(equal_as_polynomials, shape, found.shape))


def _first_positions(graph: TileGraph, region: Region) -> Steps | None:
    """Steps that slice the leading positions of a constant table to the length of a value's
    axis."""
    if region.fused or region.op != "Slice" or len(region.operands) != 5:
        return None
    x, source, sizes = region.operands[0], graph.producer(region.operands[0]), ShapeValues(graph)
    shape, dtype = graph.spec(x).shape, graph.spec(x).dtype
    table = graph.weight(x) is not None or (source and _first_positions(graph, source))
    numbers = [sizes.read(v) for v in region.operands[1:]]
    if not table or shape is None or any(n is None or n.shape != (1,) for n in numbers):
        return None
    start, end, axis, step = (n[0] for n in numbers if n is not None)
    if (start, step) != (0, 1) or not isinstance(end, str) or dtype not in _NUMBERS:
        return None
    like, place = sized_alike(graph, *sizes.dims[end])
    params = LayoutParams("first", (int(str(axis)) % len(shape),), 2, (f"1.{place}",))
    return ((params, (x, like), region.results),)


def _expanded(graph: TileGraph, region: Region) -> Steps | None:
    """Steps that expand a value to a shape that consists of dimensions of other values."""
    if region.fused or region.op != "Expand":
        return None
    (x, target), made = region.operands, graph.spec(region.results[0]).shape
    shape, dtype = graph.spec(x).shape, graph.spec(x).dtype
    lengths = ShapeValues(graph, choices=True)
    wanted = lengths.read(target)
    if wanted is None or shape is None or made is None or len(made) > MAX_RANK:
        return None
    if dtype not in (*_NUMBERS, DType.F32) or wanted.size > len(made):
        return None
    likes = list[str]()

    def named(symbol: str) -> str:
        value, axis = sized_alike(graph, *lengths.dims[symbol])
        if value not in likes:
            likes.append(value)
        return f"{1 + likes.index(value)}.{axis}"

    sizes = list[Extent]()
    for axis, size in enumerate((*(1,) * (len(made) - wanted.size), *wanted)):
        own = axis - len(made) + len(shape)
        if own >= 0 and shape[own] != 1:
            if not equal_as_polynomials(shape[own], made[axis]):
                return None
            sizes.append(f"0.{own}")
        else:
            sizes.append(substitute_symbols(size, named))
    if not all(graph.spec(v).dtype and graph.spec(v).rank is not None for v in likes):
        return None
    params = LayoutParams("expand", (), 1 + len(likes), tuple(sizes))
    return ((params, (x, *likes), region.results),)


def _counted(graph: TileGraph, region: Region) -> Steps | None:
    """Steps that write integers that are affine in their indices, such as positions."""
    (value, *others), dtype = region.results, graph.spec(region.results[0]).dtype
    if region.fused or others or dtype not in (DType.I32, DType.I64):
        return None
    found = read_iota(graph, value, partial(sized_alike, graph))
    if isinstance(found, Reason) or len(found[0].sizes) > MAX_RANK:
        return None
    return ((found[0], tuple(found[1]), (value,)),)


def _half_cast(graph: TileGraph, region: Region) -> Steps | None:
    """Steps that convert between fp16 and float32, as at the edges of fp16 models."""
    if region.fused or region.op != "Cast" or graph.weight(region.operands[0]) is not None:
        return None
    source, result = graph.spec(region.operands[0]), graph.spec(region.results[0])
    if source.dtype is None or result.dtype is None or not same_shape(source, result):
        return None
    if {source.dtype, result.dtype} != {DType.F32, DType.F16} or (source.rank or 0) > MAX_RANK:
        return None
    params = ElementwiseParams(Chain((FULL,), (), (0,), (source.dtype,), (result.dtype,)))
    return ((params, region.operands, region.results),)


def _compared(graph: TileGraph, region: Region) -> Steps | None:
    """Steps that compare integers with a number.

    Kernels compare in float32, which holds the number exactly.  Converting the integers to float32
    keeps their order relative to the number.
    """
    step, turned = _COMPARISONS.get(region.op, ("", False))
    if region.fused or not step or len(region.operands) != 2:
        return None
    for side, x in enumerate(region.operands):
        number, dtype = constant_number(graph, region.operands[1 - side]), graph.spec(x).dtype
        if number is None or graph.weight(x) or dtype not in (DType.I32, DType.I64):
            continue
        if abs(number) >= _EXACT or graph.spec(x).shape != graph.spec(region.results[0]).shape:
            continue
        args = (0, float(number)) if bool(side) == turned else (float(number), 0)
        params = ElementwiseParams(Chain((FULL,), (Step(step, args),), (1,), (dtype,)))
        return ((params, (x,), region.results),)
    return None


def _compared_positions(graph: TileGraph, region: Region) -> Steps | None:
    """Steps that compare positions along axes, as masks of causal attention do.

    Their difference, whose sign float32 keeps, is compared with 0.
    """
    step, turned = _COMPARISONS.get(region.op, ("", False))
    if region.fused or not step or len(region.operands) != 2:
        return None
    (value,), (a, b) = region.results, region.operands[:: -1 if turned else 1]
    found = read_difference(graph, a, b, value, partial(sized_alike, graph))
    if found is None or len(found[0].sizes) > MAX_RANK:
        return None
    ramp, sources, swapped = found
    args = (0.0, 0) if swapped else (0, 0.0)
    chain = Chain((FULL,), (Step(step, args),), (1,), (ramp.dtype,))
    return _after_ramp(ramp, sources, chain, value)


def _triangle(graph: TileGraph, region: Region) -> Steps | None:
    """Steps that write a number above or below a diagonal, and zeros elsewhere."""
    if region.fused or region.op != "Trilu":
        return None
    found = read_triangle(graph, region, partial(sized_alike, graph))
    if found is None or len(found[0].sizes) > MAX_RANK:
        return None
    ramp, sources, number = found
    args = (0.0, 0) if attribute(region, "upper", 1) else (0, 0.0)
    steps = (Step("less_equal", args), Step("where", (1, number, 0.0)))
    return _after_ramp(
        ramp, sources, Chain((FULL,), steps, (2,), (ramp.dtype,)), region.results[0]
    )


def _after_ramp(ramp: IotaParams, sources: Sequence[str], chain: Chain, value: str) -> Steps:
    """Return the steps of an index ramp and of an elementwise expression of it."""
    between = f"{value} positions"
    return (
        (ramp, tuple(sources), (between,)),
        (ElementwiseParams(chain), (between,), (value,)),
    )


def _of_any_type(graph: TileGraph, region: Region) -> Steps | None:
    """Steps of a view of integers or booleans (indices and masks)."""
    if region.fused or region.op not in (*RESHAPES, "Transpose", "Tile"):
        return None
    (value,), source = region.results, region.operands[0]
    repeated = region.op == "Tile"
    dtype = graph.spec(source).dtype
    view = _repeated(graph, region) if repeated else read_view(graph, region, value)
    if view is None or dtype not in _NUMBERS or graph.weight(source):
        return None
    chain = Chain((FULL,), (), (0,), (dtype,), (dtype,))
    seen = ElementwiseOperation(ElementwiseParams(chain, (view,)), (source,))
    return ((seen.params, seen.names, (value,)),) if gives(graph, seen, value) else None


def _repeated(graph: TileGraph, region: Region) -> IndexMap | None:
    """Return the view of a value whose axes of size 1 a Tile repeats."""
    counts, shape = constant_ints(graph, region.operands[1]), graph.spec(region.operands[0]).shape
    if counts is None or shape is None or len(counts) != len(shape):
        return None
    if any(d != 1 and n != 1 for d, n in zip(shape, counts, strict=True)):
        return None
    return IndexMap((ViewMove("expand", counts),))


def converts_halves(graph: TileGraph, region: Region) -> bool:
    """Return whether a region converts between fp16 and float32."""
    return _half_cast(graph, region) is not None
