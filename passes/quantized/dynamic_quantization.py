"""Convert dynamic quantization and integer products.

DynamicQuantizeLinear(x)                      -> FusedDynamicQuantize
Cast(MatMulInteger(x, W, zero, zeros))        -> FusedGemm of integers
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ops.dynamic_quantize import DynamicQuantizeParams
from tracea_graph.passes.quantized.integer_matrix import check_cast_to_float32, integer_gemm
from tracea_graph.passes.region_helpers import fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, Rewrite, Rule
from tracea_graph.ttg import Region

__all__ = ["DYNAMIC_QUANTIZE", "MATMUL_INTEGER"]


def _dynamic(op: Any, x: Any) -> Any:
    return op.DynamicQuantizeLinear(x)


def _dynamic_check(m: Match) -> str | None:
    if not is_f32(m.graph, m.values["x"]) or m.spec("x").shape is None:
        return Reason("x is not float32 of known rank", Code.UNKNOWN_SHAPE)
    return None


def _dynamic_rewrite(m: Match) -> Region:
    params = DynamicQuantizeParams()
    return fused_region("dynamic-quantize", params, (m.values["x"],), m.root.results, m.covered)


DYNAMIC_QUANTIZE = Rule("dynamic-quantize", (_dynamic,), _dynamic_rewrite, _dynamic_check)


def _product(op: Any, x: Any, w: Any) -> Any:
    return op.Cast(op.MatMulInteger(x, w, ..., label="product"))


def _product_rewrite(m: Match) -> Rewrite | str:
    x, w, zero, zeros = (*m.labels["product"].operands, "", "")[:4]
    made = integer_gemm(m.graph, x, w, zero, zeros)
    if isinstance(made, str):
        return made
    new = fused_region("matmul-integer", made.params, made.operands, m.root.results, m.covered)
    return Rewrite((new,), weights=made.weights)


MATMUL_INTEGER = Rule("matmul-integer", (_product,), _product_rewrite, check_cast_to_float32)
