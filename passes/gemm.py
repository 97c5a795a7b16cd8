"""Matrix products with constant weights, and what they absorb.

MatMul(x, W), Gemm(x, W, c)            -> FusedGemm
Add(FusedGemm(x), bias)                -> FusedGemm(x, bias)
elementwise(FusedGemm(x), a, b …)      -> FusedGemm(x, …, epilogue)
FusedNorm(FusedGemm(x))                -> FusedGemm(x, …, norm)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracea_graph.ir import Weight
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.passes.chains import IDENTITY, Spelled, inline, kind_of
from tracea_graph.passes.elementary import read_chain
from tracea_graph.passes.regions import (
    attribute,
    collapses,
    fused,
    is_f32,
    operand_producer,
    same_shape,
)
from tracea_graph.passes.storage import storage_for
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["AbsorbBias", "AbsorbEpilogue", "AbsorbNorm", "LiftGemm", "merge_columns"]


def merge_columns(weights: Sequence[Weight], name: str) -> Weight:
    """Panels of several products side by side; each N must be a multiple of 16."""
    panels = sum(w.shape[0] for w in weights)
    shape = (panels, *weights[0].shape[1:])
    return Weight(
        name, weights[0].dtype, shape, lambda: np.concatenate([w.array() for w in weights])
    )


@dataclass(frozen=True)
class LiftGemm:
    """A product with a constant matrix; ``plain`` keeps all matrices as the original has them."""

    plain: bool = False
    name: str = "gemm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("MatMul", "Gemm") or region.fused:
            return
        reason = self._check(graph, region)
        if reason is not None:
            yield Miss(self.name, region.id, reason)
            return
        gemm = region.op == "Gemm"
        transposed = gemm and attribute(region, "transB", 0) == 1
        scale = float(attribute(region, "alpha", 1.0)) if gemm else 1.0  # type: ignore[arg-type]
        stored = storage_for(graph, region.operands[1], transposed, scale, self.plain)
        if stored is None:
            yield Miss(self.name, region.id, "the matrix is needed unscaled elsewhere")
            return
        shape = graph.weights[region.operands[1]].shape
        n, k = shape if transposed else shape[::-1]
        bias = region.operands[2] if len(region.operands) > 2 else ""
        params = GemmParams(k, n, stored.layout, bool(bias))
        operands = [region.operands[0], stored.value, *([bias] if bias else [])]
        new = fused(self.name, params, operands, region.results, [region])
        weights = {stored.value: stored.weight} if stored.weight else {}
        yield Proposal(self.name, (region,), (new,), weights=weights)

    def _check(self, graph: TileGraph, region: Region) -> str | None:
        x, w = region.operands[:2]
        weight, spec = graph.weight(w), graph.spec(x)
        if weight is None:
            return "the right operand is not constant"
        if len(weight.shape) != 2:
            return "the constant operand is not a matrix"
        if not is_f32(graph, x, w):
            return "the operands are not float32"
        if spec.rank is None or spec.rank < 2:
            return "the left operand's rank is not known to be at least 2"
        if 0 in weight.shape:
            return "the constant matrix is empty"
        return self._check_gemm(graph, region) if region.op == "Gemm" else None

    def _check_gemm(self, graph: TileGraph, region: Region) -> str | None:
        if attribute(region, "transA", 0):
            return "the left operand is transposed"
        if len(region.operands) > 2 and region.operands[2]:
            transpose = attribute(region, "transB", 0) == 1
            n = graph.weights[region.operands[1]].shape[0 if transpose else 1]
            if graph.spec(region.operands[2]).shape != (n,):
                return "C is not a vector over the columns"
            if attribute(region, "beta", 1.0) != 1.0:
                return "beta is not 1"
        return None


def _gemm_behind(graph: TileGraph, value: str) -> Region | None:
    """The FusedGemm that writes ``value``, if it can still absorb what follows."""
    region = operand_producer(graph, value, "FusedGemm")
    return region if region is not None and region.params.norm is None else None


def _only_read_by(graph: TileGraph, value: str, region: Region) -> bool:
    uses = graph.uses(value)
    return not graph.is_output(value) and all(u.region.id == region.id for u in uses)


class AbsorbBias:
    """A vector added right after the product starts the accumulators instead."""

    name = "gemm-bias"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Add":
            return
        for value, bias in (region.operands, region.operands[::-1]):
            gemm = _gemm_behind(graph, value)
            if gemm is None or gemm.params.bias or gemm.params.epilogue is not None:
                continue
            spec = graph.spec(bias)
            if spec.shape != (gemm.params.n,) or not is_f32(graph, bias):
                continue
            if not _only_read_by(graph, value, region):
                yield Miss(self.name, region.id, f"the product {value!r} has other readers")
                continue
            params = dataclasses.replace(gemm.params, bias=True)
            operands = (*gemm.operands[:2], bias)
            new = fused(self.name, params, operands, region.results, (gemm, region))
            yield Proposal(self.name, (gemm, region), (new,))
            return


class AbsorbEpilogue:
    """Elementwise work on a product's result is done while its tile is in registers or L1."""

    name = "gemm-epilogue"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        spelled = read_chain(graph, region)
        if spelled is None or len(region.results) != 1:
            return
        for value in dict.fromkeys(spelled[1]):
            gemm = _gemm_behind(graph, value)
            if gemm is None:
                continue
            item = self._absorb(graph, region, spelled, value, gemm)
            yield item
            if isinstance(item, Proposal):
                return

    def _absorb(
        self, graph: TileGraph, region: Region, spelled: Spelled, value: str, gemm: Region
    ) -> Proposal | Miss:
        result = graph.spec(region.results[0])
        if not is_f32(graph, region.results[0], *spelled[1]):
            return Miss(self.name, region.id, "its operands and result are not all float32")
        if not _only_read_by(graph, value, region):
            return Miss(self.name, region.id, f"the product {value!r} has other readers")
        if not same_shape(graph.spec(value), result):
            return Miss(self.name, region.id, "the product is broadcast")
        for other in spelled[1]:
            if other != value and not collapses(graph.spec(other), result):
                shape = graph.spec(other)
                return Miss(self.name, region.id, f"operand {shape} is not regular over {result}")
        x, w, bias, extras, _ = gemm.params.split(gemm.operands)
        inner = (gemm.params.epilogue or IDENTITY, (value, *extras))
        joined = inline(spelled, value, inner)
        if joined is None:
            return Miss(self.name, region.id, "the epilogue would have too many operands")
        chain, names = joined
        kinds = tuple(kind_of(graph.spec(n), result) for n in names)
        chain = dataclasses.replace(chain, operands=kinds)
        params = dataclasses.replace(gemm.params, epilogue=chain)
        operands = (x, w, *([bias] if bias else []), *names[1:])
        new = fused(self.name, params, operands, region.results, (gemm, region))
        return Proposal(self.name, (gemm, region), (new,))


class AbsorbNorm:
    """A normalisation runs on the product's rows while they are in cache."""

    name = "gemm-norm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, NormParams) or region.params.prologue is not None:
            return
        value = region.operands[0]
        gemm = _gemm_behind(graph, value)
        if gemm is None:
            return
        keep = not _only_read_by(graph, value, region)
        params = dataclasses.replace(gemm.params, norm=region.params.norm, keep_sum=keep)
        operands = (*gemm.operands, *region.operands[1:])
        results: tuple[Any, ...] = (region.results[0], *([value] if keep else []))
        new = fused(self.name, params, operands, results, (gemm, region))
        yield Proposal(self.name, (gemm, region), (new,))
