"""Match forward from a Softmax: a NaN guard or zeros, the product with v, the merging of heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from tracea_graph.ir import product
from tracea_graph.passes.attention.attention_matcher import Matcher, NoMatch, reader, readers
from tracea_graph.passes.attention.qkv_operands import (
    AttentionOperand,
    matrices_operand,
    split_heads_operand,
)
from tracea_graph.passes.attention.score_masks import MaskTerm
from tracea_graph.passes.prove_extents import equal_as_polynomials, tail_agrees
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.rewrite import constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "AttentionOutput",
    "attention_outputs",
    "match_value_matmul",
    "skip_nan_guard",
    "skip_zeroing",
]

_SPLIT = (0, 2, 1, 3)
_DROPPING = -1e4
"""Largest score of dropped keys; after a softmax, their weights are 0 beside usual scores."""


@dataclass(frozen=True)
class AttentionOutput:
    """A value that a fused attention can write as its result, and the layout it has.

    ``covered`` are the regions after the product with v that the attention then replaces.
    """

    layout: str
    result: str
    covered: tuple[Region, ...]


def skip_nan_guard(matcher: Matcher, weights: str) -> tuple[str, bool]:
    """Skip ``Where(IsNaN(p), 0, p)``; return the value after it and whether there was one."""
    graph = matcher.graph
    test = next((r for r in readers(graph, weights) if r.op == "IsNaN"), None)
    if test is None:
        return weights, False
    guard = reader(graph, test.results[0], "Where")
    if guard is None or constant_number(graph, guard.operands[1]) != 0.0:
        raise NoMatch("a NaN test on the Softmax result does not replace NaN by zero")
    if guard.operands[2] != weights or len(readers(graph, weights)) != 2:
        raise NoMatch("a NaN test on the Softmax result does not replace NaN by zero")
    matcher.covered += [test, guard]
    return guard.results[0], True


def skip_zeroing(
    matcher: Matcher, weights: str, terms: tuple[MaskTerm, ...]
) -> tuple[str, tuple[MaskTerm, ...]]:
    """Skip ``Where(dropped, 0, p)`` if the outermost mask term drops scores by that condition.

    Returns the value after it and the terms, in which that one fills with −∞: the weights of
    dropped keys are 0 in float32 before the Where too, unless a query has no other keys.
    """
    graph = matcher.graph
    choice = reader(graph, weights, "Where")
    if choice is None or not terms or terms[0].fill is None or not terms[0].fill <= _DROPPING:
        return weights, terms
    condition, a, b = choice.operands
    shares, zero = (b, a) if terms[0].inverted else (a, b)
    same = graph.spec(choice.results[0]).shape == graph.spec(weights).shape
    zeroes = shares == weights and constant_number(graph, zero) == 0.0
    if condition != terms[0].value or not zeroes or not same:
        return weights, terms
    matcher.covered.append(choice)
    return choice.results[0], (replace(terms[0], fill=-inf), *terms[1:])


def match_value_matmul(
    matcher: Matcher, weights: str, split_heads: bool = True
) -> tuple[AttentionOperand, str]:
    """Match the product of attention weights and v; return v as an operand, and its result.

    The result is ``[…,S,D]``.  With ``split_heads`` False, v and the result are batches of
    matrices ``[N,·,D]`` without heads.  Raises NoMatch if anything else reads the attention
    weights.
    """
    graph = matcher.graph
    if not split_heads:
        product = reader(graph, weights, "MatMul")
        if product is None or product.operands[0] != weights:
            raise NoMatch("the Softmax result has readers other than a single product with v")
        matcher.covered.append(product)
        return matrices_operand(graph, product.operands[1], keys=False), product.results[0]
    again = reader(graph, weights, "Reshape")
    if again is not None and _keeps_matrices(matcher, again):
        matcher.covered.append(again)
        weights = again.results[0]
    product = reader(graph, weights, "MatMul")
    if product is None or product.operands[0] != weights:
        raise NoMatch("the Softmax result has readers other than a single product with v")
    matcher.covered.append(product)
    v = split_heads_operand(graph, product.operands[1], keys=False)
    if v.scale != 1.0:
        raise NoMatch("v is scaled")
    result = product.results[0]
    last = reader(graph, result, "Reshape")
    if len(matcher.shape(result)) == 3:
        if last is None or not _keeps_matrices(matcher, last):
            raise NoMatch("the heads are not split after the product with v")
        matcher.covered.append(last)
        result = last.results[0]
    return v, result


def _keeps_matrices(matcher: Matcher, region: Region) -> bool:
    before, after = (matcher.shape(v) for v in (region.operands[0], region.results[0]))
    return {len(before), len(after)} == {3, 4} and tail_agrees(before, after, 2)


def attention_outputs(graph: TileGraph, result: str) -> list[AttentionOutput]:
    """Return the possible ends after the head-major ``result``, the most distant first."""
    ends = [AttentionOutput("heads", result, ())]
    turn = reader(graph, result, "Transpose")
    if turn is None or attribute(turn, "perm", ()) != _SPLIT:
        return ends
    ends.insert(0, AttentionOutput("split", turn.results[0], (turn,)))
    last = reader(graph, turn.results[0], "Reshape")
    before = graph.spec(turn.results[0]).shape
    after = graph.spec(last.results[0]).shape if last else None
    if last is None or before is None or after is None or len(after) != 3:
        return ends
    merged = product(before[2:])
    if (
        merged == after[2]
        and isinstance(merged, int)
        and all(map(equal_as_polynomials, before[:2], after[:2]))
    ):
        ends.insert(0, AttentionOutput("rows", last.results[0], (turn, last)))
    return ends
