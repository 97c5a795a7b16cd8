"""Convert ONNX and ONNX Runtime attention operators.

    Attention-23 (3-D or 4-D, masks, is_causal, softcap, past and present)      -> FusedAttention
    Attention-25 (also left_window_size and right_window_size)                  -> FusedAttention
    com.microsoft MultiHeadAttention (masks, causality, past and present)       -> FusedAttention
    com.microsoft GroupQueryAttention                                           -> ``group_query``

A Concat that stays in the graph joins past keys and values to new ones, because the graph needs
its result (``kv_cache``).  For a query whose keys are all masked, ONNX Runtime's Attention returns
zeros.  Its MultiHeadAttention sets causally masked scores to the lowest float32, and returns the
softmax of these.
Source: ONNX operator ``Attention``, opsets 23 to 25; ONNX Runtime's contributed operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import inf, sqrt

from tracea_graph.ir import DType
from tracea_graph.ops.attention import LOWEST, UNLIMITED
from tracea_graph.passes.attention.attention import attention_params, attention_proposal
from tracea_graph.passes.attention.attention_matcher import Matcher, NoMatch, numeric_attribute
from tracea_graph.passes.attention.group_query import GROUP_QUERY, convert_group_query
from tracea_graph.passes.attention.kv_cache import key_padding_bias, kv_operand
from tracea_graph.passes.attention.qkv_operands import (
    AttentionOperand,
    rows_operand,
    split_heads_operand,
)
from tracea_graph.passes.attention.score_masks import Masks, MaskTerm
from tracea_graph.passes.attention.softmax_consumers import AttentionOutput, attention_outputs
from tracea_graph.passes.attention.visible_keys import (
    counted_padding,
    visible_key_mask,
    whole_mask,
)
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["AttentionOp"]

_MULTI_HEAD = "com.microsoft::MultiHeadAttention"
_UNMODELLED = {
    "com.microsoft::DecoderMaskedMultiHeadAttention": "it appends to its own padded cache",
}
_MULTI_HEAD_INPUTS = (
    "query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key",
    "past_value", "past_sequence_length", "cache_indirection",
)  # fmt: skip
_MULTI_HEAD_UNMODELLED = (_MULTI_HEAD_INPUTS[3], *_MULTI_HEAD_INPUTS[8:])
_AS_FUNCTION = 25
"""Opset from which ONNX Runtime runs the function body of Attention."""
_MODELLED = frozenset(
    ("is_causal", "kv_num_heads", "left_window_size", "q_num_heads", "qk_matmul_output_mode",
     "right_window_size", "scale", "softcap", "softmax_precision")
)  # fmt: skip
"""Attributes of Attention until opset 25; later ones may change which keys are seen."""
_FILTER = -10000.0
"""Default of ``mask_filter_value``, the number added to the scores of padding keys."""


class AttentionOp:
    """Convert an attention operator to FusedAttention."""

    name = "attention-op"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op in _UNMODELLED:
            yield Miss(self.name, region.id, f"{region.op}: {_UNMODELLED[region.op]}")
        if region.op not in ("Attention", _MULTI_HEAD, GROUP_QUERY) or not region.results:
            return
        try:
            if region.op == GROUP_QUERY:
                yield convert_group_query(self.name, graph, region)
                return
            yield (self._standard if region.op == "Attention" else self._multi_head)(graph, region)
        except NoMatch as why:
            yield Miss(self.name, region.id, str(why))

    def _standard(self, graph: TileGraph, node: Region) -> Proposal:
        inputs, results = _padded(node.operands, 7), _padded(node.results, 4)
        past, present = inputs[4:6], results[1:3]
        if results[3] and (graph.uses(results[3]) or graph.is_output(results[3])):
            raise NoMatch("its output of attention scores is used")
        if other := sorted({*node.node.attrs} - _MODELLED):
            raise NoMatch(f"it has the attribute {other[0]}")
        flat = graph.spec(inputs[0]).rank == 3
        counts = [int(numeric_attribute(node, f"{x}_num_heads")) for x in ("q", "kv")]
        if flat and 0 in counts:
            raise NoMatch("the number of heads is not given")
        if any(past) and (inputs[6] or not all(past)):
            raise NoMatch(
                "it has past keys without past values, the reverse, or both a past and key counts"
            )
        made = Masks(graph, (), node.results[0])
        q = (
            rows_operand(graph, inputs[0], counts[0])
            if flat
            else split_heads_operand(graph, inputs[0], False)
        )
        k, v = (kv_operand(made, inputs[1 + i], counts[1], past[i], present[i]) for i in (0, 1))
        masks = dataclasses.replace(made, full=(q.batch, q.heads, q.length, k.length))
        window = _limit_keys(masks, inputs, _window(node))
        if inputs[3]:
            boolean = graph.spec(inputs[3]).dtype is DType.BOOL
            mask = whole_mask(masks, inputs[3], inputs[0], inputs[1], past[0])
            masks.take(MaskTerm(mask, -inf if boolean else None))
        ends = (
            [AttentionOutput("rows", results[0], ())]
            if flat
            else attention_outputs(graph, results[0])
        )
        return self._proposal(
            Matcher(graph, [node]), (q, k, v), masks, ends, _zero_rows(graph.opset), window
        )

    def _multi_head(self, graph: TileGraph, node: Region) -> Proposal:
        inputs, results = _padded(node.operands, 10), _padded(node.results, 4)
        for name, value in zip(_MULTI_HEAD_INPUTS, inputs, strict=True):
            if value and name in _MULTI_HEAD_UNMODELLED:
                raise NoMatch(f"it has a {name}")
        if results[3]:
            raise NoMatch("its output of attention scores is used")
        ranks = [graph.spec(v).rank for v in inputs[:3] if v]
        if ranks not in ([3, 3, 3], [3, 4, 4]):
            raise NoMatch("q, k and v are packed in one tensor")
        heads, past = int(numeric_attribute(node, "num_heads")), inputs[6:8]
        if heads < 1:
            raise NoMatch("the number of heads is not given")
        if any(past) and (not all(past) or ranks[1] == 4):
            raise NoMatch("it has only one of past keys and values, or no new keys to append")
        made = Masks(graph, (), node.results[0])
        q = rows_operand(graph, inputs[0], heads)
        k, v = (kv_operand(made, inputs[1 + i], heads, past[i], results[1 + i]) for i in (0, 1))
        masks = dataclasses.replace(made, full=(q.batch, q.heads, q.length, k.length))
        ordered = bool(attribute(node, "unidirectional", 0))
        if ordered:
            if not past[0] and not equal_as_polynomials(q.length, k.length):
                raise NoMatch(
                    "it is causal, but the numbers of queries and keys are not known to be equal"
                )
            masks.order("bottom", LOWEST)
        if inputs[4]:
            masks.take(
                _padding(
                    masks,
                    inputs,
                    numeric_attribute(node, "mask_filter_value", _FILTER),
                    ordered,
                )
            )
        if inputs[5]:
            masks.take(MaskTerm(inputs[5]))
        ends = [AttentionOutput("rows", node.results[0], ())]
        return self._proposal(Matcher(graph, [node]), (q, k, v), masks, ends)

    def _proposal(
        self,
        matcher: Matcher,
        qkv: tuple[AttentionOperand, AttentionOperand, AttentionOperand],
        masks: Masks,
        ends: list[AttentionOutput],
        zero_rows: str = "none",
        window: tuple[int, int] | None = None,
    ) -> Proposal:
        node = matcher.covered[0]
        if any(o.scale != 1.0 for o in qkv[2:]):
            raise NoMatch("v is scaled")
        q, *kv = qkv
        if q.heads % kv[0].heads == 0:  # the operator repeats heads itself
            kv = [dataclasses.replace(o, shared=q.heads // o.heads) for o in kv]
        qkv = (q, kv[0], kv[1])
        scale = _scale(node, q.size) * q.scale * kv[0].scale
        masking, softcap = masks.done(), numeric_attribute(node, "softcap")
        presents = tuple(v for v in node.results[1:3] if v)
        for tail in ends:
            params = attention_params(
                matcher.graph,
                qkv,
                masking,
                tail.layout,
                scale,
                softcap,
                zero_rows,
                masks.specs,
                window,
            )
            try:
                return attention_proposal(
                    self.name, matcher, params, qkv, masks, masking, tail, presents
                )
            except NoMatch:
                if tail is ends[-1]:
                    raise
        raise AssertionError("an attention has at least one end")


def _scale(node: Region, size: int) -> float:
    """Return the factor of an operator's scores.  Raises NoMatch for ONNX's if it is not positive.

    ONNX multiplies q and k by its square root, and 0 is no default of it.
    """
    usual = 1 / sqrt(size)
    if node.op != "Attention":
        return numeric_attribute(node, "scale") or usual
    given = numeric_attribute(node, "scale", usual)
    if not given > 0:
        raise NoMatch(f"its scale is {given:g}")
    return given


def _window(node: Region) -> tuple[int, int]:
    """Return how many keys a query sees before and after its position; −1: no limit."""
    left, right = (int(numeric_attribute(node, f"{x}_window_size", -1)) for x in ("left", "right"))
    return left, 0 if attribute(node, "is_causal", 0) else right


def _limit_keys(
    masks: Masks, inputs: tuple[str, ...], window: tuple[int, int]
) -> tuple[int, int] | None:
    """Add the limits of visible keys to ``masks``, or return those that kernels have as a window.

    Kernels put queries at the last keys, or at the first ones in a causal order.
    """
    past, counts, (left, right) = inputs[4], inputs[6], window
    new = (masks.graph.spec(inputs[1]).shape or ("", ""))[-2]  # rank 3 or 4
    known = equal_as_polynomials(masks.full[2], new) or (right == 0 and not past)
    if counts or (max(window) >= 0 and not known):
        mask = visible_key_mask(masks, inputs[0], inputs[1], past, counts, window)
        masks.take(MaskTerm(mask, -inf))
        return None
    if right == 0:
        masks.order("bottom" if past else "top")
    near = [UNLIMITED if side < 0 else min(side, UNLIMITED) for side in window]
    limited = left >= 0 or right > 0
    return (near[0], near[1]) if limited else None


def _zero_rows(opset: int) -> str:
    """Return the mode for a query whose keys are all masked.

    ONNX Runtime's kernel treats a score of the lowest float32 or −inf as masked.  At opsets
    without a kernel, it executes the operator's function body, which treats only −inf as masked.
    """
    return "masked" if opset < _AS_FUNCTION else "infinite"


def _padding(masks: Masks, inputs: tuple[str, ...], lowered: float, ordered: bool) -> MaskTerm:
    """Return the mask term of padding: add ``lowered`` to the scores of padding keys.

    ``inputs`` are those of a MultiHeadAttention; its mask holds the keys or counts those of items.
    Keys that causality masks get ``LOWEST`` instead; a bias added to it vanishes in float32.
    Raises NoMatch if ``lowered`` is below ``LOWEST`` and the attention is causal (``ordered``).
    """

    def bias(number: float | None) -> str:
        if masks.graph.spec(inputs[4]).rank != 1:
            return key_padding_bias(masks, inputs[4], number)
        q, k, past = inputs[0], inputs[1], inputs[6]
        return counted_padding(masks, q, k, past, inputs[4], number)

    if not ordered or lowered > LOWEST:
        return MaskTerm(bias(lowered))
    if lowered != LOWEST:
        raise NoMatch("it is causal, and its mask_filter_value is below the lowest float32")
    return MaskTerm(bias(None), LOWEST)


def _padded(values: tuple[str, ...], count: int) -> tuple[str, ...]:
    return (*values, *("",) * (count - len(values)))
