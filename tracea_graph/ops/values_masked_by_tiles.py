"""The values of a region that hand-set tiles can mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, Node
from tracea_graph.ttg.hand_set_tiles import PatternKind, TilePattern, check_pattern
from tracea_graph.ttg.region_graph import Region, TileGraph
from tracea_graph.ttg.tile_set import TileSet

__all__ = ["is_transposed", "maskable_pattern", "matrix_operand", "matrix_pattern"]

_FLOATS = (DType.F32, DType.F16, DType.BF16, DType.F64)
_PRODUCTS = ("MatMul", "Gemm")
_POINTWISE = frozenset(
    ("Add", "Sub", "Mul", "Div", "Where", "Tanh", "Reshape", "Cast", "Identity", "Neg")
)
"""Operators that may lie between a product of queries and keys and its Softmax."""


def maskable_pattern(region: Region, graph: TileGraph, tiles: TileSet) -> TilePattern:
    """Return the pattern by which ``tiles`` mask the one operator of a region that takes a mask.

    This operator is a product with a constant matrix, or a Softmax: one in the region, or the one
    that reads scores computed in the region.  Raises GraphError if there is no such operator, if
    there are several, or if the tiles do not fit.
    """
    nodes = region.nodes
    products = [n for n in nodes if matrix_operand(n, graph) is not None]
    softmaxes = [n for n in nodes if n.op == "Softmax"] or [*_fed_softmax(region, graph)]
    found = softmaxes or products
    if len(found) != 1:
        what = "several of its operators take" if found else "none of its operators takes"
        raise GraphError(
            f"region {region.id} ({region.op}) takes no tiles: {what} them; tiles mask the "
            "constant matrix of a product, or the scores of attention before its Softmax"
        )
    (node,) = found
    if node.op == "Softmax":
        kind, extents = PatternKind.SCORES, _scores(node, graph)
    else:
        kind, extents = PatternKind.MATRIX, _matrix(node, graph)
    rows, columns = (e if isinstance(e, int) else None for e in extents)
    try:
        size = check_pattern(tiles, kind, rows, columns)
    except GraphError as error:
        raise GraphError(f"tiles do not fit region {region.id} ({region.op}): {error}") from None
    return TilePattern(kind, node.outputs[0], replace(tiles, tile=size))


def matrix_operand(node: Node, graph: TileGraph) -> str | None:
    """Return the constant float matrix that a product multiplies with; None if it has none."""
    if node.op not in _PRODUCTS or len(node.inputs) < 2:
        return None
    weight = graph.weight(node.inputs[1])
    stored = weight is not None and len(weight.shape) == 2 and weight.dtype in _FLOATS
    return node.inputs[1] if stored else None


def matrix_pattern(region: Region, graph: TileGraph) -> TilePattern | None:
    """Return the hand-set tiles that mask the constant matrix of a region's product, or None."""
    read = (n.inputs[1] for n in region.nodes if n.op in _PRODUCTS and len(n.inputs) > 1)
    return next((graph.patterns[v] for v in read if v in graph.patterns), None)


def is_transposed(node: Node) -> bool:
    """Return whether a product stores its matrix as ``[N, K]``."""
    return node.op == "Gemm" and bool(node.attrs.get("transB", 0))


def _matrix(node: Node, graph: TileGraph) -> tuple[int, int]:
    """K and N of a product."""
    a, b = graph.weights[node.inputs[1]].shape
    return (b, a) if is_transposed(node) else (a, b)


def _scores(node: Node, graph: TileGraph) -> tuple[Extent, Extent]:
    """Queries and keys of a Softmax over keys."""
    shape = graph.spec(node.inputs[0]).shape
    default = -1 if graph.opset >= 13 else 1
    if shape is None or len(shape) < 2:
        raise GraphError(f"the scores {node.inputs[0]!r} are not matrices of queries by keys")
    if node.attrs.get("axis", default) not in (-1, len(shape) - 1):
        raise GraphError(f"{node.outputs[0]!r} is not a Softmax over the last axis, that of keys")
    return shape[-2], shape[-1]


def _fed_softmax(region: Region, graph: TileGraph) -> Iterator[Node]:
    """The Softmax that a product of two computed values reaches through pointwise operators."""
    if [n.op for n in region.nodes] != ["MatMul"] or any(graph.weight(v) for v in region.reads):
        return
    at = region
    while (use := graph.only_use(at.results[0])) is not None:
        at = use.region
        if at.op == "Softmax":
            yield at.node
        if at.fused or at.op not in _POINTWISE:
            return
