"""Pack the int8 matrices of products into panels with sums of columns.

FusedGemm(x, W, …, zeros)    ->    FusedGemm(x, panels, …)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.kernels.cpu.panels import INT8, INT8_ZEROS, pack_int8
from tracea_graph.ops.weights import Plain
from tracea_graph.passes.matmul.constant_matrices import gemm
from tracea_graph.passes.regions import fused
from tracea_graph.reasons import not_constant, unsuited
from tracea_graph.rewrite import Match, Rewrite, Rule

__all__ = ["PACK_INTEGERS"]


def _check(m: Match) -> str | None:
    params = m.root.params
    plain = params.integers and isinstance(params.layout, Plain)
    return None if plain else unsuited("its matrix holds no integers in their plain order")


def _rewrite(m: Match) -> Rewrite | str:
    params, graph, operands = m.root.params, m.graph, list(m.root.operands)
    weight, own = graph.weight(operands[1]), None
    if weight is None:
        return not_constant(operands[1])
    if params.integers.own_zeros:
        name = operands.pop(params.first - 1)
        if (own := graph.weight(name)) is None:
            return not_constant(name)
    layout, k, n = params.layout, params.k, params.n

    def load() -> Array:
        matrix: Any = layout.matrix([weight.load()], k, n)
        return pack_int8(np.asarray(matrix), None if own is None else own.load())

    packed = INT8 if own is None else INT8_ZEROS
    turned = "_t" if layout.transposed else ""
    name = f"{weight.name}{turned}{'' if own is None else f'_{own.name}'}_int8_panels"
    operands[1] = name
    integers = dataclasses.replace(params.integers, own_zeros=False)
    whole = dataclasses.replace(params, layout=packed, integers=integers)
    new = fused("pack-integers", whole, operands, m.root.results, [m.root])
    made = Weight(name, DType.I8, packed.shape(k, n), load)
    return Rewrite((new,), weights={name: made})


PACK_INTEGERS = Rule("pack-integers", (gemm,), _rewrite, _check)
