"""Axes of a program's inputs that may be fed 1 in place of the size they share with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracea_graph.ir import TensorSpec
from tracea_graph.ttg import Region, TileGraph

__all__ = ["bound_strictly", "loose_axes"]

_At = tuple[int, int]
"""An operand and an axis of it."""


def loose_axes(graph: TileGraph, region: Region) -> frozenset[_At]:
    """Where operands share a loose symbol, its axes that need not have its size."""
    places: dict[str, list[_At]] = {}
    for i, value in enumerate(region.operands):
        for axis, size in enumerate(graph.spec(value).shape or ()):
            if isinstance(size, str) and size in graph.loose:
                places.setdefault(size, []).append((i, axis))
    behind = {i: _behind(graph, region.operands[i]) for found in places.values() for i, _ in found}
    return frozenset(
        (i, axis)
        for symbol, found in places.items() if len({i for i, _ in found}) > 1
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
