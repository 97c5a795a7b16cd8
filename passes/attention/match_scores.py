"""Match backwards from a Softmax to the product of q and k: masks, softcap and scale."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracea_graph.ir import Extent
from tracea_graph.passes.attention.attention_matcher import Matcher, NoMatch, strip_scale
from tracea_graph.passes.attention.score_masks import MaskTerm
from tracea_graph.passes.prove_extents import tail_agrees
from tracea_graph.passes.region_helpers import is_f32, operand_producer
from tracea_graph.rewrite import constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Scores", "match_scores"]

_MAX_DEPTH = 12


@dataclass(frozen=True)
class Scores:
    """The operators between q, k and the Softmax.

    * ``product``: the product of q and k.
    * ``terms``: masking steps, the outermost first.
    * ``factor``: name of a scale for each head; empty if there is none.
    """

    product: Region
    terms: tuple[MaskTerm, ...]
    softcap: float = 0.0
    factor: str = ""


def match_scores(matcher: Matcher, value: str) -> Scores:
    """Cover the regions from the product of q and k to ``value``; return what they compute.

    Multiplies the scale into ``matcher``.  Raises NoMatch for an unsupported operator in between.
    """
    graph, terms = matcher.graph, list[MaskTerm]()
    while _distance(graph, value) is not None:
        region = graph.producer(value)
        assert region is not None
        if region.op == "Add":
            value, mask = _sides(graph, region)
            terms.append(MaskTerm(mask, flat=_over_matrices(graph, value, mask)))
        elif region.op == "Sub":
            value, mask = region.operands
            flat = _over_matrices(graph, value, mask)
            terms.append(MaskTerm(mask, flat=flat, factor=-1.0))
        elif region.op == "Where":
            value, term = _choice(graph, region)
            terms.append(replace(term, flat=_over_matrices(graph, value, term.value)))
        elif region.op == "Reshape":
            value = _before_reshape(matcher, region)
        else:
            return _scaled(matcher, value, tuple(terms))
        matcher.covered.append(region)
    raise NoMatch("no product feeds the Softmax")


def _scaled(matcher: Matcher, value: str, terms: tuple[MaskTerm, ...]) -> Scores:
    """Match scale, softcap and scale again: cap · tanh(scale / cap · product)."""
    value, matcher.scale = _unscaled(matcher, value)
    region, softcap = matcher.graph.producer(value), 0.0
    if region is not None and region.op == "Tanh":
        matcher.covered.append(region)
        softcap = matcher.scale
        value, inner = _unscaled(matcher, region.operands[0])
        matcher.scale *= inner
        region = matcher.graph.producer(value)
        if not softcap > 0:
            raise NoMatch("the scores are capped by a number that is not positive")
    while region is not None and region.op == "Reshape":
        value = _before_reshape(matcher, region)
        matcher.covered.append(region)
        value, more = _unscaled(matcher, value)
        if softcap and more != 1.0:
            raise NoMatch("the scores are scaled twice around their cap")
        matcher.scale *= more
        region = matcher.graph.producer(value)
    while region is not None and region.op == "Add" and not softcap:
        value, added = _sides(matcher.graph, region)
        if _distance(matcher.graph, value) is None:
            break
        flat = _over_matrices(matcher.graph, value, added)
        terms = (*terms, MaskTerm(added, flat=flat, factor=matcher.scale))
        matcher.covered.append(region)
        value, more = _unscaled(matcher, value)
        matcher.scale *= more
        region = matcher.graph.producer(value)
    factor = ""
    if (
        region is not None
        and not softcap
        and (sides := _by_head(matcher.graph, region)) is not None
    ):
        matcher.covered.append(region)
        value, factor = sides
        region = matcher.graph.producer(value)
    if region is None or region.op != "MatMul":
        masked = region is not None and region.op in ("Add", "Where")
        raise NoMatch("a mask is added to the scores before they are scaled" if masked else
                    "no product feeds the Softmax")  # fmt: skip
    matcher.covered.append(region)
    return Scores(region, terms, softcap, factor)


def _by_head(graph: TileGraph, region: Region) -> tuple[str, str] | None:
    """Return the product and the factor ``[H,1,1]`` of a multiplication with a scale per head."""
    for value, factor in (region.operands, region.operands[::-1]) if region.op == "Mul" else ():
        shape, own = graph.spec(value).shape or (), graph.spec(factor).shape or ()
        each = len(shape) == 4 and own in ((*shape[1:2], 1, 1), (1, *shape[1:2], 1, 1))
        product = operand_producer(graph, value, "MatMul")
        if each and product is not None and is_f32(graph, factor):
            return value, factor
    return None


def _unscaled(matcher: Matcher, value: str) -> tuple[str, float]:
    before, scale = strip_scale(matcher.graph, value)
    while value != before:
        region = matcher.graph.producer(value)
        assert region is not None
        matcher.covered.append(region)
        a, b = region.operands
        value = a if constant_number(matcher.graph, b) is not None else b
    return value, scale


def _distance(graph: TileGraph, value: str, depth: int = 0) -> int | None:
    """Count the masks, scales, softcaps and reshapes back to a product; None: there is none."""
    value = strip_scale(graph, value)[0]
    region = graph.producer(value)
    if region is None or region.fused or depth > _MAX_DEPTH:
        return None
    if region.op == "MatMul":
        return depth
    by_head = _by_head(graph, region)
    ways = {"Add": region.operands, "Where": region.operands[1:], "Tanh": region.operands,
            "Reshape": region.operands[:1], "Sub": region.operands[:1],
            "Mul": by_head[:1] if by_head else ()}  # fmt: skip
    near = ways.get(region.op, ())
    found = [d for v in near if (d := _distance(graph, v, depth + 1)) is not None]
    return min(found, default=None)


def _sides(graph: TileGraph, region: Region) -> tuple[str, str]:
    """Return scores and mask of a sum: the scores are closer to a product."""
    a, b = region.operands
    far = _MAX_DEPTH + 2
    distances = [far if (d := _distance(graph, v)) is None else d for v in (a, b)]
    return (a, b) if distances[0] <= distances[1] else (b, a)


def _choice(graph: TileGraph, region: Region) -> tuple[str, MaskTerm]:
    condition, a, b = region.operands
    inverted = _distance(graph, a) is None
    scores, fill = (b, a) if inverted else (a, b)
    number = constant_number(graph, fill)
    if number is None:
        raise NoMatch("a boolean mask does not replace scores by a constant")
    return scores, MaskTerm(condition, number, inverted)


def _before_reshape(matcher: Matcher, region: Region) -> str:
    """Skip a Reshape of scores from matrices ``[B·H,S,T]`` to ``[B,H,S,T]`` or back."""
    source = region.operands[0]
    before, after = matcher.shape(source), matcher.shape(region.results[0])
    if {len(before), len(after)} <= {3, 4} and tail_agrees(before, after, 2):
        return source
    raise NoMatch("the scores are reshaped to something other than matrices")


def _over_matrices(graph: TileGraph, scores: str, mask: str) -> bool:
    """Return whether scores are ``[B·H,S,T]`` and the mask has its own leading axis."""
    shape: tuple[Extent, ...] | None = graph.spec(scores).shape
    own = graph.spec(mask).shape
    if shape is None or own is None or len(shape) == 4:
        return False
    return len(own) > 2 and own[0] != 1
