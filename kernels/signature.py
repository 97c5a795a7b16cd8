"""The signature a program has: its operands over symbols of its own, and where each is bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tracea_graph.ir import Extent, TensorSpec, combine
from tracea_graph.ops.elementwise import is_clipped
from tracea_graph.ops.index_map import factors
from tracea_graph.ttg import Region, TileGraph

__all__ = ["bound_strictly", "clipped", "localise", "loose_axes"]

_At = tuple[int, int]
"""An operand and an axis of it."""


def clipped(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Specs of operands that broadcast: min(n, …) is n there, see :func:`is_clipped`."""
    symbols = sorted({d for s in specs for d in s.shape or () if isinstance(d, str)})

    def whole(dim: Extent) -> Extent:
        return next((d for d in symbols if is_clipped(dim, d)), dim)

    return tuple(replace(s, shape=tuple(whole(d) for d in s.shape or ())) for s in specs)


def localise(
    specs: Sequence[TensorSpec],
) -> tuple[tuple[TensorSpec, ...], dict[str, tuple[int, int]]]:
    """Specs over local symbols ``s0``, ``s1`` …, and where each symbol is bound.

    A dimension the graph knows only as an expression is a symbol like any other, or a multiple of
    one: windows of an image are so many times as many as images.
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
    """Of the extents those that are a whole multiple of another one: of which, how many times."""
    alike: dict[tuple[tuple[str, int], ...], list[tuple[int, Extent]]] = {}
    for extent in sorted(extents, key=str):
        number, symbols = factors([extent])
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
    """Where several axes share a loose symbol, those that need not have its size."""
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


def bound_strictly(
    specs: Sequence[TensorSpec], where: Mapping[str, _At], loose: frozenset[_At]
) -> dict[str, _At]:
    """Where symbols are bound: at an axis that is not loose, where there is one."""
    found = dict(where)
    for symbol, at in where.items():
        if at in loose:
            same = ((i, axis) for i, spec in enumerate(specs)
                    for axis, size in enumerate(spec.shape or ()) if size == symbol)  # fmt: skip
            found[symbol] = next((other for other in same if other not in loose), at)
    return found


def _behind(graph: TileGraph, value: str) -> set[str]:
    """The values that a value is made of, the model's inputs among them."""
    waiting, seen = [value], {value}
    while waiting:
        producer = graph.producer(waiting.pop())
        more = {v for v in producer.reads if v not in seen} if producer is not None else set()
        seen |= more
        waiting += more
    return seen
