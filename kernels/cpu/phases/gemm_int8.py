"""Round the operands of products to 8-bit integers, on request.

FusedGemm(x, [K, N], …)    ->    FusedGemm(FusedQuantizeRows(x), int8 [K, N], …)
FusedGemm(x, [K, N], …)    ->    FusedGemm(FusedElementwise(x), int8 [K, N], …)

Every row of x has a scale from its own values, or all rows have one that calibration chose; every
column of the matrix has a scale from its own values.  The epilogue first multiplies the exact
sums by both scales.  Products that round one x in the same way share its integers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracea_graph.ir import Array, DType, TensorSpec, Weight
from tracea_graph.kernels.cpu.phases.lower_precision import INT8_ERROR
from tracea_graph.ops.chain import COL, FULL, MAX_OPERANDS, ROW, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.int8_matmul import MAX_DEPTH, IntegerOperand, round_columns
from tracea_graph.ops.quantize_rows import ZERO, QuantizeRowsParams
from tracea_graph.ops.weight_layouts import KN, NK, Floats, PlainMatrix
from tracea_graph.passes.matmul.constant_matrices import (
    matrix_of,
    replaceable_matrix,
    why_not_replaceable,
)
from tracea_graph.passes.quantized.calibrated_rounding import UNCALIBRATED, CalibratedRounding
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["GEMM_INT8", "GemmInt8", "with_rescaling"]

GEMM_INT8 = "gemm-int8"
"""The rule's name."""


@dataclass(frozen=True)
class GemmInt8:
    """Multiply rows of x and a constant matrix in 8-bit integers.

    ``calibrated`` maps the names of matrices to the roundings that calibration chose.
    """

    calibrated: Mapping[str, CalibratedRounding] = field(default_factory=lambda: UNCALIBRATED)
    name: str = GEMM_INT8

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, GemmParams):
            return
        if params.integers or not isinstance(params.layout, PlainMatrix):
            yield Miss(self.name, region.id, unsuited_reason("its matrix is not plain float32"))
            return
        weight = replaceable_matrix(graph, region, twice=True)
        why = (
            str(why_not_replaceable(graph, region, twice=True))
            if weight is None
            else _unfit(graph, region)
        )
        if weight is None or why:
            yield Miss(self.name, region.id, why or "its matrix cannot be replaced")
            return
        chosen = self.calibrated.get(region.operands[1], CalibratedRounding(0.0))
        yield _proposal(self.name, graph, region, weight, chosen)


def _unfit(graph: TileGraph, region: Region) -> str:
    """Return why a product of a constant matrix stays in float32, or ""."""
    params, (x, w, *_) = region.params, region.operands
    spec = graph.spec(x)
    if spec.dtype is not DType.F32 or not spec.shape or graph.weight(x) is not None:
        return "x is constant, not float32, or of unknown rank"
    if graph.weights[w].dtype is not DType.F32:
        return "its matrix is not stored in float32"
    if params.k > MAX_DEPTH:
        return f"sums of {params.k} products may not fit 32 bits"
    if len(params.epilogue.operands if params.epilogue else (FULL,)) + 3 > MAX_OPERANDS:
        return "its epilogue has too many operands to add scales to them"
    if params.bias and graph.weight(region.operands[params.first]) is None:
        return "its bias is not constant"
    return ""


def _proposal(
    rule: str, graph: TileGraph, region: Region, weight: Weight, chosen: CalibratedRounding
) -> Proposal:
    params = region.params
    x = _rounded(rule, graph, region, chosen)
    new, made, first = list[Region](), dict(x.weights), 0
    _, _, bias, inputs, affine = params.split(region.operands)
    kinds = (*((COL,) if x.scales else ()), ROW, *((ROW,) if bias or x.corrected else ()))
    for i, width in enumerate(params.splits or (params.n,)):
        part, first = slice(first, first + width), first + width
        own = _weights(params, weight, part, chosen)
        beside = [*x.scales, own[1].name]
        if bias or x.corrected:
            own += (_added(graph, bias, part, chosen, weight),)
            beside.append(own[2].name)
        whole = dataclasses.replace(
            params, n=width, layout=KN, bias=False, splits=(),
            integers=IntegerOperand(DType.U8, x.zero),
            epilogue=with_rescaling(params.epilogue, kinds),
        )  # fmt: skip
        operands = (x.numbers, own[0].name, *beside, *inputs, *affine)
        results = region.results[i : i + 1] if params.splits else region.results
        new.append(fused_region(rule, whole, operands, results, [region]))
        made |= {w.name: w for w in own}
    return Proposal(
        rule, (region,), tuple(new), x.specs, made, INT8_ERROR, shared=(x.region,)
    )  # fmt: skip


@dataclass(frozen=True)
class _Rounded:
    """The region that rounds x, the integers, and their scales if each row has its own."""

    region: Region
    numbers: str
    scales: tuple[str, ...]
    zero: int
    corrected: bool
    specs: Mapping[str, TensorSpec]
    weights: Mapping[str, Weight]


def _rounded(rule: str, graph: TileGraph, region: Region, chosen: CalibratedRounding) -> _Rounded:
    x, (k, w) = region.operands[0], (region.params.k, region.operands[1])
    shape, fixed, factors = graph.spec(x).shape or (), chosen.scale > 0, chosen.factors
    alone = f"_for_{w}" if fixed or factors is not None else ""
    numbers, scales = f"{x}{alone}_int8", f"{x}{alone}_row_scales"
    specs = {numbers: TensorSpec(DType.U8, shape)}
    times = np.ones(k, np.float32) if factors is None else np.asarray(factors, np.float32)
    if fixed:
        times = times / np.float32(chosen.scale)
    own = Weight(f"{numbers}_factors", DType.F32, (k,), lambda: times)
    weights = {own.name: own} if alone else {}
    operands, corrected = (x, *weights), chosen.correction is not None
    if fixed:
        chain = Chain(
            (FULL, ROW),
            (
                Step("mul", (0, 1)), Step("round", (2,)), Step("add", (3, float(chosen.zero))),
                Step("saturate", (4, 0.0, 255.0)),
            ),
            (5,), (), (DType.U8,),
        )  # fmt: skip
        rounds = fused_region(rule, ElementwiseParams(chain), operands, (numbers,), [region])
        return _Rounded(rounds, numbers, (), chosen.zero, corrected, specs, weights)
    specs[scales] = TensorSpec(DType.F32, (*shape[:-1], 1))
    params = QuantizeRowsParams(bool(alone))
    rounds = fused_region(rule, params, operands, (numbers, scales), [region])
    return _Rounded(rounds, numbers, (scales,), ZERO, corrected, specs, weights)


def _weights(
    params: GemmParams, weight: Weight, part: slice, chosen: CalibratedRounding
) -> tuple[Weight, ...]:
    """Return columns of a matrix in int8, ``[K, columns]``, and the scales by which sums with
    them are multiplied."""

    def fitted() -> tuple[Array, Floats]:
        matrix = matrix_of(params, weight)[:, part]
        return round_columns(
            matrix if chosen.factors is None else matrix / chosen.factors[:, None]
        )

    def factors() -> Array:
        made: Array = fitted()[1] * np.float32(chosen.scale or 1.0)
        return made

    turned = "_t" if params.layout == NK else ""
    mark = f"_{part.start}" if params.splits else ""
    name = f"{weight.name}{turned}{mark}_int8"
    width = part.stop - part.start
    return (
        Weight(name, DType.I8, (params.k, width), lambda: fitted()[0]),
        Weight(f"{name}_scales", DType.F32, (width,), factors),
    )


def _added(
    graph: TileGraph, bias: str | None, part: slice, chosen: CalibratedRounding, matrix: Weight
) -> Weight:
    """Return the row to add to the result: the bias plus a correction of the rounding."""
    width, correction = part.stop - part.start, chosen.correction
    given = graph.weights[bias] if bias else None
    if given is not None and correction is None and given.shape == (width,):
        return given

    def load() -> Array:
        total = np.zeros(part.stop, np.float32) if correction is None else correction
        if given is not None:
            total = total[: part.stop] + _row(given)[: part.stop]
        return np.ascontiguousarray(total[part])

    name = f"{matrix.name}_added_{part.start}_{width}"
    return Weight(name, DType.F32, (width,), load)


def _row(weight: Weight) -> Floats:
    made: Floats = np.asarray(weight.load(), np.float32).reshape(-1)
    return made


def with_rescaling(epilogue: Chain | None, more: Sequence[str]) -> Chain:
    """Return a chain that rescales the integer sums of a product, and continues with ``epilogue``.

    The sums are multiplied by operands of the kinds ``more``; if two of these are rows, the last
    operand is a bias that is added instead.
    """
    kinds = (FULL, *more)
    bias = more.count(ROW) == 2
    factors = len(more) - bias
    old = epilogue or Chain((FULL,), (), (0,))
    before = len(old.operands)
    count, first, steps, value = before + len(more), len(more), list[Step](), 0
    for at in range(1, first + 1):
        steps.append(Step("mul" if at <= factors else "add", (value, at)))
        value = count + at - 1

    def moved(ref: int | float) -> int | float:
        if isinstance(ref, float):
            return ref
        if ref == 0:
            return count + first - 1
        return ref + len(more) + (first if ref >= before else 0)

    steps += [Step(s.op, tuple(map(moved, s.args))) for s in old.steps]
    results = tuple(int(moved(r)) for r in old.results)
    types = (DType.F32,) * len(kinds) + old.operand_types[1:]
    return Chain((*kinds, *old.operands[1:]), tuple(steps), results, types, old.stores, True)
