"""Lowering of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.gemm import IN_BF16, LAYOUTS, PANEL, GemmParams
from tracea_graph.ops.program import GemmDriver
from tracea_graph.passes.lower_rows import norm_call, result_and_sum
from tracea_graph.passes.writer import Shape, Slot, Writer, dense, matrix, over_rows

__all__ = ["DRIVERS", "lower_gemm"]

DRIVERS: tuple[GemmDriver, ...] = (
    GemmDriver(max_rows=4, prefetch=0),
    GemmDriver(max_rows=32),
    GemmDriver(max_rows=512, row_chunk=256),
    GemmDriver(max_rows=2**31 - 1, row_chunk=256),
)
"""Blocking per row count where nothing was tuned: the runtime's own choice."""


def lower_gemm(
    w: Writer, p: GemmParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    x = matrix(operands[0])
    y, total = result_and_sum(results)
    panels: Shape = (-(-p.n // PANEL), p.k, PANEL)
    if p.layout in IN_BF16:
        panels = (-(-p.n // PANEL), -(-p.k // 2), PANEL, 2)
    packed = p.layout == "panels" or p.layout in IN_BF16
    stored = panels if packed else operands[1].shape
    weight = dense(operands[1].buffer, stored)
    bias = operands[2].view if p.bias else None
    kinds = p.epilogue.operands[1:] if p.epilogue else ()
    _, _, _, extras, affine = p.split(operands)
    views = [
        over_rows(slot, kind, x.dims[0], p.n) for slot, kind in zip(extras, kinds, strict=True)
    ]
    into = [total] if p.norm else [matrix(slot) for slot in results]
    if p.layout == "pairs":
        pairs = w.temp(TensorSpec(DType.BF16, (x.dims[0], p.k + p.k % 2)))
        w.call("round_bf16", x, pairs.view)
        x = pairs.view
    if p.layout == "blocks":
        places = dense(operands[-1].buffer, operands[-1].shape)
        w.call(
            "gemm_blocks", x, weight, bias, places, *views, *into,
            ints=(len(p.parts) or 1,), chain=p.epilogue,
        )  # fmt: skip
    else:
        w.call(
            "gemm_bf16" if p.layout in IN_BF16 else "gemm", x, weight, bias, *views, *into,
            ints=(LAYOUTS.index(p.layout), len(p.parts) or 1), chain=p.epilogue, drivers=DRIVERS,
        )  # fmt: skip
    if p.norm is not None:
        norm_call(w, p.norm, total, affine, y)
