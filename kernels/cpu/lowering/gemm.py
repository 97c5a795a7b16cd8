"""Lower matrix multiplications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import DType, Extent, TensorSpec, product
from tracea_graph.kernels.cpu.calls import GEMM_DTYPES
from tracea_graph.kernels.cpu.fp16_layouts import FP16_PANELS
from tracea_graph.kernels.cpu.lowering.region_writer import (
    RegionWriter,
    Slot,
    as_matrix,
    over_rows,
)
from tracea_graph.kernels.cpu.lowering.row_ops import norm_call, sum_destination, with_bf16_stores
from tracea_graph.kernels.cpu.nbits_panels import NBitsPanels
from tracea_graph.kernels.cpu.panels import BF16X2, FOUR, INT16, SPLIT_STEPS, Int8Panels
from tracea_graph.kernels.program import View
from tracea_graph.ops.gemm import GemmParams

__all__ = ["as_bf16_matrix", "lower_gemm"]

_BY_MAP = {
    "block_sparse": ("gemm_block_sparse", "f32"), "block_sparse_vnni2": ("gemm_block_sparse",
        "bf16"),
    "bitmap": ("gemm_bitmap", "f32"), "bitmap_bf16": ("gemm_bitmap", "bf16"),
}  # fmt: skip


def lower_gemm(
    w: RegionWriter, p: GemmParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    rows = product(operands[0].shape[:-1])
    weight = View.dense(operands[1].buffer, p.layout.shape(p.k, p.n) or operands[1].shape)
    bias = operands[p.first].view if p.bias else None
    kinds = p.epilogue.operands[1:] if p.epilogue else ()
    _, _, _, epilogue_inputs, affine = p.split(operands)
    views = [
        over_rows(slot, kind, rows, p.n) for slot, kind in zip(epilogue_inputs, kinds, strict=True)
    ]
    total = sum_destination(w, results) if p.norm else None
    chain, slots = (p.epilogue, []) if total else with_bf16_stores(p.epilogue, results)
    into = [total] if total else [as_matrix(slot) for slot in slots]
    if p.integers:
        _integer_call(w, p, operands, weight, inputs=views, y=into, chain=chain)
    elif isinstance(p.layout, NBitsPanels):
        beside = View.dense(operands[2].buffer, p.layout.scales_shape(p.k, p.n))
        w.call(
            "gemm_nbits", x=as_matrix(operands[0]), w=weight, bias=bias, scales=beside,
            inputs=views,
            y=into, parts=len(p.splits) or 1, bits=p.layout.bits, block=p.layout.block,
            zeros=p.layout.zeros, int8_rows=p.layout.int8_rows, chain=chain,
        )  # fmt: skip
    elif p.layout.name in _BY_MAP:
        op, dtype = _BY_MAP[p.layout.name]
        x, _ = _left(w, p, operands[0])
        w.call(
            op, dtype, x=x, w=weight, bias=bias,
            index=View.dense(operands[-1].buffer, operands[-1].shape), inputs=views, y=into,
            parts=len(p.splits) or 1, chain=chain,
        )  # fmt: skip
    else:
        x, rows_of = _left(w, p, operands[0])
        scales = {"row_scales": rows_of, "column_scales": operands[-1].view} if rows_of else {}
        w.call(
            "gemm", GEMM_DTYPES[p.layout.name], x=x, w=weight, bias=bias, **scales,
            inputs=views, y=into, layout=p.layout.name, parts=len(p.splits) or 1, chain=chain,
        )  # fmt: skip
    if p.norm is not None and total is not None:
        norm_call(w, p.norm, total, affine, results[0])


def _integer_call(
    w: RegionWriter, p: GemmParams, operands: Sequence[Slot], weight: View, **rest: object
) -> None:
    """Emit a product of 8-bit integers, after row sums and padding of x where they are needed."""
    assert p.integers is not None and isinstance(p.layout, Int8Panels)
    x, given = operands[0], p.integers.zero is None
    left, sums, rows = as_matrix(x), None, product(x.shape[:-1])
    if p.k % FOUR or p.layout.own_zeros:
        if p.layout.own_zeros:
            sums = w.temp(TensorSpec(DType.I32, (rows,))).view
        y = None
        if p.k % FOUR:
            y = w.temp(TensorSpec(x.spec.dtype, (rows, p.k + -p.k % FOUR))).view
        w.call("sum_rows", x=left, sums=sums, y=y)
        left = y or left
    zero = View(operands[2].buffer, (1,), (1,)) if given else None
    w.call(
        "gemm", "int8", x=left, w=weight, bias=None, x_zero=zero, row_sums=sums,
        zero=p.integers.zero or 0, layout="int8", parts=len(p.splits) or 1,
        **rest,
    )  # fmt: skip


def _left(w: RegionWriter, p: GemmParams, slot: Slot) -> tuple[View, View | None]:
    """The left operand as the kernel reads it, and its row scales for int16."""
    if p.layout == INT16:
        return _whole(w, slot, p.k + p.k % 2)
    if p.layout == BF16X2:
        return _halves(w, slot, p.k), None
    if p.layout == FP16_PANELS:
        return _rounded(w, slot, DType.F16, p.k + p.k % 2), None
    return (as_bf16_matrix(w, slot, p.k + p.k % 2) if p.layout.rounds else as_matrix(slot)), None


def _whole(w: RegionWriter, slot: Slot, columns: Extent) -> tuple[View, View]:
    """Round a value to 16-bit integers ``[rows, columns]``; also return the row scales.

    The last column may be padding.
    """
    x = as_matrix(slot)
    numbers = w.temp(TensorSpec(DType.I16, (x.dims[0], columns)))
    scale = w.temp(TensorSpec(DType.F32, (x.dims[0],)))
    w.call("round", "int16", x=x, y=numbers.view, scales=scale.view)
    return numbers.view, scale.view


def _halves(w: RegionWriter, slot: Slot, columns: int) -> View:
    """Round a value to bf16x2: hi and lo terms alternate in zero-padded groups of SPLIT_STEPS.

    The row pitch is an odd number of cache lines, because AMX tiles read sixteen rows at once,
    which would otherwise compete for a few sets of the L1 cache.
    """
    x, width = as_matrix(slot), 2 * (columns + -columns % SPLIT_STEPS)
    pairs = w.temp(TensorSpec(DType.BF16, (x.dims[0], width + SPLIT_STEPS)))
    halves = replace(pairs.view, dims=(x.dims[0], width))
    w.call("round", "bf16x2", x=x, y=halves)
    return halves


def as_bf16_matrix(w: RegionWriter, slot: Slot, columns: Extent) -> View:
    """A region's value as a bf16 matrix; an odd number of columns gets one more, as padding."""
    if slot.in_bf16:
        return as_matrix(slot.in_bf16)
    return _rounded(w, slot, DType.BF16, columns)


def _rounded(w: RegionWriter, slot: Slot, dtype: DType, columns: Extent) -> View:
    """Round a float32 value to a matrix of bf16 or fp16; the last column may be padding."""
    x = as_matrix(slot)
    pairs = w.temp(TensorSpec(dtype, (x.dims[0], columns)))
    w.call("round", dtype.short, x=x, y=pairs.view)
    return pairs.view
