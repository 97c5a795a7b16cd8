"""Extents as expressions over operands' dimensions: ``"1.2"`` is axis 2 of operand 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracea_graph.ir import Extent, combine
from tracea_graph.ops.function_body import BodyBuilder

__all__ = ["resolve_extent", "size_to_onnx", "substitute_symbols"]


def substitute_symbols(extent: Extent, value_of: Callable[[str], Extent]) -> Extent:
    """Replace every symbol of an extent by what ``value_of`` returns for it."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, str):
        return value_of(extent)
    a, b = (substitute_symbols(arg, value_of) for arg in extent.args)
    return 0 if extent.op == "sub" and a == b else combine(extent.op, a, b)


def resolve_extent(extent: Extent, shapes: Sequence[Sequence[Extent]]) -> Extent:
    """Replace the symbols of an extent, each a dimension of an operand, by these dimensions."""

    def dimension(name: str) -> Extent:
        operand, axis = map(int, name.split("."))
        return shapes[operand][axis]

    return substitute_symbols(extent, dimension)


def size_to_onnx(b: BodyBuilder, extent: Extent) -> str:
    """Write the nodes that compute an extent; return the name of an int64 list of one number."""
    if isinstance(extent, int):
        return b.ints(extent)
    if isinstance(extent, str):
        operand, axis = map(int, extent.split("."))
        return b("Gather", b("Shape", b.inputs[operand]), b.ints(axis), axis=0)
    left, right = (size_to_onnx(b, arg) for arg in extent.args)
    if extent.op in _OPS:
        return b(_OPS[extent.op], left, right)
    # maximum of two integers: half of their sum plus their distance
    assert extent.op == "max", f"no body for {extent}"
    both = b("Add", b("Add", left, right), b("Abs", b("Sub", left, right)))
    return b("Div", both, b.ints(2))


_OPS = {"add": "Add", "sub": "Sub", "mul": "Mul", "floordiv": "Div"}
"""Div truncates; operands are never negative, where this equals rounding down."""
