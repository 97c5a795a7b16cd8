"""Pack the int8 matrices of products and convolutions into panels with sums of columns.

FusedGemm(x, W, …, zeros)         ->    FusedGemm(x, panels, …)
FusedConvInteger(x, W, …, zeros)  ->    FusedConvInteger(x, panels, …)

Groups whose filters end within a panel are joined into larger ones; for the channels of other
groups, a filter then holds its zero point.  Depthwise filters stay unchanged.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.kernels.cpu.panels import INT8, INT8_ZEROS, PANEL, pack_int8
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.weight_layouts import PlainMatrix
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.reason_codes import not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule

__all__ = ["PACK_INTEGERS"]


def _integers(op: Any, x: Any, w: Any) -> Any:
    return op.one_of(("FusedGemm", "FusedConvInteger"), x, w, ...)


def _check(m: Match) -> str | None:
    params = m.root.params
    plain = params.integers and isinstance(params.layout, PlainMatrix)
    return None if plain else unsuited_reason("its matrix does not hold integers in plain order")


def _rewrite(m: Match) -> Rewrite | str:
    params, graph, operands = m.root.params, m.graph, list(m.root.operands)
    weight, own = graph.weight(operands[1]), None
    if weight is None:
        return not_constant_reason(operands[1])
    if params.integers.own_zeros:
        name = operands.pop(params.first - 1)
        if (own := graph.weight(name)) is None:
            return not_constant_reason(name)
    layout, k, n = params.layout, params.k, params.n
    joined = 1
    if isinstance(params, ConvIntegerParams) and (own is not None or not _depthwise(params)):
        joined = _joined(params)

    def load() -> Array:
        matrix: Any = np.asarray(layout.matrix([weight.load()], k, n))
        zeros = None if own is None else own.load()
        if joined > 1:
            matrix = _join(matrix, m.root.params, joined, zeros)
        return pack_int8(matrix, zeros)

    packed = INT8 if own is None else INT8_ZEROS
    turned = "_t" if layout.transposed else ""
    name = f"{weight.name}{turned}{'' if own is None else f'_{own.name}'}_int8_panels"
    operands[1] = name
    integers = dataclasses.replace(params.integers, own_zeros=False)
    if joined > 1:
        params = dataclasses.replace(params, groups=params.groups // joined)
    whole = dataclasses.replace(params, layout=packed, integers=integers)
    new = fused_region("pack-integers", whole, operands, m.root.results, [m.root])
    made = Weight(name, DType.I8, packed.shape(whole.k, n), load)
    return Rewrite((new,), weights={name: made}, step=True)  # kernels read panels only


def _depthwise(params: ConvIntegerParams) -> bool:
    """Return whether each channel has one filter; there is a kernel for that."""
    return params.groups == params.channels == params.filters


def _joined(params: ConvIntegerParams) -> int:
    """Return how many groups to join so that each ends with a panel, or all of them."""
    each = params.filters // params.groups
    counts = (c for c in range(1, params.groups) if params.groups % c == 0)
    return next((c for c in counts if c * each % PANEL == 0), params.groups)


def _join(
    matrix: Array, params: ConvIntegerParams, joined: int, zeros: Array | None
) -> Array:  # fmt: skip
    """Return joined filters ``[taps, channels, O]``, with zero points for other groups."""
    each, depth = params.filters // params.groups, params.channels // params.groups
    taps = params.k // depth
    shape = taps, joined, depth, params.filters
    wide = np.full(shape, 0 if zeros is None else zeros, matrix.dtype)
    for group in range(params.groups):
        columns = slice(group * each, (group + 1) * each)
        wide[:, group % joined, :, columns] = matrix[:, columns].reshape(taps, depth, each)
    return wide.reshape(-1, params.filters)


PACK_INTEGERS = Rule("pack-integers", (_integers,), _rewrite, _check)
