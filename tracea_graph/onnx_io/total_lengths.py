"""Find symbols of masks that stand for past and new keys together.

    scores [B, H, S, past + S] + mask [B, 1, S, total]   ->   total = past + S

A sum broadcasts its operands, so that the mask has as many keys as the scores have, or one for all
of them.  The second is not supported where the first is declared: attention is, with a mask whose
number of keys is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from onnx import NodeProto, ValueInfoProto

from tracea_graph.ir import Expr, Extent
from tracea_graph.onnx_io.symbolic_arithmetic import variants_symbol
from tracea_graph.onnx_io.value_facts import ValueFacts

__all__ = ["total_lengths"]

_ADDED = ("Add", "Sub", "Where", "And", "Mul")
"""Operators by which masks change scores."""
_BETWEEN = (*_ADDED, "Cast", "Clip", "Div", "Identity", "Max", "Min")
"""Operators between scores and their softmax."""


def total_lengths(
    nodes: Sequence[NodeProto], inputs: Sequence[ValueInfoProto], facts: ValueFacts
) -> dict[str, str]:
    """Return a sum of two symbols of inputs for each symbol that always equals it.

    ``nodes`` are in topological order.
    """
    symbols = {d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim if d.dim_param}
    scores, found = set[str](), dict[str, set[str]]()
    for node in reversed(nodes):
        if node.op_type == "Softmax":
            scores.add(node.input[0])
        elif node.op_type in _BETWEEN and scores.intersection(node.output):
            scores.update(node.input)
            for symbol, whole in _sums(node, facts) if node.op_type in _ADDED else ():
                if symbol in symbols and symbols.issuperset(whole.split(" + ")):
                    found.setdefault(symbol, set()).add(whole)
    return {symbol: min(sums) for symbol, sums in found.items() if len(sums) == 1}


def _sums(node: NodeProto, facts: ValueFacts) -> Iterator[tuple[str, str]]:
    """Yield each symbol of a last axis that meets a sum of two others, and that sum."""
    shapes = [facts.shape(name) for name in node.input if name]
    lasts = [shape[-1] for shape in shapes if shape]
    for one, other in permutations(lasts, 2):
        if isinstance(other, Expr) and other.op == "add" and _name(one):
            names = sorted(_name(arg) for arg in other.args)
            if all(names) and _name(one) not in names:
                yield _name(one), " + ".join(names)


def _name(extent: Extent) -> str:
    """Return the symbol that an extent is, or whose variants broadcast to it, else ""."""
    return variants_symbol(extent) or (extent if isinstance(extent, str) else "")
