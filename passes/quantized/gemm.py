"""Convert products of dequantized operands into products of integers.

MatMul(DequantizeLinear(x), DequantizeLinear(W))           -> FusedGemm of integers, rescaled
Gemm(DequantizeLinear(x), DequantizeLinear(W), bias)       -> the same with a bias

W is constant, with one scale or one for each column.  The bias may be a constant behind a
DequantizeLinear.  What requantizes the result joins the product's epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.chain import FULL, ROW, SCALAR, Chain, Step
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes.pointwise.chains import kind_of
from tracea_graph.passes.quantized.integer_matrix import IntegerGemm, integer_gemm
from tracea_graph.passes.quantized.scales import ordinary
from tracea_graph.passes.regions import (
    attribute,
    fused,
    only_read_by,
    operand_producer,
)
from tracea_graph.reasons import not_constant, unsuited
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["QuantizedGemm"]


@dataclass(frozen=True)
class _Scale:
    """A factor of the product: a chain operand of some kind, or none."""

    name: str
    kind: str


class QuantizedGemm:
    """Multiply integers where a product reads two dequantized operands, the right one constant."""

    name = "quantized-gemm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("MatMul", "Gemm") or region.fused:
            return
        sides = [operand_producer(graph, v, "DequantizeLinear") for v in region.operands[:2]]
        x, w = sides
        if x is None or w is None or graph.weight(w.operands[0]) is None:
            why = unsuited("not both operands are dequantized, the right one from a constant")
            yield Miss(self.name, region.id, why)
            return
        made = self._made(graph, region, x, w)
        if isinstance(made, str):
            yield Miss(self.name, region.id, made)
            return
        alone = [r for r in (x, w) if only_read_by(graph, r.results[0], region)]
        covered = [*dict.fromkeys(alone), region]
        new = fused(self.name, made.params, made.operands, region.results, covered)
        yield Proposal(self.name, tuple(covered), (new,), weights=made.weights)

    def _made(self, graph: TileGraph, region: Region, x: Region, w: Region) -> IntegerGemm | str:
        gemm = region.op == "Gemm"
        turned = gemm and attribute(region, "transB", 0) == 1
        if gemm and (attribute(region, "transA", 0), _factors(region)) != (0, (1.0, 1.0)):
            return "its left operand is transposed, or it has factors other than 1"
        (q, scale, zero), (m, scales, zeros) = ((*r.operands, "")[:3] for r in (x, w))
        made = integer_gemm(graph, q, m, zero, zeros, turned)
        if isinstance(made, str):
            return made
        if (why := _per_column(graph, w, scales, made.params.n, turned)) is not None:
            return why
        factors = _scale(graph, made, scale, scales)
        if isinstance(factors, str):
            return factors
        bias = _bias(graph, region, made)
        return bias if isinstance(bias, str) else _finished(made, factors, bias)


def _factors(region: Region) -> tuple[float, float]:
    return float(attribute(region, "alpha", 1.0)), float(attribute(region, "beta", 1.0))  # type: ignore[arg-type]


def _per_column(graph: TileGraph, w: Region, scales: str, n: int, turned: bool) -> str | None:
    """Return why the matrix does not have one scale for all, or for each column."""
    weight = graph.weight(scales)
    if weight is None:
        return not_constant(scales)
    if weight.dtype is not DType.F32 or attribute(w, "block_size", 0):
        return "the scale of its matrix is not float32, or one for each block"
    if weight.count == 1:
        return None
    axis = int(attribute(w, "axis", 1)) % 2  # type: ignore[call-overload]
    if weight.shape != (n,) or axis != (0 if turned else 1):
        return "its matrix has a scale for each row"
    return None


def _scale(
    graph: TileGraph, made: IntegerGemm, scale: str, scales: str
) -> tuple[_Scale, ...] | str:
    """Return the factors that rescale the sums, or why there are none; adds their weights."""
    left, right = graph.weight(scale), graph.weights[scales]
    if left is None:
        spec = graph.spec(scale)
        if spec.dtype is not DType.F32 or spec.shape not in ((), (1,)):
            return "the scale of x is not one float32 number"
        if not ordinary(right):
            return "a scale of its matrix is zero, negative or out of range"
        kind = SCALAR if right.count == 1 else ROW
        return _Scale(scale, SCALAR), _Scale(scales, kind)
    if left.count != 1 or left.dtype is not DType.F32:
        return "the scale of x is not one float32 number"
    if not (ordinary(left) and ordinary(right)):
        return "a scale is zero, negative or out of range"
    count = right.count
    name = f"{scale}_times_{scales}"
    shape = (count,) if count > 1 else ()
    made.weights[name] = Weight(name, DType.F32, shape, _product(left, right, shape))
    return (_Scale(name, ROW if count > 1 else SCALAR),)


def _product(left: Weight, right: Weight, shape: tuple[int, ...]) -> Callable[[], Array]:
    def load() -> Array:
        one = np.asarray(left.load(), np.float32).reshape(())
        return (one * np.asarray(right.load(), np.float32)).reshape(shape)

    return load


def _bias(graph: TileGraph, region: Region, made: IntegerGemm) -> _Scale | str | None:
    """Return what Gemm adds, or why it cannot; a dequantized constant becomes a weight."""
    name = region.operands[2] if len(region.operands) > 2 else ""
    if not name:
        return None
    spec = graph.spec(name)
    if spec.dtype is not DType.F32 or spec.shape is None:
        return "its bias is not float32 of known rank"
    kind = kind_of(spec, graph.spec(region.results[0]))
    source = operand_producer(graph, name, "DequantizeLinear")
    stored = graph.weight(source.operands[0]) if source else None
    if source is None or stored is None or kind != ROW or spec.rank != 1:
        return _Scale(name, kind)
    scale, zero = ((*map(graph.weight, source.operands[1:]), None, None)[i] for i in (0, 1))
    if scale is None or not ordinary(scale):
        return "the scale of its bias is not constant, or out of range"

    def load() -> Array:
        numbers = np.asarray(stored.load(), np.int64)
        numbers = numbers - (0 if zero is None else np.asarray(zero.load(), np.int64))
        made: Array = numbers.astype(np.float32) * np.asarray(scale.load(), np.float32).reshape(-1)
        return made

    weight = Weight(f"{name}_dequantized", DType.F32, stored.shape, load)
    made.weights[weight.name] = weight
    return _Scale(weight.name, ROW)


def _finished(made: IntegerGemm, factors: tuple[_Scale, ...], bias: _Scale | None) -> IntegerGemm:
    """Return the product with the chain that rescales its sums and adds the bias."""
    operands, steps, value = [FULL], list[Step](), 0
    beside = [*factors, *([bias] if bias else [])]
    count = 1 + len(beside)
    for at, factor in enumerate(beside, 1):
        operands.append(factor.kind)
        steps.append(Step("add" if factor is bias else "mul", (value, at)))
        value = count + len(steps) - 1
    chain = Chain(tuple(operands), tuple(steps), (value,))
    k, n, layout, integers = made.params.k, made.params.n, made.params.layout, made.params.integers
    params = GemmParams(k, n, layout, epilogue=chain, integers=integers)
    return IntegerGemm(params, (*made.operands, *(f.name for f in beside)), made.weights)
