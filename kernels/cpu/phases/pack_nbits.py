"""Pack block-quantized matrices into panels of codes.

FusedGemm(x, codes, scales, …)                  -> FusedGemm(x, panels, panels of scales, …)
FusedQuantizedEmbedding(codes, scales, ids)     -> …(panels, panels of scales, ids)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.kernels.cpu.nbits_panels import NBitsPanels, pack_codes, pack_nbits_scales
from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.passes.matmul.constant_matrices import gemm_pattern
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.reason_codes import not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule

__all__ = ["PACK_NBITS", "PACK_NBITS_TABLE"]


def _check(m: Match) -> str | None:
    layout = m.root.params.layout
    unpacked = isinstance(layout, BlockQuantized) and not isinstance(layout, NBitsPanels)
    return (
        None
        if unpacked
        else unsuited_reason(
            "its matrix does not hold the codes in the order in which the model stores them"
        )
    )


def _packed(m: Match, rule: str, first: int) -> Rewrite | str:
    """Pack the codes and scales that are operands ``first`` and the next."""
    params, graph, operands = m.root.params, m.graph, list(m.root.operands)
    codes, scales = (graph.weight(v) for v in operands[first : first + 2])
    if codes is None or scales is None:
        return not_constant_reason(operands[first if codes is None else first + 1])
    plain, k, n = params.layout, params.k, params.n
    packed = NBitsPanels(plain.bits, plain.block, plain.zeros, plain.int8_rows)

    def parts() -> tuple[Array, Array, Array]:
        made: tuple[Array, Array, Array] = plain.parts([codes.load(), scales.load()], k, n)
        return made

    def load_codes() -> Array:
        numbers, _, zeros = parts()
        return pack_codes(packed, numbers, zeros if packed.zeros == "integer" else None, k)

    def load_scales() -> Array:
        stored = np.asarray(scales.load(), np.float32)
        return pack_nbits_scales(packed, stored[0].T, stored[-1].T)

    # panels begin with their integer zero points, in which matrices of equal codes may differ
    source = scales if packed.zeros == "integer" else codes
    names = f"{source.name}_code_panels", f"{scales.name}_scale_panels"
    operands[first : first + 2] = names
    made = (
        Weight(names[0], DType.U8, packed.shape(k, n), load_codes),
        Weight(names[1], DType.F32, packed.scales_shape(k, n), load_scales),
    )
    whole = dataclasses.replace(params, layout=packed)
    new = fused_region(rule, whole, operands, m.root.results, [m.root])
    # kernels read panels only
    return Rewrite((new,), weights={w.name: w for w in made}, step=True)


def _product(m: Match) -> Rewrite | str:
    return _packed(m, "pack-nbits", 1)


def _table(m: Match) -> Rewrite | str:
    return _packed(m, "pack-nbits-table", 0)


def _rows(op: Any) -> Any:
    return op.FusedQuantizedEmbedding(...)


PACK_NBITS = Rule("pack-nbits", (gemm_pattern,), _product, _check)
PACK_NBITS_TABLE = Rule("pack-nbits-table", (_rows,), _table, _check)
