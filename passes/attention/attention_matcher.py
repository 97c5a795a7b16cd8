"""Shared state and helpers of the matchers around an attention's Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracea_graph.ir import Extent
from tracea_graph.passes.region_helpers import attribute, operand_producer
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "Matcher",
    "NoMatch",
    "check_interior",
    "dims",
    "numeric_attribute",
    "reader",
    "readers",
    "strip_scale",
]


class NoMatch(Exception):
    """The graph around a Softmax is not a supported attention; the message says why."""


@dataclass
class Matcher:
    """What is matched so far: the regions that an attention replaces, and its scale of scores."""

    graph: TileGraph
    covered: list[Region] = field(default_factory=list)
    scale: float = 1.0

    def through(self, value: str, op: str, why: str) -> Region:
        """Return the region that writes ``value``, and add it to the covered regions.

        Raises NoMatch(why) if its op is not ``op``.
        """
        region = operand_producer(self.graph, value, op)
        if region is None:
            raise NoMatch(why)
        self.covered.append(region)
        return region

    def shape(self, value: str) -> tuple[Extent, ...]:
        """Return the shape of a value.  Raises NoMatch if its rank is not known."""
        shape = self.graph.spec(value).shape
        if shape is None:
            raise NoMatch(f"the rank of {value!r} is not known")
        return shape


def strip_scale(graph: TileGraph, value: str) -> tuple[str, float]:
    """Follow ``value`` back through multiplications and divisions by constants.

    Returns the value before them and the product of all factors.
    """
    scale = 1.0
    while (region := graph.producer(value)) is not None and region.op in ("Mul", "Div"):
        a, b = region.operands
        factor = constant_number(graph, b)
        if factor is None and region.op == "Mul":
            a, factor = b, constant_number(graph, a)
        if not factor:
            break
        scale *= factor if region.op == "Mul" else 1 / factor
        value = a
    return value, scale


def readers(graph: TileGraph, value: str) -> list[Region]:
    """Return the regions that read ``value`` for more than its shape, each once."""
    found = {u.region.id: u.region for u in graph.uses(value)}
    return [r for r in found.values() if r.op != "Shape"]


def reader(graph: TileGraph, value: str, op: str) -> Region | None:
    """Return the only reader of ``value`` if its op is ``op``, else None."""
    found = readers(graph, value)
    return found[0] if len(found) == 1 and found[0].op == op else None


def check_interior(graph: TileGraph, covered: Sequence[Region], results: Sequence[str]) -> None:
    """Raise NoMatch if a region outside ``covered`` reads a value that a covered region writes.

    ``results`` are values that may be read outside.
    """
    inside = {r.id for r in covered}
    for region in covered:
        for value in region.writes:
            if value in results:
                continue
            if graph.is_output(value):
                raise NoMatch(
                    Reason(
                        f"the result {value!r} of {region.op} is a graph output",
                        Code.OTHER_READERS,
                    )
                )
            if any(u.region.id not in inside for u in graph.uses(value)):
                raise NoMatch(
                    Reason(
                        f"the result {value!r} of {region.op} has other readers",
                        Code.OTHER_READERS,
                    )
                )


def numeric_attribute(region: Region, name: str, default: float = 0.0) -> float:
    """Return a numeric attribute of an original operator."""
    value = attribute(region, name, default)
    return float(value) if isinstance(value, (int, float)) else default


def dims(shape: tuple[Extent, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
