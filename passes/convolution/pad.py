"""Pad with amounts computed at run time (U-Net skip connections) and in reflect or edge mode.

Pad(x, arithmetic over Shape(x), Shape(y))    ->    a layout step inside a program
Pad(x, numbers, reflect or edge)              ->    a layout step inside a program
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracea_graph.ir import Extent
from tracea_graph.ops.layout_op import BORDERS, LayoutParams
from tracea_graph.ops.size_expressions import substitute_symbols
from tracea_graph.passes.convolution.symbolic_size_tensors import ShapeValues
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PAD"]

_OPSET = 11
"""Opset from which Pad takes its amounts as an operand."""


def _padded(op: Any, x: Any, pads: Any) -> Any:
    return op.Pad(x, pads, ...)


def _pad(m: Match) -> Rewrite | str:
    """Convert zero padding of rows and columns by known or computed amounts, and reflect or edge
    padding by constant amounts."""
    graph, region = m.graph, m.root
    if graph.opset < _OPSET:
        return unsuited_reason(f"opset {graph.opset} has no such Pad; {_OPSET} is the first")
    x, pads, *rest = region.operands
    mode = attribute(region, "mode", "constant")
    mode = mode.decode() if isinstance(mode, bytes) else str(mode)
    if mode not in ("constant", *BORDERS):
        return "its mode (wrap) is not supported"
    zero = not rest or not rest[0] or mode in BORDERS or constant_number(graph, rest[0]) == 0.0
    if not zero or any(rest[1:]):
        return "the padding is not zero, or the Pad has an operand of axes"
    if graph.spec(x).rank != 4 or not is_f32(graph, x):
        return "its input is not a float32 image"
    sizes = ShapeValues(graph)
    found = sizes.read(pads)
    if found is None or found.shape != (8,):
        return "the amounts of padding are not known"
    amounts = [found[i] for i in range(8)]
    if amounts[:2] + amounts[4:6] != [0, 0, 0, 0]:
        return "batch or channels are padded"
    if mode in BORDERS:
        return _border(graph, region, mode, [amounts[i] for i in (2, 3, 6, 7)])
    values = [x]

    def number(symbol: str) -> str:
        value, axis = sizes.dims[symbol]
        if value not in values:
            values.append(value)
        return f"{values.index(value)}.{axis}"

    named = tuple(substitute_symbols(amounts[i], number) for i in (2, 3, 6, 7))
    return _step(graph, region, LayoutParams("pad", (), len(values), named), values)


def _border(
    graph: TileGraph, region: Region, mode: str, amounts: Sequence[Extent]
) -> Rewrite | str:
    numbers = tuple(int(a) for a in amounts if isinstance(a, (int, np.integer)))
    if len(numbers) < len(amounts) or min(numbers) < 0:
        return "an amount of padding is computed or negative"
    return _step(graph, region, LayoutParams(mode, numbers), region.operands[:1])


def _step(
    graph: TileGraph, region: Region, params: LayoutParams, values: Sequence[str]
) -> Rewrite:
    spec = params.infer([graph.spec(v) for v in values])[0]
    known = graph.spec(region.results[0])
    specs = {} if known.shape and isinstance(known.shape[1], int) else {region.results[0]: spec}
    new = fused_region("pad", params, values, region.results, [region])
    return Rewrite((new,), specs=specs, step=True)


PAD = Rule("pad", (_padded,), _pad)
