"""Find a product's constant matrix: where it is stored, and which other regions read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Node, Weight
from tracea_graph.ops.chain import HALVES
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.values_masked_by_tiles import matrix_pattern
from tracea_graph.ops.weight_layouts import KN, NK, Floats, PlainMatrix
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.reason_codes import Code, Reason, not_constant_reason
from tracea_graph.ttg import Region, TileGraph, TilePattern, ValueUse

__all__ = [
    "gemm_pattern",
    "hand_tiled_matrix",
    "is_shared",
    "lazy_matrix",
    "matrix_of",
    "must_stay_plain",
    "nodes_making",
    "replaceable_matrix",
    "smaller_source",
    "stored_matrix",
    "why_not_replaceable",
]  # fmt: skip

_PRODUCTS = ("MatMul", "Gemm", "FusedGemm", "FusedMatMul")
_MAX_DEPTH = 16
_OF_16_BITS = frozenset({*HALVES, DType.I16, DType.U16})
_SMALL = 1 << 16
"""Number of bytes up to which a matrix may be stored twice."""


def gemm_pattern(op: Any, x: Any, w: Any) -> Any:
    """Pattern of a product with a stored matrix."""
    return op.FusedGemm(x, w, ...)


def stored_matrix(graph: TileGraph, value: str, transposed: bool) -> tuple[str, PlainMatrix]:
    """Return the name of the constant that a product's matrix is stored in, and its layout.

    The matrix is ``value`` as ``[K, N]``, or ``[N, K]`` if ``transposed``.
    """
    root, turned = _root(graph, value)
    return root, NK if turned ^ transposed else KN


def must_stay_plain(graph: TileGraph, root: str) -> bool:
    """Return whether a matrix has readers other than products and is too large to store twice."""
    return graph.weights[root].nbytes > _SMALL and _needed_elsewhere(graph, root)


def replaceable_matrix(graph: TileGraph, region: Region, twice: bool = False) -> Weight | None:
    """Return a product's stored matrix if it may be replaced, else None.

    With ``twice``, it may be replaced even if other readers need the original, which is then
    stored beside it.  A matrix with a pattern of hand-set tiles is never replaced.
    """
    params = region.params
    if not isinstance(params, GemmParams) or not isinstance(params.layout, PlainMatrix):
        return None
    if params.integers or matrix_pattern(region, graph) is not None:
        return None
    weight = graph.weight(region.operands[1])
    if weight is None or (not twice and must_stay_plain(graph, weight.name)):
        return None
    return weight


def why_not_replaceable(graph: TileGraph, region: Region, twice: bool = False) -> Reason:
    """Return why :func:`replaceable_matrix` returns None for a product."""
    params, value = region.params, region.operands[1]
    if not isinstance(params, GemmParams) or not isinstance(params.layout, PlainMatrix):
        return Reason(f"{value!r} is already stored in another form", Code.OTHER_FORM)
    if graph.weight(value) is None:
        return not_constant_reason(value)
    if not twice and must_stay_plain(graph, value):
        return Reason(f"other readers need {value!r} unchanged", Code.OTHER_READERS)
    return Reason(f"the tiles of {value!r} were set by hand", Code.EXCLUDED)


def hand_tiled_matrix(graph: TileGraph, region: Region) -> tuple[TilePattern, Weight] | Reason:
    """Return a product's tiles set by hand and its plain constant matrix, or why not."""
    value, pattern = region.operands[1], matrix_pattern(region, graph)
    if pattern is None:
        return Reason(f"no tiles of {value!r} were set by hand", Code.NOT_APPLICABLE)
    if not isinstance(region.params.layout, PlainMatrix):
        return Reason(f"{value!r} is not stored as a plain matrix", Code.OTHER_FORM)
    weight = graph.weight(value)
    return not_constant_reason(value) if weight is None else (pattern, weight)


def matrix_of(params: GemmParams, weight: Weight) -> Floats:
    """Load and return a product's matrix as float32 ``[K, N]``."""
    return params.layout.matrix([np.asarray(weight.array(), np.float32)], params.k, params.n)


def lazy_matrix(name: str, k: int, n: int, load: Callable[[], Array]) -> Weight:
    """Return a float32 weight ``[K, N]`` that is computed whenever it is read, and not cached."""
    return Weight(name, DType.F32, (k, n), lambda: np.ascontiguousarray(load(), np.float32))


def smaller_source(graph: TileGraph, value: str) -> str | None:
    """Return the constant that a matrix is computed from, if it is smaller; else None.

    If such a matrix were packed and stored instead, the file would grow.  Constants of 16 bits do
    not count as smaller than the float32 matrix.
    """
    weight, source = graph.weights[value], value
    while (region := graph.producer(source)) is not None and region.operands:
        source = region.operands[0]
    if (base := graph.weight(source)) is None:
        return None
    stored = base.nbytes * (2 if base.dtype in _OF_16_BITS else 1)
    return source if max(stored, _SMALL) < weight.nbytes else None


def nodes_making(graph: TileGraph, value: str) -> tuple[Node, ...]:
    """Return the nodes that compute a matrix from a smaller constant, in execution order.

    Empty if there is no smaller constant.
    """
    nodes: list[Node] = []
    if smaller_source(graph, value) is not None:
        while (region := graph.producer(value)) is not None and region.operands:
            nodes += region.nodes
            value = region.operands[0]
    return tuple(reversed(nodes))


def is_shared(graph: TileGraph, value: str, ops: Sequence[str]) -> bool:
    """Return whether readers other than ``ops`` need a weight that is too large to store twice."""
    if graph.weights[value].nbytes <= _SMALL:
        return False
    return graph.is_output(value) or any(u.region.op not in ops for u in graph.uses(value))


def _root(graph: TileGraph, value: str) -> tuple[str, bool]:
    """Return the stored matrix behind a value, and whether the value is its transpose."""
    turned = False
    while (region := graph.producer(value)) is not None and region.op == "Transpose":
        if attribute(region, "perm", (1, 0)) != (1, 0):
            break
        value, turned = region.operands[0], not turned
    return value, turned


def _needed_elsewhere(graph: TileGraph, root: str) -> bool:
    """Return whether anything but products reads the matrix, directly or transposed."""
    if graph.is_output(root):
        return True
    uses = list[ValueUse]()
    for use in graph.uses(root):
        turned = use.region.op == "Transpose"
        uses += graph.uses(use.region.results[0]) if turned else [use]
    return any(not _multiplies(use) or _is_constant(graph, use.region) for use in uses)


def _multiplies(use: ValueUse) -> bool:
    """Return whether a region reads an operand only as the matrix of products."""
    params = use.region.params
    if not isinstance(params, RegionParams):
        return use.region.op in _PRODUCTS
    reads = [(s.params, at) for s in params.steps for at, v in enumerate(s.operands)
             if v == use.operand]  # fmt: skip
    return all(isinstance(step, GemmParams) and at == 1 for step, at in reads)


def _is_constant(graph: TileGraph, region: Region, depth: int = 0) -> bool:
    """Return whether a value is computed once, when a session opens, from stored matrices."""
    if region.fused or depth > _MAX_DEPTH:
        return False
    made = [graph.producer(v) for v in region.reads if graph.weight(v) is None]
    return all(r is not None and _is_constant(graph, r, depth + 1) for r in made)
