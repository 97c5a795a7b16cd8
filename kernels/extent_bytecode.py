"""Encode size expressions (extents) as postfix code in plans, for every backend."""

from __future__ import annotations

from collections.abc import Mapping

from tracea_graph.errors import GraphError
from tracea_graph.ir import Extent

__all__ = [
    "FIRST_OPERATOR",
    "NUMBER",
    "OPERATORS",
    "SYMBOL",
    "encode_extent",
    "operator_opcode",
    "symbol_index",
]

NUMBER, SYMBOL, FIRST_OPERATOR = 0, 1, 2
OPERATORS = ("add", "sub", "mul", "floordiv", "ceildiv", "max", "min")
"""Operators, with codes from :data:`FIRST_OPERATOR` on."""


def operator_opcode(op: str) -> int:
    return FIRST_OPERATOR + OPERATORS.index(op)


def symbol_index(name: str, symbols: Mapping[str, int]) -> int:
    """The index of a symbol.  Raises GraphError if no input binds it."""
    if name not in symbols:
        raise GraphError(f"A plan uses the size {name!r}, which none of its inputs binds.")
    return symbols[name]


def encode_extent(extent: Extent, symbols: Mapping[str, int]) -> list[int]:
    """Encode an extent: ``0 number``, ``1 symbol``, or two operands and an operator code.

    Raises GraphError if no input binds a symbol.
    """
    if isinstance(extent, int):
        return [NUMBER, extent]
    if isinstance(extent, str):
        return [SYMBOL, symbol_index(extent, symbols)]
    a, b = extent.args
    return [*encode_extent(a, symbols), *encode_extent(b, symbols), operator_opcode(extent.op)]
