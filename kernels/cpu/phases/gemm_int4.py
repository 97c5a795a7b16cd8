"""Round the matrices of products to 4 bits, on request.

FusedGemm(x, [K, N], …)    ->    FusedGemm(x, codes, scales, …)

Every block of k has a scale and a zero point in each column.  Calibration chooses them; else they
fit the range of the block's weights.  Kernels round rows of x to 8 bits block by block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.kernels.cpu.phases.lower_precision import INT4_ERROR
from tracea_graph.ops.block_quantized import BlockQuantized, quantize_blocks
from tracea_graph.passes.matmul.constant_matrices import (
    gemm_pattern,
    matrix_of,
    replaceable_matrix,
    why_not_replaceable,
)
from tracea_graph.passes.quantized.calibrated_rounding import UNCALIBRATED, CalibratedRounding
from tracea_graph.passes.region_helpers import fused_region, is_f32
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["BITS", "BLOCK", "GemmInt4"]

BITS, BLOCK = 4, 32
"""Bits of a code, and steps of k in a block that calibration did not choose."""


@dataclass(frozen=True)
class GemmInt4(PatternPass):
    """Store the matrix of a product in 4-bit codes.

    ``calibrated`` maps names of matrices to the rounding that calibration chose.
    """

    calibrated: Mapping[str, CalibratedRounding] = field(default_factory=lambda: UNCALIBRATED)
    name: str = "gemm-int4"
    patterns = (gemm_pattern,)

    def check(self, m: Match) -> str | None:
        if replaceable_matrix(m.graph, m.root) is None:
            return why_not_replaceable(m.graph, m.root)
        if not is_f32(m.graph, *m.root.operands[:2]) or not m.spec("x").shape:
            return "x or the matrix is not float32, or the rank of x is not known"
        return None

    def rewrite(self, m: Match) -> Rewrite | str:
        params, weight = m.root.params, m.graph.weights[m.root.operands[1]]
        chosen = self.calibrated.get(weight.name, CalibratedRounding(0.0))
        block = chosen.block or BLOCK
        layout = BlockQuantized(BITS, block, "integer", int8_rows=True)

        def fitted() -> tuple[Array, Array, Array]:
            if chosen.codes is not None and chosen.scales is not None:
                assert chosen.zeros is not None
                return chosen.codes, chosen.scales, chosen.zeros
            return quantize_blocks(matrix_of(params, weight), BITS, block)

        def load_codes() -> Array:
            codes = fitted()[0]
            return layout.packed(np.pad(codes, ((0, -len(codes) % block), (0, 0))).T)

        def load_scales() -> Array:
            made: Array = np.stack([part.T for part in fitted()[1:]]).astype(np.float32)
            return made

        k, n, name = params.k, params.n, f"{weight.name}_{params.layout.name}_int4"
        made = (
            Weight(name, DType.U8, layout.shape(k, n), load_codes),
            Weight(f"{name}_scales", DType.F32, layout.scales_shape(k, n), load_scales),
        )
        whole = dataclasses.replace(params, layout=layout)
        operands = (m.root.operands[0], *(w.name for w in made), *m.root.operands[2:])
        new = fused_region(self.name, whole, operands, m.root.results, [m.root])
        return Rewrite((new,), weights={w.name: w for w in made}, error=INT4_ERROR)
