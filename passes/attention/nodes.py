"""Attention that is one operator already.

    Attention-23 (3-D or 4-D, masks, is_causal, softcap, past and present)   -> FusedAttention
    com.microsoft MultiHeadAttention of q, k, v and a bias of scores         -> FusedAttention
    com.microsoft GroupQueryAttention                                        -> see grouped

Past keys and values are joined by a Concat that stays, since the graph needs its result.  Source:
ONNX operator ``Attention``, opsets 23 and 24; ONNX Runtime's contributed operators.  With the
operator's own masks a query without keys gives zeros in ONNX Runtime.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import inf, sqrt

from tracea_graph.ir import DType, Node, TensorSpec, combine
from tracea_graph.passes.attention.attention import attention_params, attention_proposal
from tracea_graph.passes.attention.grouped import GROUP_QUERY, group_query
from tracea_graph.passes.attention.masks import Masks, Term
from tracea_graph.passes.attention.operands import Operand, heads_behind, rows_of
from tracea_graph.passes.attention.tail import Tail, tails
from tracea_graph.passes.attention.walk import Unfit, Walk, number
from tracea_graph.passes.regions import attribute, is_f32
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["LiftAttention"]

_MULTI_HEAD = "com.microsoft::MultiHeadAttention"
_UNMODELLED = {
    "com.microsoft::DecoderMaskedMultiHeadAttention": "it appends to a padded cache of its own",
}
_MULTI_HEAD_INPUTS = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias",
                      "past_key", "past_value")  # fmt: skip


class LiftAttention:
    """An attention operator becomes the region the kernels run."""

    name = "attention-op"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op in _UNMODELLED:
            yield Miss(self.name, region.id, f"{region.op}: {_UNMODELLED[region.op]}")
        if region.op not in ("Attention", _MULTI_HEAD, GROUP_QUERY) or not region.results:
            return
        try:
            if region.op == GROUP_QUERY:
                yield group_query(self.name, graph, region)
                return
            yield (self._standard if region.op == "Attention" else self._multi_head)(graph, region)
        except Unfit as why:
            yield Miss(self.name, region.id, str(why))

    def _standard(self, graph: TileGraph, node: Region) -> Proposal:
        inputs, results = _padded(node.operands, 7), _padded(node.results, 4)
        if inputs[6]:
            raise Unfit("the numbers of keys differ from sequence to sequence")
        if results[3] and (graph.uses(results[3]) or graph.is_output(results[3])):
            raise Unfit("the scores themselves are read too")
        flat = graph.spec(inputs[0]).rank == 3
        counts = [int(number(node, f"{x}_num_heads")) for x in ("q", "kv", "kv")]
        if flat and 0 in counts:
            raise Unfit("the number of heads is not given")
        if any(inputs[4:6]) and (flat or not all(inputs[4:6])):
            raise Unfit("past keys and values are joined only to heads of rank 4")
        walk, joined = Walk(graph, [node]), Masks(graph, (), node.results[0])
        q, k, v = (
            rows_of(graph, value, count) if flat
            else _joined(joined, value, past, present) if past
            else heads_behind(graph, value, keys=False)
            for value, count, past, present in zip(
                inputs[:3], counts, ("", *inputs[4:6]), ("", *results[1:3]), strict=True)
        )  # fmt: skip
        if not any(inputs[4:6]) and any(results[1:3]):
            raise Unfit("present keys and values are copies")
        masks = dataclasses.replace(joined, full=(q.batch, q.heads, q.length, k.length))
        if attribute(node, "is_causal", 0):
            masks.order("bottom" if inputs[4] else "top")
        if inputs[3]:
            boolean = graph.spec(inputs[3]).dtype is DType.BOOL
            masks.take(Term(inputs[3], -inf) if boolean else Term(inputs[3]))
        scale = number(node, "scale") or 1 / sqrt(q.size)
        ends = [Tail("rows", results[0], ())] if flat else tails(graph, results[0])
        cap = number(node, "softcap")
        others = tuple(v for v in results[1:3] if v)
        return self._proposal(walk, (q, k, v), masks, ends, scale, cap, others)

    def _multi_head(self, graph: TileGraph, node: Region) -> Proposal:
        inputs = _padded(node.operands, 10)
        for name, value in zip(_MULTI_HEAD_INPUTS, inputs, strict=False):
            if value and name not in ("query", "key", "value", "attention_bias"):
                raise Unfit(f"it has a {name}")
        if any(inputs[8:]) or len(node.writes) > 1 or attribute(node, "unidirectional", 0):
            raise Unfit("it keeps a cache or an order")
        if not all(inputs[:3]) or any(graph.spec(v).rank != 3 for v in inputs[:3]):
            raise Unfit("q, k and v are packed in one tensor")
        heads = int(number(node, "num_heads"))
        if heads < 1:
            raise Unfit("the number of heads is not given")
        q, k, v = (rows_of(graph, value, heads) for value in inputs[:3])
        masks = Masks(graph, (q.batch, q.heads, q.length, k.length), node.results[0])
        if inputs[5]:
            masks.take(Term(inputs[5]))
        scale = number(node, "scale") or 1 / sqrt(q.size)
        ends = [Tail("rows", node.results[0], ())]
        return self._proposal(Walk(graph, [node]), (q, k, v), masks, ends, scale)

    def _proposal(
        self,
        walk: Walk,
        qkv: tuple[Operand, Operand, Operand],
        masks: Masks,
        ends: list[Tail],
        scale: float,
        softcap: float = 0.0,
        others: tuple[str, ...] = (),
    ) -> Proposal:
        if any(o.scale != 1.0 for o in qkv[2:]):
            raise Unfit("v is scaled")
        q, *kv = qkv
        if q.heads % kv[0].heads == 0:  # the operator repeats heads itself
            kv = [dataclasses.replace(o, shared=q.heads // o.heads) for o in kv]
        qkv = (q, kv[0], kv[1])
        scale *= q.scale * kv[0].scale
        masking = masks.done()
        for tail in ends:
            params = attention_params(
                walk.graph, qkv, masking, tail.layout, scale, softcap, masking.lowest == -inf
            )
            try:
                return attention_proposal(
                    self.name, walk, params, qkv, masks, masking, tail, others
                )
            except Unfit:
                if tail is ends[-1]:
                    raise
        raise AssertionError("an attention has at least one end")


def _padded(values: tuple[str, ...], count: int) -> tuple[str, ...]:
    return (*values, *("",) * (count - len(values)))


def _joined(new: Masks, value: str, past: str, present: str) -> Operand:
    """The Concat of past and new heads along the sequence, as an operand; ``new`` takes it."""
    before, after = new.graph.spec(past).shape, new.graph.spec(value).shape
    if before is None or after is None or len(before) != 4 or len(after) != 4:
        raise Unfit("past keys and values are joined only to heads of rank 4")
    if not is_f32(new.graph, past, value):
        raise Unfit("q, k and v are not float32")
    heads, size = after[1], after[3]
    if not isinstance(heads, int) or not isinstance(size, int):
        raise Unfit("the number or size of heads is not known")
    name = present or f"{value}_joined"
    length = combine("add", before[2], after[2])
    node = Node("Concat", (past, value), (name,), {"axis": 2})
    new.regions.append(Region(f"join:{name}", "Concat", node.inputs, node.outputs, (node,)))
    new.specs[name] = TensorSpec(DType.F32, (after[0], heads, length, size))
    return Operand(name, "heads", after[0], length, heads, size)
