"""Read an elementwise ONNX operator, in any of its forms, as a chain.

Add, Mul, Exp, Floor, HardSwish …                -> the step of that name
LeakyRelu, Elu, Selu, HardSigmoid, Clip …        -> the step with its attributes as literals
Sum, Mean, Max, Min of n values                  -> n − 1 binary steps
Greater(a, b), Pow(x, 2)                         -> less(b, a), mul(x, x)
Cast, QuantizeLinear, DequantizeLinear           -> the operand's or result's type, and steps
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.chain import ELEMENTARY, FLOATS8, FULL, INTEGERS, Chain, Ref, Step
from tracea_graph.ops.elementwise import MAX_RANK, ElementwiseParams, broadcast
from tracea_graph.ops.elementwise_steps import OPERATORS
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes.pointwise.bound_expressions import BoundChain, matrix_broadcast_kind
from tracea_graph.passes.quantized.scale_checks import are_zero, is_ordinary
from tracea_graph.passes.quantized.scaled_rows import scale_each_row
from tracea_graph.passes.region_helpers import attribute, operand_producer
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["fuse_into_producer", "read_chain"]

_SWAPPED: Mapping[str, str] = MappingProxyType({"Greater": "less", "GreaterOrEqual": "less_equal"})

_REPEATED: Mapping[str, str] = MappingProxyType(
    {"Sum": "add", "Mean": "add", "Max": "max", "Min": "min"}
)

_LARGEST = 3.4028234663852886e38
_LETTER = {DType.F32: "f", DType.BOOL: "b"}

Maker = Callable[[Sequence[Ref], int], Sequence[Step]]
"""Function from argument references and the operand count to steps; the last is the result."""


def fuse_into_producer(
    graph: TileGraph,
    region: Region,
    producer_of: Callable[[TileGraph, str], Region | None],
    fuse: Callable[[TileGraph, Region, BoundChain, str, Region], Proposal | Miss],
) -> Iterator[Proposal | Miss]:
    """Try to fuse an elementwise region into the producer of each of its operands in turn.

    Yields the results of ``fuse(graph, region, chain, operand, producer)``, and stops after the
    first proposal.
    """
    bound_chain = read_chain(graph, region)
    if bound_chain is None or len(region.results) != 1:
        return
    for value in dict.fromkeys(bound_chain[1]):
        producer = producer_of(graph, value)
        if producer is None:
            continue
        item = fuse(graph, region, bound_chain, value, producer)
        yield item
        if isinstance(item, Proposal):
            return


def read_chain(graph: TileGraph, region: Region) -> BoundChain | None:
    """Return the chain that an elementwise region computes, or None if it is not elementwise.

    Values are float32 or bool; integers occur only as operands and results, converted by Cast,
    QuantizeLinear or DequantizeLinear.
    """
    if isinstance(region.params, ElementwiseParams):
        plain = not (region.params.maps or region.params.target)
        return (region.params.chain, region.operands) if plain else None
    if region.fused or not region.operands:
        return None
    if (step := OPERATORS.get(region.op)) is not None:
        literals = [
            float(attribute(region, *given))  # type: ignore[arg-type]
            for given in ELEMENTARY[step].defaults
        ]
        return _one_step(graph, region, step, region.operands, *literals)
    if (step := _SWAPPED.get(region.op)) is not None:
        return _one_step(graph, region, step, region.operands[::-1])
    if region.op in _REPEATED:
        return _read_repeated(graph, region)
    reader = _READERS.get(region.op)
    return reader(graph, region) if reader else None


# ---- building --------------------------------------------------------------------------


def _one_step(
    graph: TileGraph, region: Region, step: str, values: Sequence[str], *literals: float
) -> BoundChain | None:
    """Return a chain of one ``step`` over values, then literals."""
    takes = ELEMENTARY[step].takes
    if len(values) + len(literals) != len(takes):
        return None
    return _assemble(
        graph, region, values, takes, lambda args, _: [Step(step, (*args, *literals))]
    )


def _assemble(
    graph: TileGraph, region: Region, values: Sequence[str], takes: str, make: Maker
) -> BoundChain | None:
    """Return a chain over values of the types ``takes``; constants of one element become
    literals."""
    result = graph.spec(region.results[0])
    names: list[str] = []
    args: list[Ref] = []
    for value, letter in zip(values, takes, strict=False):
        if not value or _LETTER.get(graph.spec(value).dtype or DType.STR) != letter:
            return None
        number = constant_number(graph, value) if letter == "f" else None
        if number is None and value not in names:
            names.append(value)
        args.append(names.index(value) if number is None else number)
    specs = [graph.spec(v) for v in names]
    if not _regular(specs, result):
        return None
    steps = tuple(make(args, len(names)))
    kinds = tuple(matrix_broadcast_kind(s, result) for s in specs)
    dtypes = tuple(s.dtype or DType.F32 for s in specs)
    chain = Chain(kinds, steps, (len(names) + len(steps) - 1,), dtypes)
    return (chain, tuple(names)) if chain.result_types == (result.dtype,) else None


def _regular(specs: Sequence[TensorSpec], result: TensorSpec) -> bool:
    """Return whether shapes are known and broadcast, and their rank is supported by kernels."""
    shapes = [s.shape for s in specs if s.shape is not None]
    known = len(shapes) == len(specs) > 0 and result.shape is not None
    return known and len(result.shape or ()) <= MAX_RANK and broadcast(shapes) == result.shape


# ---- operators that need more ----------------------------------------------------------


def _read_repeated(graph: TileGraph, region: Region) -> BoundChain | None:
    """Read ``op(a, b, c)`` as ``op(op(a, b), c)``; a mean multiplies by 1/n like ONNX Runtime."""
    step, count = _REPEATED[region.op], len(region.operands)

    def make(args: Sequence[Ref], operands: int) -> list[Step]:
        steps: list[Step] = []
        total = args[0]
        for arg in args[1:]:
            steps.append(Step(step, (total, arg)))
            total = operands + len(steps) - 1
        if region.op == "Mean" and count > 1:
            steps.append(Step("mul", (total, 1.0 / count)))
        return steps

    values = region.operands
    if count == 1 or all(graph.weight(v) is not None for v in values):
        return None
    return _assemble(graph, region, values, "f" * count, make)


def _read_power(graph: TileGraph, region: Region) -> BoundChain | None:
    """Read ``Pow(x, 2)`` as ``x * x``; a constant exponent may have any type."""
    base, power = region.operands
    exponent = constant_number(graph, power)
    if exponent is None:
        return _one_step(graph, region, "pow", region.operands)
    if math.isnan(exponent):
        return None
    if exponent == 2.0:
        return _one_step(graph, region, "mul", (base, base))
    return _assemble(graph, region, (base,), "f", lambda a, _: [Step("pow", (*a, exponent))])


def _read_clip(graph: TileGraph, region: Region) -> BoundChain | None:
    """Read Clip with bounds from operands, or attributes before opset 11; default ±max."""
    values = [region.operands[0]]
    bounds: list[float | None] = []  # None: the next of the values
    for i, (name, default) in enumerate((("min", -_LARGEST), ("max", _LARGEST)), 1):
        value = region.operands[i] if i < len(region.operands) else ""
        given = constant_number(graph, value) if value else attribute(region, name, default)
        if given is None:
            values.append(value)
        elif math.isnan(float(given)):  # type: ignore[arg-type]
            return None
        bounds.append(None if given is None else float(given))  # type: ignore[arg-type]

    def make(args: Sequence[Ref], _: int) -> list[Step]:
        rest = iter(args[1:])
        return [Step("clip", (args[0], *(next(rest) if b is None else b for b in bounds)))]

    return _assemble(graph, region, values, "fff", make)


def _read_is_inf(graph: TileGraph, region: Region) -> BoundChain | None:
    """Read IsInf of both infinities, or as an equality with one."""
    sides = tuple(attribute(region, f"detect_{side}", 1) for side in ("negative", "positive"))
    if sides == (1, 1):
        return _one_step(graph, region, "is_inf", region.operands)
    one_side: dict[object, float] = {(0, 1): math.inf, (1, 0): -math.inf}
    sign = one_side.get(sides)
    if sign is None or graph.opset < ELEMENTARY["equal"].since:
        return None
    return _assemble(graph, region, region.operands, "f", lambda a, _: [Step("equal", (*a, sign))])


def _read_swish(graph: TileGraph, region: Region) -> BoundChain | None:
    if attribute(region, "alpha", 1.0) != 1.0:
        return None
    return _one_step(graph, region, "silu", region.operands)


def _read_cast(graph: TileGraph, region: Region) -> BoundChain | None:
    """Read a Cast between float32, bool and integers that starts or ends at float32.

    So is one to 8-bit floats that a product multiplies.

    ONNX leaves casts of NaN and of out-of-range numbers undefined; chains give what ONNX Runtime's
    x86 kernels give, the lowest 32- or 64-bit integer.  Casts that wrap (to 8 bits, between
    integers) are not converted.
    """
    value = region.operands[0]
    source, result = graph.spec(value), graph.spec(region.results[0])
    first, last = source.dtype or DType.STR, result.dtype or DType.STR
    step = _CASTS.get((_letter(first), _letter(last)))
    if first is DType.F32 and _in_float8(graph, region.results[0]):
        step = "" if attribute(region, "saturate", 1) == 1 else None
    if step is None:
        return None
    if step == "int":
        step = "int32" if last is DType.I32 else "int64"
    if last in (DType.U8, DType.I8) and first is not DType.BOOL:
        return None
    if graph.weight(value) is not None or not _regular([source], result):
        return None
    steps = (Step(step, (0,)),) if step else ()
    return Chain((FULL,), steps, (len(steps),), (first,), (last,)), (value,)


_CASTS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("b", "f"): "number", ("b", "i"): "number", ("f", "b"): "nonzero", ("i", "b"): "nonzero",
        ("f", "i"): "int", ("i", "f"): "",
    }
)  # fmt: skip
"""Step of a cast, by the kinds (bool, integer, number) it converts from and to."""


def _letter(dtype: DType) -> str:
    return "i" if dtype in INTEGERS else _LETTER.get(dtype, "")


_RANGES: Mapping[DType, tuple[float, float]] = MappingProxyType(
    {DType.U8: (0.0, 255.0), DType.I8: (-128.0, 127.0)}
)


def _quantisation(graph: TileGraph, region: Region) -> tuple[float, float, DType] | None:
    """Return scale, zero point and integer type, or None.

    Scale and zero point must be one constant number each, and the scale far from the ends of
    float32.
    """
    operands = (*region.operands, "", "")[:3]
    scale = constant_number(graph, operands[1])
    wide = graph.spec(operands[1]).dtype is DType.F32
    dtype = graph.spec(region.operands[0] if region.op[0] == "D" else region.results[0]).dtype
    if dtype in FLOATS8:
        zero = 0.0 if are_zero(graph, operands[2]) else None
    else:
        zero = constant_number(graph, operands[2]) if operands[2] else 0.0
    if scale is None or zero is None or dtype is None or not (wide and is_ordinary(scale)):
        return None
    return scale, zero, dtype


def _read_quantise(graph: TileGraph, region: Region) -> BoundChain | None:
    """Read round(x / scale) + zero, saturated to the type's range; ties round to even.

    8-bit floats have no zero point, and are read only if a product multiplies them.
    """
    value, found = region.operands[0], _quantisation(graph, region)
    source, result = graph.spec(value), graph.spec(region.results[0])
    float8 = _in_float8(graph, region.results[0])
    if float8 and found is None:
        return _read_quantised_rows(graph, region)
    if found is None or source.dtype is not DType.F32 or not (found[2] in _RANGES or float8):
        return None
    if graph.weight(value) is not None or not _regular([source], result):
        return None
    if attribute(region, "precision", 0) not in (0, 1) or graph.opset < 11:
        return None
    if (producer := graph.producer(value)) is not None and _in_integers(graph, producer):
        return None
    scale, zero, dtype = found
    if float8:
        whole = zero == 0 and attribute(region, "saturate", 1) == 1
        return (
            (Chain((FULL,), (Step("div", (0, scale)),), (1,), (), (dtype,)), (value,))
            if whole
            else None
        )
    steps = (
        Step("div", (0, scale)), Step("round", (1,)), Step("add", (2, zero)),
        Step("saturate", (3, *_RANGES[dtype])),
    )  # fmt: skip
    return Chain((FULL,), steps, (4,), (), (dtype,)), (value,)


def _read_quantised_rows(graph: TileGraph, region: Region) -> BoundChain | None:
    """Read x / scale, with a computed scale for each row, stored in 8-bit floats."""
    value, scales, *_ = region.operands
    source, result = graph.spec(value), graph.spec(region.results[0])
    whole = attribute(region, "precision", 0) in (0, 1) and attribute(region, "saturate", 1) == 1
    if source.dtype is not DType.F32 or not scale_each_row(graph, region, value) or not whole:
        return None
    if graph.weight(value) is not None or not _regular([source, graph.spec(scales)], result):
        return None
    kinds = (FULL, matrix_broadcast_kind(graph.spec(scales), result))
    dtype = result.dtype or DType.F32
    return Chain(kinds, (Step("div", (0, 1)),), (2,), (), (dtype,)), (value, scales)


def _read_dequantise(graph: TileGraph, region: Region) -> BoundChain | None:
    """Read (x − zero) · scale."""
    value, found = region.operands[0], _quantisation(graph, region)
    source, result = graph.spec(value), graph.spec(region.results[0])
    if found is None or result.dtype is not DType.F32:
        return None
    if not (found[2] in _RANGES or (found[1] == 0 and _in_float8(graph, value))):
        return None
    if graph.weight(value) is not None or not _regular([source], result):
        return None
    if any(_in_integers(graph, use.region) for use in graph.uses(region.results[0])):
        return None
    scale, zero, dtype = found
    steps = (Step("sub", (0, zero)), Step("mul", (1, scale)))
    return Chain((FULL,), steps, (2,), (dtype,)), (value,)


def _in_float8(graph: TileGraph, value: str) -> bool:
    """Return whether a product of 8-bit floats reads a value."""
    if graph.spec(value).dtype not in FLOATS8:
        return False
    readers = (use.region.params for use in graph.uses(value))
    return any(isinstance(p, GemmParams) and p.integers is not None for p in readers)


def _in_integers(graph: TileGraph, region: Region) -> bool:
    """Return whether a product or convolution with constant weights will be computed in integers.

    Until it is converted, the QuantizeLinear and DequantizeLinear around it must stay.
    """
    if region.op not in ("Conv", "Gemm", "MatMul"):
        return False
    x, w = (operand_producer(graph, v, "DequantizeLinear") for v in region.operands[:2])
    return x is not None and w is not None and graph.weight(w.operands[0]) is not None


_READERS: Mapping[str, Callable[[TileGraph, Region], BoundChain | None]] = MappingProxyType(
    {
        "Pow": _read_power, "Clip": _read_clip, "IsInf": _read_is_inf, "Swish": _read_swish,
        "Cast": _read_cast, "QuantizeLinear": _read_quantise,
        "DequantizeLinear": _read_dequantise,
    }
)  # fmt: skip
