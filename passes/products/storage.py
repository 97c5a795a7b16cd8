"""How the constant matrix of a product is stored: packed panels, or in place as the original.

Panels are what the kernels like best.  A matrix that somebody else needs unpacked (an embedding
table that is the output head too) stays as it is, and the product reads it in place: no byte of
it is written twice, unless the product's own is to be in bf16, of half the size and twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, Node, Weight
from tracea_graph.ops.panels import PANELS, pack_panels
from tracea_graph.ops.weights import KN, NK, WeightLayout
from tracea_graph.passes.regions import attribute
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Storage", "is_shared", "making", "storage_for", "stored_smaller"]

_PRODUCTS = ("MatMul", "Gemm", "FusedGemm")
_MAX_DEPTH = 16
_SMALL = 1 << 16
"""Bytes below which a second copy is no matter."""


@dataclass(frozen=True)
class Storage:
    """The value a product reads, its layout, the weight to add if it is a new one, and whether
    the scale is part of it."""

    value: str
    layout: WeightLayout
    weight: Weight | None = None
    scaled: bool = False


def storage_for(
    graph: TileGraph, value: str, transposed: bool, scale: float, plain: bool, twice: bool = False
) -> Storage:
    """Where a product's matrix ``[K, N]`` (``[N, K]`` if ``transposed``) is to be read from.

    Leading axes of one do not count.  A matrix that has to stay plain is not scaled.  ``twice``
    also packs one that others need as it is.
    """
    weight = graph.weights[value]
    root, turned = _root(graph, value)
    turned ^= transposed
    kept = not twice and weight.nbytes > _SMALL and _needed_elsewhere(graph, root)
    if plain or kept:
        return Storage(root, NK if turned else KN)
    name = f"{root}{'_t' if turned else ''}{f'_{scale!r}' if scale != 1.0 else ''}_panels"
    n, k = weight.shape[-2:] if transposed else weight.shape[:-3:-1]
    load = _panels(weight.load, transposed, scale)
    panels = Weight(name, DType.F32, PANELS.shape(k, n), load)
    return Storage(name, PANELS, panels, True)


def stored_smaller(graph: TileGraph, value: str) -> str | None:
    """The smaller constant a matrix is made from, or None: packing it would grow the file."""
    weight, source = graph.weights[value], value
    while (region := graph.producer(source)) is not None and region.operands:
        source = region.operands[0]
    base = graph.weight(source)
    small = base is not None and max(base.nbytes, _SMALL) < weight.nbytes
    return source if small else None


def making(graph: TileGraph, value: str) -> tuple[Node, ...]:
    """The nodes that make a constant from a smaller one; none if it may be stored."""
    nodes: list[Node] = []
    if stored_smaller(graph, value) is not None:
        while (region := graph.producer(value)) is not None and region.operands:
            nodes += region.nodes
            value = region.operands[0]
    return tuple(reversed(nodes))


def is_shared(graph: TileGraph, value: str, ops: Sequence[str]) -> bool:
    """True if others than ``ops`` need a weight as it is, and it is too large to store twice."""
    if graph.weights[value].nbytes <= _SMALL:
        return False
    return graph.is_output(value) or any(u.region.op not in ops for u in graph.uses(value))


def _root(graph: TileGraph, value: str) -> tuple[str, bool]:
    """The stored matrix behind a value, and whether it is its transpose."""
    turned = False
    while (region := graph.producer(value)) is not None and region.op == "Transpose":
        if attribute(region, "perm", (1, 0)) != (1, 0):
            break
        value, turned = region.operands[0], not turned
    return value, turned


def _needed_elsewhere(graph: TileGraph, root: str) -> bool:
    """True if anything but products reads the matrix, directly or transposed."""
    if graph.is_output(root):
        return True
    readers = list[Region]()
    for region in (use.region for use in graph.uses(root)):
        turned = region.op == "Transpose"
        readers += [u.region for u in graph.uses(region.results[0])] if turned else [region]
    return any(r.op not in _PRODUCTS or _is_constant(graph, r) for r in readers)


def _is_constant(graph: TileGraph, region: Region, depth: int = 0) -> bool:
    """True for what is computed once, when a session opens, from matrices as they are."""
    if region.fused or depth > _MAX_DEPTH:
        return False
    made = [graph.producer(v) for v in region.reads if graph.weight(v) is None]
    return all(r is not None and _is_constant(graph, r, depth + 1) for r in made)


def _panels(load: Callable[[], Array], transposed: bool, scale: float) -> Callable[[], Array]:
    """Read a plain weight and pack it; nothing is kept between calls."""

    def packed() -> Array:
        matrix = np.asarray(load(), np.float32)
        matrix = matrix.reshape(matrix.shape[-2:])
        matrix = matrix.T if transposed else matrix
        return pack_panels(matrix if scale == 1.0 else matrix * np.float32(scale))

    return packed
