"""Attention as exporters spell it, and the merge of its projections.

    q, k, v [B,S,H·D] -> Reshape, Transpose -> MatMul -> scale -> mask -> Softmax -> MatMul
      -> Transpose, Reshape                                         -> FusedAttention
    FusedAttention(x·Wq, x·Wk, x·Wv)                                -> FusedAttention(x·[Wq Wk Wv])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import DType, Extent, TensorSpec, Weight
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.gemm import PANEL
from tracea_graph.passes.gemm import merge_columns
from tracea_graph.passes.regions import attribute, fused, is_f32, operand_producer
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MergeProjections", "RecogniseAttention"]

_SPLIT = (0, 2, 1, 3)
_SPLIT_KEYS = (0, 2, 3, 1)
_SWAP = (0, 1, 3, 2)
_NEGLIGIBLE = -1e4
"""A score at or below this never contributes beside any other."""


class _Unfit(Exception):
    """The graph around a Softmax is no attention we model; the message says why."""


@dataclass
class _Walk:
    """Steps from value to value, remembering what was covered and the scale found on the way."""

    graph: TileGraph
    covered: list[Region]
    scale: float = 1.0

    def through(self, value: str, op: str, why: str) -> Region:
        region = operand_producer(self.graph, value, op)
        if region is None:
            raise _Unfit(why)
        self.covered.append(region)
        return region

    def unscale(self, value: str) -> str:
        """Pass multiplications and divisions by a constant."""
        while (region := self.graph.producer(value)) is not None and region.op in ("Mul", "Div"):
            a, b = region.operands
            factor = constant_number(self.graph, b)
            if factor is None and region.op == "Mul":
                a, factor = b, constant_number(self.graph, a)
            if not factor:
                return value
            self.covered.append(region)
            self.scale *= factor if region.op == "Mul" else 1 / factor
            value = a
        return value

    def heads(self, value: str, keys: bool) -> tuple[str, int, int]:
        """The ``[B,S,H·D]`` value behind a head-major one, with H and D."""
        value = self.unscale(value)
        region = self.through(value, "Transpose", "an operand is not split into heads")
        perm = attribute(region, "perm", ())
        if keys and perm == _SWAP:
            value = self.unscale(region.operands[0])
            region = self.through(value, "Transpose", "the keys are not split into heads")
            perm, keys = attribute(region, "perm", ()), False
        if perm != (_SPLIT_KEYS if keys else _SPLIT):
            raise _Unfit(f"heads are transposed by {perm}")
        source = self.unscale(region.operands[0])
        split = self.through(source, "Reshape", "heads do not come from a Reshape")
        heads, size = self._split_of(split)
        return self.unscale(split.operands[0]), heads, size

    def _split_of(self, reshape: Region) -> tuple[int, int]:
        before = self.graph.spec(reshape.operands[0]).shape
        after = self.graph.spec(reshape.results[0]).shape
        if before is None or after is None or len(before) != 3 or len(after) != 4:
            raise _Unfit("heads are not split from a rank-3 tensor")
        heads, size = after[2:]
        if not isinstance(heads, int) or not isinstance(size, int):
            raise _Unfit("the number or size of heads is not known")
        if before[:2] != after[:2] or before[2] != heads * size:
            raise _Unfit(f"the Reshape from {before} to {after} is no head split")
        return heads, size


class RecogniseAttention:
    """Scaled dot-product attention around one Softmax."""

    name = "attention"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Softmax":
            return
        try:
            yield self._build(graph, region)
        except _Unfit as why:
            yield Miss(self.name, region.id, str(why))

    def _build(self, graph: TileGraph, softmax: Region) -> Proposal:
        walk = _Walk(graph, [softmax])
        rank = graph.spec(softmax.operands[0]).rank
        if attribute(softmax, "axis", -1 if graph.opset >= 13 else 1) not in (-1, (rank or 0) - 1):
            raise _Unfit("the Softmax is not over the last axis")
        scores, mask, kind, fill = self._mask(walk, softmax.operands[0])
        product = walk.through(walk.unscale(scores), "MatMul", "no product feeds the Softmax")
        q, heads, size = walk.heads(product.operands[0], keys=False)
        k, heads_k, size_k = walk.heads(product.operands[1], keys=True)
        v, heads_v, size_v, last = self._tail(walk, softmax)
        if not heads == heads_k == heads_v or size != size_k:
            raise _Unfit("q, k and v have different heads")
        operands = (q, k, v, mask) if mask else (q, k, v)
        specs = [graph.spec(x) for x in operands]
        if not is_f32(graph, q, k, v):
            raise _Unfit("q, k and v are not float32")
        self._check_mask(graph, mask, kind, heads, specs)
        widths = (heads * size, heads * size, heads * size_v)
        params = AttentionParams(
            heads, size, size_v, walk.scale, kind, widths=widths, fill=fill
        )
        spec = params.infer(specs)[0]
        _check_interior(graph, walk.covered, last)
        new = fused(self.name, params, operands, last.results, walk.covered)
        return Proposal(self.name, tuple(walk.covered), (new,), {last.results[0]: spec})

    def _mask(self, walk: _Walk, value: str) -> tuple[str, str, str, float]:
        """Scores, mask, mask kind and fill of what the Softmax reads."""
        graph = walk.graph
        region = graph.producer(value)
        if region is not None and region.op == "Add":
            a, b = region.operands
            if not _comes_from(graph, a, "MatMul"):
                a, b = b, a
            if _comes_from(graph, a, "MatMul"):
                walk.covered.append(region)
                return a, b, "add", float("-inf")
        if region is not None and region.op == "Where":
            keep, scores, fill = region.operands
            number = constant_number(graph, fill)
            if number is None or number > _NEGLIGIBLE:
                raise _Unfit("a boolean mask does not fill with a very low constant")
            walk.covered.append(region)
            return scores, keep, "bool", number
        return value, "", "none", float("-inf")

    def _tail(self, walk: _Walk, softmax: Region) -> tuple[str, int, int, Region]:
        """The v value, its heads, and the region that merges the heads again."""
        graph = walk.graph
        product = _reader(graph, softmax.results[0], "MatMul")
        if product is None or product.operands[0] != softmax.results[0]:
            raise _Unfit("the Softmax does not feed one product with v")
        walk.covered.append(product)
        scale, walk.scale = walk.scale, 1.0
        v, heads, size = walk.heads(product.operands[1], keys=False)
        if walk.scale != 1.0:
            raise _Unfit("v is scaled")
        walk.scale = scale
        transpose = _reader(graph, product.results[0], "Transpose")
        if transpose is None or attribute(transpose, "perm", ()) != _SPLIT:
            raise _Unfit("the heads are not merged by a Transpose")
        last = _reader(graph, transpose.results[0], "Reshape")
        before = graph.spec(transpose.results[0]).shape
        after = graph.spec(last.results[0]).shape if last else None
        if last is None or before is None or after is None or len(after) != 3:
            raise _Unfit("the heads are not merged into a rank-3 tensor")
        if after[2] != heads * size or after[:2] != before[:2]:
            raise _Unfit(f"the Reshape from {before} to {after} does not merge the heads")
        walk.covered += [transpose, last]
        return v, heads, size, last

    def _check_mask(
        self, graph: TileGraph, mask: str, kind: str, heads: int, specs: list[TensorSpec]
    ) -> None:
        if not mask:
            return
        spec = graph.spec(mask)
        want = DType.BOOL if kind == "bool" else DType.F32
        if spec.dtype is not want or spec.shape is None or len(spec.shape) > 4:
            raise _Unfit(f"the mask is {spec}")
        batch, queries = (specs[0].shape or ())[:2]
        keys = (specs[1].shape or ())[1]
        full: tuple[Extent, ...] = (batch, heads, queries, keys)
        for have, need in zip(spec.shape[::-1], full[::-1]):
            if have not in (1, need):
                raise _Unfit(f"the mask {spec} does not provably broadcast to {full}")
        if spec.shape and spec.shape[-1] != keys:
            raise _Unfit("the mask does not vary over the keys")


def _check_interior(graph: TileGraph, covered: list[Region], last: Region) -> None:
    inside = {r.id for r in covered}
    for region in covered:
        for value in region.writes if region.id != last.id else ():
            if graph.is_output(value) or any(u.region.id not in inside for u in graph.uses(value)):
                raise _Unfit(f"the result {value!r} of {region.op} has other readers")


def _comes_from(graph: TileGraph, value: str, op: str) -> bool:
    """True if ``value`` is an ``op``'s result, scaled by constants or not."""
    return operand_producer(graph, _Walk(graph, []).unscale(value), op) is not None


def _reader(graph: TileGraph, value: str, op: str) -> Region | None:
    """The only region that reads ``value``, if it is an ``op``."""
    use = graph.only_use(value)
    return use.region if use is not None and use.region.op == op else None


class MergeProjections:
    """Q, K and V of one input become one product whose columns attention reads in place."""

    name = "merge-projections"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, AttentionParams) or any(region.params.offsets):
            return
        gemms = [operand_producer(graph, v, "FusedGemm") for v in region.operands[:3]]
        q, k, v = gemms
        if q is None or k is None or v is None or len({g.id for g in (q, k, v)}) < 3:
            return
        parts = (q, k, v)
        if (reason := self._check(graph, region, parts)) is not None:
            yield Miss(self.name, region.id, reason)
            return
        yield self._build(graph, region, parts)

    def _check(self, graph: TileGraph, region: Region, parts: tuple[Region, ...]) -> str | None:
        if len({g.operands[0] for g in parts}) > 1:
            return "the projections read different inputs"
        if any(g.params.epilogue or g.params.norm for g in parts):
            return "a projection has an epilogue"
        if any(g.params.layout != "panels" for g in parts):
            return "the projections' matrices stay as they are"
        if any(g.params.n % PANEL for g in parts) or len({g.params.bias for g in parts}) > 1:
            return "the projections' columns do not fall on panel borders"
        if any(graph.only_use(g.results[0]) is None for g in parts):
            return "a projection has other readers"
        if parts[0].params.bias and any(graph.weight(g.operands[2]) is None for g in parts):
            return "a bias is not constant"
        return None

    def _build(
        self, graph: TileGraph, region: Region, parts: tuple[Region, ...]
    ) -> Proposal:
        first = parts[0]
        merged = f"{first.results[0]}_qkv"
        weights = {}
        panels = merge_columns([graph.weights[g.operands[1]] for g in parts], f"{merged}_panels")
        weights[panels.name] = panels
        operands = [first.operands[0], panels.name]
        total = sum(g.params.n for g in parts)
        if first.params.bias:
            biases = [graph.weights[g.operands[2]] for g in parts]
            bias = Weight(
                f"{merged}_bias",
                DType.F32,
                (total,),
                lambda: np.concatenate([b.array().reshape(-1) for b in biases]),
            )
            weights[bias.name] = bias
            operands.append(bias.name)
        params = dataclasses.replace(first.params, n=total)
        gemm = fused(self.name, params, operands, (merged,), parts)
        spec = params.infer([graph.spec(first.operands[0])])[0]
        offsets = (0, parts[0].params.n, parts[0].params.n + parts[1].params.n)
        attention = fused(
            f"{self.name}-read",
            dataclasses.replace(region.params, offsets=offsets, widths=(total,) * 3),
            (merged, merged, merged, *region.operands[3:]),
            region.results,
            [region],
        )
        old = (*parts, region)
        return Proposal(self.name, old, (attention, gemm), {merged: spec}, weights)
