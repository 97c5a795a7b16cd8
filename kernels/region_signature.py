"""Rewrite a region's operand shapes over local symbols, and say where each symbol is bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tracea_graph.ir import Extent, TensorSpec, combine
from tracea_graph.ops.elementwise import is_clipped
from tracea_graph.ops.index_map import size_factors
from tracea_graph.ttg import Region, TileGraph

__all__ = ["bind_at_strict_axes", "localise_symbols", "loose_axes", "replace_clipped_sizes"]

_At = tuple[int, int]
"""Operand index and axis."""


def replace_clipped_sizes(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Replace sizes ``min(n, …)`` of broadcasting operands by ``n``; see :func:`is_clipped`."""
    symbols = sorted({d for s in specs for d in s.shape or () if isinstance(d, str)})

    def whole(dim: Extent) -> Extent:
        return next((d for d in symbols if is_clipped(dim, d)), dim)

    return tuple(replace(s, shape=tuple(whole(d) for d in s.shape or ())) for s in specs)


def localise_symbols(
    specs: Sequence[TensorSpec],
) -> tuple[tuple[TensorSpec, ...], dict[str, tuple[int, int]]]:
    """Rewrite specs over local symbols ``s0``, ``s1`` …; also return where each symbol is bound.

    A dimension that is an expression becomes a local symbol of its own.  If it is a constant
    multiple of another dimension, it becomes a multiple of that dimension's symbol: the number of
    windows, for instance, is a multiple of the number of images.
    """
    names: dict[Extent, str] = {}
    where: dict[str, tuple[int, int]] = {}
    shapes = [spec.shape or () for spec in specs]
    parts = _multiples({dim for shape in shapes for dim in shape if not isinstance(dim, int)})
    for i, shape in enumerate(shapes):
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int) and dim not in parts and dim not in names:
                names[dim] = f"s{len(names)}"
                where[names[dim]] = (i, axis)
    sizes: dict[Extent, Extent] = {**names}
    sizes |= {dim: combine("mul", names[base], times) for dim, (base, times) in parts.items()}
    local = [
        TensorSpec(spec.dtype, tuple(sizes.get(dim, dim) for dim in shape))
        for spec, shape in zip(specs, shapes, strict=True)
    ]
    return tuple(local), where


def _multiples(extents: Collection[Extent]) -> dict[Extent, tuple[Extent, int]]:
    """Map each extent that is an integer multiple of another to that base and the factor."""
    alike: dict[tuple[tuple[str, int], ...], list[tuple[int, Extent]]] = {}
    for extent in sorted(extents, key=str):
        number, symbols = size_factors([extent])
        key = tuple(sorted((str(s), n) for s, n in symbols.items()))
        alike.setdefault(key, []).append((number, extent))
    found: dict[Extent, tuple[Extent, int]] = {}
    for group in alike.values():
        least, base = min(group, key=lambda pair: pair[0])
        for number, extent in group:
            if extent != base and least > 0 and number % least == 0:
                found[extent] = base, number // least
    return found


def loose_axes(graph: TileGraph, region: Region) -> frozenset[_At]:
    """Return the (operand, axis) pairs with a loose symbol at which size 1 is allowed too.

    The symbol must also be the size of another axis.
    """
    places: dict[str, list[_At]] = {}
    for i, value in enumerate(region.operands):
        for axis, size in enumerate(graph.spec(value).shape or ()):
            if isinstance(size, str) and size in graph.loose:
                places.setdefault(size, []).append((i, axis))
    behind = {i: _behind(graph, region.operands[i]) for found in places.values() for i, _ in found}
    return frozenset(
        (i, axis)
        for symbol, found in places.items() if len(found) > 1
        for i, axis in found if not any(held <= behind[i] for held in graph.loose[symbol])
    )  # fmt: skip


def bind_at_strict_axes(
    specs: Sequence[TensorSpec], where: Mapping[str, _At], loose: frozenset[_At]
) -> dict[str, _At]:
    """Bind each symbol at an axis that is not in ``loose``, if it is the size of such an axis."""
    found = dict(where)
    for symbol, at in where.items():
        if at in loose:
            same = ((i, axis) for i, spec in enumerate(specs)
                    for axis, size in enumerate(spec.shape or ()) if size == symbol)  # fmt: skip
            found[symbol] = next((other for other in same if other not in loose), at)
    return found


def _behind(graph: TileGraph, value: str) -> set[str]:
    """All values that ``value`` depends on, itself and model inputs included."""
    waiting, seen = [value], {value}
    while waiting:
        producer = graph.producer(waiting.pop())
        more = {v for v in producer.reads if v not in seen} if producer is not None else set()
        seen |= more
        waiting += more
    return seen
