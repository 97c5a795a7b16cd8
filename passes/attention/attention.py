"""Match attention as exporters decompose it.

    q, k, v -> split heads -> MatMul -> scale -> softcap -> masks -> Softmax -> MatMul -> merge
                                                                                -> FusedAttention

If heads are not a separate axis, every matrix counts as an item with one head.  ``operands``
traces q, k and v, ``masks`` reads the masks and ``consumers`` follows the merging of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.attention_tiles import active_tile_map, grid_of
from tracea_graph.passes.attention.attention_matcher import Matcher, NoMatch, check_interior
from tracea_graph.passes.attention.match_scores import match_scores
from tracea_graph.passes.attention.qkv_operands import (
    AttentionOperand,
    head_major_operand,
    matrices_operand,
    split_heads_operand,
)
from tracea_graph.passes.attention.score_masks import Masking, Masks, split_tiles
from tracea_graph.passes.attention.softmax_consumers import (
    AttentionOutput,
    attention_outputs,
    match_value_matmul,
    skip_nan_guard,
    skip_zeroing,
)
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    is_f32,
    with_private_producers,
)
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph, TilePattern

__all__ = ["Attention", "attention_params", "attention_proposal"]

_MAX_HEAD = 256
"""Largest head size that kernels support."""
_RANGE = 11
"""Opset of Range, which the ONNX function body needs to compute positions."""


class Attention:
    """Match scaled dot-product attention around one Softmax."""

    name = "attention"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Softmax":
            return
        try:
            yield self._build(graph, region)
        except NoMatch as why:
            yield Miss(self.name, region.id, str(why))

    def _build(self, graph: TileGraph, softmax: Region) -> Proposal:
        rank = graph.spec(softmax.operands[0]).rank
        if attribute(softmax, "axis", -1 if graph.opset >= 13 else 1) not in (-1, (rank or 0) - 1):
            raise NoMatch("the Softmax is not over the last axis")
        try:
            return self._attention(Matcher(graph, [softmax]), softmax, split_heads_operand)
        except NoMatch as why:
            if rank != 3:
                raise
            try:
                return self._attention(Matcher(graph, [softmax]), softmax, matrices_operand)
            except NoMatch:
                raise why from None

    def _attention(
        self, matcher: Matcher, softmax: Region, operand: Callable[..., AttentionOperand]
    ) -> Proposal:
        """Match one attention; ``operand`` reads q, k and v, as split heads or as matrices."""
        graph, split_heads = matcher.graph, operand is split_heads_operand
        scores = match_scores(matcher, softmax.operands[0])
        q = operand(graph, scores.product.operands[0], keys=False)
        k = operand(graph, scores.product.operands[1], keys=True)
        scaled = f"{softmax.results[0]}_queries" if scores.factor else ""
        if scaled:
            q = head_major_operand(graph, scores.product.operands[0])
        weights, guarded = skip_nan_guard(matcher, softmax.results[0])
        zeroed, steps = (
            (weights, scores.terms) if guarded else skip_zeroing(matcher, weights, scores.terms)
        )
        zero_rows = "masked" if zeroed != weights else "guarded" if guarded else "none"
        v, result = match_value_matmul(matcher, zeroed, split_heads)
        masks = Masks(graph, (q.batch, q.heads, q.length, k.length), result)
        if scaled:
            masks.scale_by_head(q.value, scores.factor, scaled)
            q = replace(q, value=scaled)
        terms, pattern = split_tiles(graph, steps)
        for term in reversed(terms):
            if term.flat and split_heads:
                why = f"the mask {graph.spec(term.value)} has one common axis for batch and heads"
                raise NoMatch(why)
            masks.take(masks.over_heads(term) if term.flat else term)
        masking = masks.done()
        scale = matcher.scale * q.scale * k.scale
        ends = (
            attention_outputs(graph, result)
            if split_heads
            else [AttentionOutput("rows", result, ())]
        )
        for tail in ends:
            params = attention_params(
                graph, (q, k, v), masking, tail.layout, scale, scores.softcap,
                zero_rows, (scaled,),
            )  # fmt: skip
            if pattern is not None:
                params = replace(params, tiles=grid_of(pattern))
            try:
                return attention_proposal(
                    self.name, matcher, params, (q, k, v), masks, masking, tail, (), pattern
                )
            except NoMatch:
                if tail is ends[-1]:
                    raise
        raise AssertionError("an attention has at least one end")


def attention_params(
    graph: TileGraph,
    qkv: tuple[AttentionOperand, AttentionOperand, AttentionOperand],
    masking: Masking,
    result: str,
    scale: float,
    softcap: float = 0.0,
    zero_rows: str = "none",
    written: Collection[str] = (),
    window: tuple[int, int] | None = None,
) -> AttentionParams:
    """Return the parameters of an attention op that reads the operands q, k and v.

    ``written`` names operands that new regions compute as float32.  Raises NoMatch unless the
    types, heads and extents of q, k and v are proven to match.
    """
    q, k, v = qkv
    if k.heads != v.heads or k.shared != v.shared or q.shared != 1 or q.size != k.size:
        raise NoMatch("q, k and v differ in the number or size of heads")
    if k.heads * k.shared != q.heads and not k.heads == 1 == k.shared:
        raise NoMatch("q, k and v differ in the number or size of heads")
    if not is_f32(graph, *(o.value for o in qkv if o.value not in written)):
        raise NoMatch(Reason("q, k and v are not float32", Code.UNSUPPORTED_DTYPE))
    agree = equal_as_polynomials(k.length, v.length) and equal_as_polynomials(k.batch, v.batch)
    if not agree or not equal_as_polynomials(q.batch, k.batch):
        raise NoMatch(
            Reason(
                "q, k and v are not proven to have equal batch sizes and key counts",
                Code.UNKNOWN_SHAPE,
            )
        )
    if max(q.size, v.size) > _MAX_HEAD:
        raise NoMatch(f"heads of {max(q.size, v.size)} columns are wider than {_MAX_HEAD}")
    if (masking.causal != "none" or window) and graph.opset < _RANGE:
        raise NoMatch(f"its function body needs Range, which requires opset {_RANGE}")
    return AttentionParams(
        q.heads, q.size, v.size, scale, masking.kind,
        offsets=(q.offset, k.offset, v.offset), widths=(q.width, k.width, v.width),
        fill=masking.fill, zero_rows=zero_rows,
        kv_heads=k.heads if k.heads != q.heads else 0,
        layouts=(q.layout, k.layout, v.layout, result),
        causal=masking.causal, softcap=softcap, window=window,
    )  # fmt: skip


def attention_proposal(
    rule: str,
    matcher: Matcher,
    params: AttentionParams,
    qkv: tuple[AttentionOperand, AttentionOperand, AttentionOperand],
    masks: Masks,
    masking: Masking,
    tail: AttentionOutput,
    others: tuple[str, ...] = (),
    pattern: TilePattern | None = None,
) -> Proposal:
    """Propose to replace the covered regions by an attention op and regions that compute its mask.

    ``others`` are further results of the covered regions, which regions of ``masks`` write
    instead.  ``pattern`` holds score tiles that the user has set, if any.  Raises NoMatch if a
    region outside reads a covered value.
    """
    graph = matcher.graph
    active = active_tile_map(pattern) if pattern else None
    weights = masks.weights if active is None else {**masks.weights, active.name: active}
    external = (*(o.value for o in qkv), *([masking.value] if masking.value else []))
    kept = {*external, *(v for r in (*masks.regions, *masks.shared) for v in r.reads)}
    covered = with_private_producers(graph, [*matcher.covered, *tail.covered], tuple(kept))
    check_interior(graph, covered, (tail.result, *others))
    known = {v: masks.specs.get(v) or graph.spec(v) for v in external}
    specs = {**masks.specs, tail.result: params.infer([known[v] for v in external])[0]}
    operands = external if active is None else (*external, active.name)
    new = fused_region(rule, params, operands, (tail.result,), covered)
    return Proposal(
        rule, tuple(covered), (new, *masks.regions), specs, weights, step=True,
        shared=tuple(masks.shared),
    )  # fmt: skip
