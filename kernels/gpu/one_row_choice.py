"""Choose GPU kernels of matmuls with one row, and of few rows by block-quantized matrices."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import block_quantized_matmul, one_row_matmul
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = ["ONE_ROW", "coded_choices", "one_row_choices"]

ONE_ROW = "gemm_one.cu.in"
_LARGE_SIDE, _MANY_CODED = 128, 512
"""Side of large tiles, and fewest rows for which they are faster.

512 × 8192 × 2048 with codes of 4 bits takes 80 µs instead of 108 (one H100).
"""


def coded_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernels of few rows for a matmul with a block-quantized matrix, and the one with
    large tiles if the number of rows varies at run time.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    rows, found = named["y"][0].dims[0], list[tuple[Variant, Extent]]()
    for variant in VARIANTS:
        if (variant.op, variant.dtype) != (call.op, call.dtype):
            continue
        most, large = variant.params.get("rows", 0), variant.params.get("m", 0) >= _LARGE_SIDE
        if not (most or large) or block_quantized_matmul.refusal(call, variant):
            continue
        when = combine("sub", most + 1, rows) if most else combine("sub", rows, _MANY_CODED - 1)
        if not isinstance(when, int) or when > 0:
            found.append((variant, when))
    if not isinstance(rows, int):
        return found
    # not every GPU has the shared memory of the kernel of one row
    first = [v.template for v, _ in found].count(block_quantized_matmul.ONE)
    return found[: first + 1]


def one_row_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernels of one row for a matmul that may have them, each with its condition.

    Not every GPU has the shared memory of the first one.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    rows = named["y"][0].dims[-2]
    if (isinstance(rows, int) and rows != 1) or one_row_matmul.refusal(call):
        return []
    own = (v for v in VARIANTS if v.template == ONE_ROW and v.dtype == call.dtype)
    return [(v, combine("sub", 2, rows)) for v in own if not one_row_matmul.crowding(call, v)]
