"""Convert products with constant weights, and fuse their bias, reshapes and norm.

MatMul(x, W), Gemm(x, W, c)            -> FusedGemm
Add(FusedGemm(x), bias)                -> FusedGemm(x, bias)
Reshape(FusedGemm(Reshape(x)))         -> FusedGemm(x)
FusedNorm(FusedGemm(x))                -> FusedGemm(x, …, norm)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, TensorSpec, Weight
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import KN, NK
from tracea_graph.passes.matmul.constant_matrices import (
    lazy_matrix,
    must_stay_plain,
    smaller_source,
    stored_matrix,
)
from tracea_graph.passes.pointwise.bound_expressions import matrix_broadcast_kind
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    gemm_producer,
    is_f32,
    only_read_by,
    operand_producer,
)
from tracea_graph.reason_codes import Code, Reason, other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "GEMM_BIAS",
    "GEMM_NORM",
    "Gemm",
    "GemmReshape",
    "constant_matrix",
    "gemm_bias",
    "gemm_epilogue",
    "why_not_added",
]  # fmt: skip


@dataclass(frozen=True)
class Gemm:
    """Convert a product with a constant matrix to a FusedGemm that reads the stored matrix.

    A new matrix is stored only if the product has a scale, or if the matrix has leading axes of
    size 1.  In these cases the rule is not applied if other operators read the matrix, or if
    ``plain`` forbids new ones.
    """

    plain: bool = False
    name: str = "gemm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("MatMul", "Gemm"):
            return
        shape = constant_matrix(graph, region)
        if shape is None:
            why = unsuited_reason(f"{region.operands[1]!r} is not a constant float32 matrix")
            yield Miss(self.name, region.id, why)
            return
        if (reason := self._check(graph, region, shape)) is not None:
            yield Miss(self.name, region.id, reason)
            return
        gemm = region.op == "Gemm"
        transposed = gemm and attribute(region, "transB", 0) == 1
        scale = float(attribute(region, "alpha", 1.0)) if gemm else 1.0  # type: ignore[arg-type]
        matrix, layout = stored_matrix(graph, region.operands[1], transposed)
        n, k = shape if transposed else shape[::-1]
        weights, flat = dict[str, Weight](), graph.spec(matrix).rank == 2
        if self.plain or must_stay_plain(graph, matrix):
            if not flat:
                yield Miss(
                    self.name,
                    region.id,
                    Reason(f"other readers need {matrix!r} unchanged", Code.OTHER_READERS),
                )
                return
        elif scale != 1.0 or not flat:
            scaled = f"_{scale!r}" if scale != 1.0 else ""
            name = f"{matrix}{'_t' if layout == NK else ''}{scaled}_matrix"
            load = _scaled(graph.weights[region.operands[1]], transposed, scale)
            weights[name] = lazy_matrix(name, k, n, load)
            matrix, layout, scale = name, KN, 1.0
        bias = gemm_bias(graph, region, n) if scale == 1.0 else ""
        chain, epilogue_inputs = gemm_epilogue(graph, region, bias, scale)
        params = GemmParams(k, n, layout, bool(bias), chain)
        operands = [region.operands[0], matrix, *([bias] if bias else []), *epilogue_inputs]
        new = fused_region(self.name, params, operands, region.results, [region])
        yield Proposal(self.name, (region,), (new,), weights=weights)

    def _check(self, graph: TileGraph, region: Region, shape: tuple[int, int]) -> str | None:
        if not is_f32(graph, *filter(None, region.operands)):
            return Reason("the operands are not float32", Code.UNSUPPORTED_DTYPE)
        if not graph.spec(region.operands[0]).rank:
            return "the left operand's rank is not known to be at least 1"
        if 0 in shape:
            return "the constant matrix is empty"
        if (why := why_not_added(graph, region)) is not None:
            return why
        if (source := smaller_source(graph, region.operands[1])) is not None:
            return f"{source!r} holds the matrix in fewer bytes"
        return None


def constant_matrix(graph: TileGraph, region: Region) -> tuple[int, int] | None:
    """Return the shape of a product's constant right operand, if it is one matrix for all rows.

    The constant may have leading axes of size 1 if the left operand has at least as many axes.
    None for other operators, and if the left operand is transposed.
    """
    if region.op not in ("MatMul", "Gemm") or region.fused:
        return None
    x, w = region.operands[:2]
    weight, rank = graph.weight(w), graph.spec(x).rank or 2
    if weight is None or len(weight.shape) < 2 or attribute(region, "transA", 0):
        return None
    *lead, rows, columns = weight.shape
    if any(d != 1 for d in lead) or (lead and rank < len(weight.shape)):
        return None
    return rows, columns


def _scaled(weight: Weight, transposed: bool, scale: float) -> Callable[[], Array]:
    """Return a loader of a weight's matrix ``[K, N]``, squeezed and scaled."""

    def load() -> Array:
        matrix = np.asarray(weight.load(), np.float32)
        matrix = matrix.reshape(matrix.shape[-2:])
        matrix = matrix.T if transposed else matrix
        return matrix if scale == 1.0 else matrix * np.float32(scale)

    return load


def gemm_bias(graph: TileGraph, region: Region, n: int) -> str:
    """Return a Gemm's C if it is a bias: one number per column, with β = 1; else ""."""
    c = region.operands[2] if len(region.operands) > 2 else ""
    plain = c and attribute(region, "beta", 1.0) == 1.0
    return c if plain and graph.spec(c).shape == (n,) else ""


def gemm_epilogue(
    graph: TileGraph, region: Region, bias: str = "", alpha: float | None = None
) -> tuple[Chain | None, tuple[str, ...]]:
    """Return the chain α·acc + β·C of a Gemm, where acc is the accumulator, and its operands.

    C is left out if it is the ``bias``, which the product adds itself.  ``alpha`` is the factor to
    use as α; None means the Gemm's α.
    """
    if region.op != "Gemm":
        return None, ()
    if alpha is None:
        alpha = float(attribute(region, "alpha", 1.0))  # type: ignore[arg-type]
    beta = float(attribute(region, "beta", 1.0))  # type: ignore[arg-type]
    c = region.operands[2] if len(region.operands) > 2 and not bias and beta else ""
    steps: list[Step] = []
    count = 2 if c else 1
    acc, added = 0, 1
    if alpha != 1.0:
        steps.append(Step("mul", (0, alpha)))
        acc = count + len(steps) - 1
    if c and beta != 1.0:
        steps.append(Step("mul", (1, beta)))
        added = count + len(steps) - 1
    if c:
        steps.append(Step("add", (acc, added)))
        acc = count + len(steps) - 1
    if not steps:
        return None, ()
    kinds = (
        (FULL, matrix_broadcast_kind(graph.spec(c), graph.spec(region.results[0])))
        if c
        else (FULL,)
    )
    return Chain(kinds, tuple(steps), (acc,)), (c,) if c else ()


def why_not_added(graph: TileGraph, region: Region) -> str | None:
    """Return why a Gemm's C may not fit its result; None if it does, or if there is none.

    A size with a symbol of its own may be 1, and C is repeated along that axis then.
    """
    c = region.operands[2] if region.op == "Gemm" and len(region.operands) > 2 else ""
    if not c:
        return None
    own, full = graph.spec(c).shape, graph.spec(region.results[0]).shape
    pairs = zip(own[::-1], full[::-1], strict=False) if own and full else ()
    fits = own is not None and all(a == 1 or equal_as_polynomials(a, b) for a, b in pairs)
    if fits and (full or own == ()):
        return None
    return Reason(f"the sizes of {c!r} are not proven to fit the product", Code.UNKNOWN_SHAPE)


def _gemm_behind(graph: TileGraph, value: str) -> Region | None:
    region = gemm_producer(graph, value)
    return region if region is not None and region.op == "FusedGemm" else None


def _plus_vector(op: Any, x: Any, bias: Any) -> Any:
    return op.Add(op.FusedGemm(x, ..., label="gemm"), bias)


def _bias_check(m: Match) -> str | None:
    gemm, spec = m.labels["gemm"], m.spec("bias")
    open_ = gemm.params.norm is None and gemm.results[0] in m.root.operands
    if not open_ or gemm.params.bias or gemm.params.epilogue or gemm.params.integers:
        return unsuited_reason("the product already has a bias or an epilogue, or sums integers")
    vector = spec.shape == (gemm.params.n,) and spec.dtype is DType.F32
    return (
        None
        if vector
        else unsuited_reason(f"{m.values['bias']!r} is not a vector over the columns")
    )


def _take_bias(m: Match) -> Region:
    """Initialise the accumulators with the vector that is added right after the product."""
    gemm = m.labels["gemm"]
    params = dataclasses.replace(gemm.params, bias=True)
    operands = (*gemm.operands[: gemm.params.first], m.values["bias"])
    return fused_region("gemm-bias", params, operands, m.root.results, (gemm, m.root))


GEMM_BIAS = Rule("gemm-bias", (_plus_vector,), _take_bias, _bias_check)


class GemmReshape:
    """Let a product read rows of any rank, and remove the Reshapes that flatten and unflatten.

    Reshape [B,S,K] -> [B·S,K], FusedGemm, Reshape -> [B,S,N]     ->   FusedGemm on [B,S,K]

    Attention before it then writes rows [B,S,K] instead of heads [B,S,H,K/H].
    """

    name = "gemm-reshape"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Reshape":
            return
        gemm = _gemm_behind(graph, region.operands[0])
        if gemm is None or gemm.params.epilogue is not None or len(gemm.results) > 1:
            why = unsuited_reason("its input does not come from a product without an epilogue")
            yield Miss(self.name, region.id, why)
            return
        flat = graph.producer(gemm.operands[0])
        if flat is None or flat.op not in ("Reshape", "Flatten"):
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("the product's input does not come from a Reshape or Flatten"),
            )
            return
        x = flat.operands[0]
        before, after = graph.spec(x).shape, graph.spec(region.results[0]).shape
        rows = _heads_in_rows(graph, gemm, flat)
        if rows is not None and before:
            before = (*before[:-2], gemm.params.k)
        if not before or len(before) < 2 or before[-1] != gemm.params.k:
            why = unsuited_reason("the reshape before the product does not keep the last axis")
            yield Miss(self.name, region.id, why)
            return
        if after != (*before[:-1], gemm.params.n):
            reason = Reason(
                f"{region.results[0]!r} is not proven to have the rows of {x!r}",
                Code.UNKNOWN_SHAPE,
            )
            yield Miss(self.name, region.id, reason)
            return
        if not only_read_by(graph, gemm.results[0], region):
            yield Miss(
                self.name,
                region.id,
                other_readers_reason(gemm.results[0]),
            )
            return
        operands = (rows.results[0] if rows else x, *gemm.operands[1:])
        new = fused_region(self.name, gemm.params, operands, region.results, (gemm, region))
        if rows is None:
            yield Proposal(self.name, (gemm, region), (new,))
            return
        attention = graph.producer(x)
        assert attention is not None
        specs = {rows.results[0]: TensorSpec(DType.F32, before)}
        yield Proposal(self.name, (attention, flat, gemm, region), (rows, new), specs)


def _heads_in_rows(graph: TileGraph, gemm: Region, flat: Region) -> Region | None:
    """Return an attention that can write merged heads, if only the product reads its result."""
    made = operand_producer(graph, flat.operands[0], "FusedAttention")
    if made is None or made.params.layouts[3] != "split":
        return None
    if not only_read_by(graph, made.results[0], flat):
        return None
    if not only_read_by(graph, flat.results[0], gemm):
        return None
    if made.params.heads * made.params.head_v != gemm.params.k:
        return None
    params = dataclasses.replace(made.params, layouts=(*made.params.layouts[:3], "rows"))
    return fused_region(made.rule, params, made.operands, (f"{made.results[0]}_rows",), [made])


def _normalised(op: Any, x: Any) -> Any:
    return op.FusedNorm(op.FusedGemm(x, ..., label="gemm"), ...)


def _norm_check(m: Match) -> str | None:
    gemm = m.labels["gemm"]
    alone = len(gemm.results) == 1 and gemm.params.norm is None
    fits = alone and m.root.params.prologue is None
    return (
        None
        if fits
        else unsuited_reason(
            "the product already has a norm or several results, or the norm has a prologue"
        )
    )


def _norm(m: Match) -> Region:
    """Normalise the product's rows while they are in cache."""
    gemm, value = m.labels["gemm"], m.root.operands[0]
    keep = not only_read_by(m.graph, value, m.root)
    params = dataclasses.replace(gemm.params, norm=m.root.params.norm, keep_sum=keep)
    operands = (*gemm.operands, *m.root.operands[1:])
    results = (m.root.results[0], *([value] if keep else []))
    return fused_region("gemm-norm", params, operands, results, (gemm, m.root))


GEMM_NORM = Rule("gemm-norm", (_normalised,), _norm, _norm_check, keeps=True)
