"""Round the operands of products to 8-bit integers, on request.

FusedGemm(x, [K, N], …)    ->    FusedGemm(FusedQuantizeRows(x), int8 [K, N], …)

Every row of x has a scale from its own values, every column of the matrix one from its own.  The
epilogue multiplies the exact sums by both, before it does what it did.  Products of one x share
its integers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, TensorSpec, Weight
from tracea_graph.kernels.cpu.phases.precision import INT8_ERROR
from tracea_graph.ops.chain import COL, FULL, MAX_OPERANDS, ROW, Chain, Step
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.int8 import MAX_DEPTH, Integers, fit_columns
from tracea_graph.ops.quantize_rows import ZERO, QuantizeRowsParams
from tracea_graph.ops.weights import KN, NK, Plain
from tracea_graph.passes.matmul.constant_matrices import matrix_of, replaceable_matrix, why_kept
from tracea_graph.passes.regions import fused
from tracea_graph.reasons import unsuited
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["GEMM_INT8", "GemmInt8", "scaled"]

GEMM_INT8 = "gemm-int8"
"""The rule's name."""


@dataclass(frozen=True)
class GemmInt8:
    """Multiply rows of x and a constant matrix in 8-bit integers."""

    name: str = GEMM_INT8

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, GemmParams):
            return
        if params.integers or not isinstance(params.layout, Plain):
            yield Miss(self.name, region.id, unsuited("its matrix is no plain float32 one"))
            return
        weight = replaceable_matrix(graph, region, twice=True)
        why = str(why_kept(graph, region, twice=True)) if weight is None else _unfit(graph, region)
        if weight is None or why:
            yield Miss(self.name, region.id, why or "its matrix stays")
            return
        yield _proposal(self.name, graph, region, weight)


def _unfit(graph: TileGraph, region: Region) -> str:
    """Return why a product of a constant matrix stays in float32, or ""."""
    params, (x, w, *_) = region.params, region.operands
    spec = graph.spec(x)
    if spec.dtype is not DType.F32 or not spec.shape or graph.weight(x) is not None:
        return "x is not a computed float32 value of known rank"
    if graph.weights[w].dtype is not DType.F32:
        return "its matrix is not stored in float32"
    if params.k > MAX_DEPTH:
        return f"sums of {params.k} products may not fit 32 bits"
    if len(params.epilogue.operands if params.epilogue else (FULL,)) + 2 + params.bias > (
        MAX_OPERANDS
    ):
        return "its epilogue has too many operands for scales beside them"
    if params.splits and params.bias and graph.weight(region.operands[params.first]) is None:
        return "the bias of its parts is not constant"
    return ""


def _proposal(rule: str, graph: TileGraph, region: Region, weight: Weight) -> Proposal:
    params, x = region.params, region.operands[0]
    shape = graph.spec(x).shape or ()
    numbers, scales = f"{x}_rows_int8", f"{x}_row_scales"
    specs = {
        numbers: TensorSpec(DType.U8, shape), scales: TensorSpec(DType.F32, (*shape[:-1], 1)),
    }  # fmt: skip
    rows = fused(rule, QuantizeRowsParams(), (x,), (numbers, scales), [region])
    new, made = list[Region](), dict[str, Weight]()
    ends = np.cumsum(params.splits or (params.n,)).tolist()
    for end, width, result in zip(
        ends, params.splits or (params.n,), region.results, strict=False
    ):
        part = slice(end - width, end)
        own = _weights(params, weight, part, f"_{end - width}" if params.splits else "")
        beside = [own[1].name]
        if params.bias:
            bias = region.operands[params.first]
            if params.splits:
                cut = _cut(graph.weights[bias], part)
                made[cut.name] = cut
                bias = cut.name
            beside.append(bias)
        whole = dataclasses.replace(
            params, n=width, layout=KN, bias=False, splits=(), integers=Integers(DType.U8, ZERO),
            epilogue=scaled(params.epilogue, params.bias),
        )  # fmt: skip
        _, _, _, inputs, affine = params.split(region.operands)
        operands = (numbers, own[0].name, scales, *beside, *inputs, *affine)
        results = (result,) if params.splits else region.results
        new.append(fused(rule, whole, operands, results, [region]))
        made |= {w.name: w for w in own}
    return Proposal(rule, (region,), tuple(new), specs, made, INT8_ERROR, shared=(rows,))


def _weights(params: GemmParams, weight: Weight, part: slice, mark: str) -> tuple[Weight, Weight]:
    """Return columns of a matrix in int8, as ``[K, columns]``, and their scales."""

    def fitted() -> tuple[Array, Array]:
        return fit_columns(matrix_of(params, weight)[:, part])

    name = f"{weight.name}{'_t' if params.layout == NK else ''}{mark}_int8"
    width = part.stop - part.start
    return (
        Weight(name, DType.I8, (params.k, width), lambda: fitted()[0]),
        Weight(f"{name}_scales", DType.F32, (width,), lambda: fitted()[1]),
    )


def _cut(bias: Weight, part: slice) -> Weight:
    """Return elements of a bias."""

    def load() -> Array:
        return np.ascontiguousarray(np.asarray(bias.load()).reshape(-1)[part])

    width = part.stop - part.start
    return Weight(f"{bias.name}_from_{part.start}_{width}", DType.F32, (width,), load)


def scaled(epilogue: Chain | None, bias: bool) -> Chain:
    """Return a chain that scales sums by rows and columns and adds a bias, before ``epilogue``."""
    kinds = (FULL, COL, ROW, *((ROW,) if bias else ()))
    old = epilogue or Chain((FULL,), (), (0,))
    before, more = len(old.operands), len(kinds) - 1
    count, first = before + more, 2 + bias
    steps = [Step("mul", (0, 1)), Step("mul", (count, 2))]
    if bias:
        steps.append(Step("add", (count + 1, 3)))

    def moved(ref: int | float) -> int | float:
        if isinstance(ref, float):
            return ref
        if ref == 0:
            return count + first - 1
        return ref + more + (first if ref >= before else 0)

    steps += [Step(s.op, tuple(map(moved, s.args))) for s in old.steps]
    results = tuple(int(moved(r)) for r in old.results)
    types = (DType.F32,) * len(kinds) + old.operand_types[1:]
    return Chain((*kinds, *old.operands[1:]), tuple(steps), results, types, old.stores, True)
