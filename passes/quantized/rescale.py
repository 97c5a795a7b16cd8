"""Turn scales of dequantized operands into factors that rescale sums of integers, as a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.chain import FULL, ROW, SCALAR, Chain, Step
from tracea_graph.passes.quantized.scale_checks import ordinary
from tracea_graph.passes.region_helpers import only_read_by, operand_producer
from tracea_graph.reason_codes import not_constant_reason
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "RescaleFactor", "covered_with", "dequantized_row", "dequantized_sides", "one_scale_each",
    "rescale_chain", "rescaling", "why_not_dequantized",
]  # fmt: skip


@dataclass(frozen=True)
class RescaleFactor:
    """A value that multiplies or is added to integer sums, and its kind as a chain operand."""

    name: str
    kind: str


def dequantized_sides(graph: TileGraph, region: Region) -> tuple[Region, Region] | None:
    """Return the two DequantizeLinear that write a region's first two operands.

    None if an operand is not dequantized, or the second one not from a constant.
    """
    x, w = (operand_producer(graph, v, "DequantizeLinear") for v in region.operands[:2])
    return None if x is None or w is None or graph.weight(w.operands[0]) is None else (x, w)


def why_not_dequantized(graph: TileGraph, region: Region, unsuited: str) -> str:
    """Return why :func:`dequantized_sides` finds nothing.

    If the matrix or the filters are dequantized, but not from a constant, the reason says that;
    else it is ``unsuited``.
    """
    x, w = (operand_producer(graph, v, "DequantizeLinear") for v in region.operands[:2])
    return unsuited if x is None or w is None else not_constant_reason(w.operands[0])


def covered_with(graph: TileGraph, region: Region, sides: Iterable[Region]) -> tuple[Region, ...]:
    """Return those of ``sides`` that only ``region`` reads, each once, then ``region``."""
    alone = [r for r in sides if only_read_by(graph, r.results[0], region)]
    return (*dict.fromkeys(alone), region)


def one_scale_each(graph: TileGraph, w: Region, scales: str, n: int, axis: int) -> str | None:
    """Return why a matrix does not have one scale, or one for each column; None if it has.

    ``w`` is the region that dequantizes the matrix; its ``n`` columns lie along ``axis``.
    """
    weight = graph.weight(scales)
    if weight is None:
        return not_constant_reason(scales)
    if weight.dtype is not DType.F32 or w.node.attrs.get("block_size", 0):
        return "its matrix has scales that are not float32, or a scale per block"
    if weight.count == 1:
        return None
    stored = graph.weight(w.operands[0])
    rank = len(stored.shape) if stored else 2
    given = int(w.node.attrs.get("axis", 1)) % rank  # type: ignore[arg-type]
    if weight.shape != (n,) or given != axis:
        return "its matrix has a scale for each row"
    return None


def rescaling(
    graph: TileGraph, scale: str, scales: str, weights: dict[str, Weight]
) -> tuple[RescaleFactor, ...] | str:
    """Return the factors by which to multiply the integer sums, or why there are none.

    ``scale`` is that of x, ``scales`` are those of the matrix.  Products of constant scales are
    added to ``weights``.
    """
    left, right = graph.weight(scale), graph.weights[scales]
    if left is None:
        spec = graph.spec(scale)
        if spec.dtype is not DType.F32 or spec.shape not in ((), (1,)):
            return "the scale of x is not one float32 number"
        if not ordinary(right):
            return "a scale of its matrix is zero, negative or out of range"
        kind = SCALAR if right.count == 1 else ROW
        return RescaleFactor(scale, SCALAR), RescaleFactor(scales, kind)
    if left.count != 1 or left.dtype is not DType.F32:
        return "the scale of x is not one float32 number"
    if not (ordinary(left) and ordinary(right)):
        return "a scale is zero, negative or out of range"
    count = right.count
    name = f"{scale}_times_{scales}"
    shape = (count,) if count > 1 else ()
    weights[name] = Weight(name, DType.F32, shape, _product(left, right, shape))
    return (RescaleFactor(name, ROW if count > 1 else SCALAR),)


def _product(left: Weight, right: Weight, shape: tuple[int, ...]) -> Callable[[], Array]:
    def load() -> Array:
        one = np.asarray(left.load(), np.float32).reshape(())
        return (one * np.asarray(right.load(), np.float32)).reshape(shape)

    return load


def dequantized_row(
    graph: TileGraph, name: str, weights: dict[str, Weight]
) -> RescaleFactor | str | None:
    """Return a constant vector that is dequantized as a float32 weight, or why that is impossible.

    The new weight is added to ``weights``.  None if the value is no dequantized constant vector.
    """
    source = operand_producer(graph, name, "DequantizeLinear")
    stored = graph.weight(source.operands[0]) if source else None
    if source is None or stored is None or len(stored.shape) != 1:
        return None
    scale, zero = ((*map(graph.weight, source.operands[1:]), None, None)[i] for i in (0, 1))
    if scale is None or not ordinary(scale):
        return "the scale of its bias is not constant, or out of range"

    def load() -> Array:
        numbers = np.asarray(stored.load(), np.int64)
        numbers = numbers - (0 if zero is None else np.asarray(zero.load(), np.int64))
        made: Array = numbers.astype(np.float32) * np.asarray(scale.load(), np.float32).reshape(-1)
        return made

    weight = Weight(f"{name}_dequantized", DType.F32, stored.shape, load)
    weights[weight.name] = weight
    return RescaleFactor(weight.name, ROW)


def rescale_chain(factors: Sequence[RescaleFactor], bias: RescaleFactor | None) -> Chain:
    """Return the chain that multiplies the sums by the factors and adds the bias."""
    operands, steps, value = [FULL], list[Step](), 0
    beside = [*factors, *([bias] if bias else [])]
    count = 1 + len(beside)
    for at, factor in enumerate(beside, 1):
        operands.append(factor.kind)
        steps.append(Step("add" if factor is bias else "mul", (value, at)))
        value = count + len(steps) - 1
    return Chain(tuple(operands), tuple(steps), (value,))
