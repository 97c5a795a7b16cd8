"""Lower convolutions of 8-bit integers, channels last."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import Extent, product
from tracea_graph.kernels.cpu.lowering.region_writer import (
    RegionWriter,
    Slot,
    as_matrix,
    over_rows,
)
from tracea_graph.kernels.cpu.lowering.row_ops import with_bf16_stores
from tracea_graph.kernels.cpu.panels import FOUR, Int8Panels
from tracea_graph.kernels.program import View
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.index_map import dense_strides

__all__ = ["lower_conv_integer"]


def lower_conv_integer(
    w: RegionWriter, p: ConvIntegerParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    """Emit ``conv_nhwc``; for a pointwise convolution of 4·n channels emit a matrix product."""
    assert isinstance(p.layout, Int8Panels)
    rows = product(results[0].shape[:-1])
    weight = View.dense(operands[1].buffer, p.layout.shape(p.k, p.n))
    zero = View(operands[2].buffer, (1,), (1,)) if p.integers.zero is None else None
    kinds = p.epilogue.operands[1:] if p.epilogue else ()
    views = [
        over_rows(slot, kind, rows, p.n)
        for slot, kind in zip(operands[p.first :], kinds, strict=True)
    ]
    chain, slots = with_bf16_stores(p.epilogue, results)
    shared = {
        "w": weight, "x_zero": zero, "inputs": views, "y": [as_matrix(slot) for slot in slots],
        "zero": p.integers.zero or 0, "chain": chain,
    }  # fmt: skip
    lanes = p.k % FOUR == 0 and not p.layout.own_zeros
    if p.window.pointwise and p.groups == 1 and lanes:
        w.call("gemm", "int8", x=as_matrix(operands[0]), bias=None, row_sums=None, layout="int8",
               **shared)  # fmt: skip
        return
    window = p.window
    w.call(
        "conv_nhwc", "int8", x=_image(operands[0]), kernel=_two(window.kernel),
        strides=_two(window.strides), dilations=_two(window.dilations),
        pads=(*_two(window.pads[: window.rank], 0), *_two(window.pads[window.rank :], 0)),
        groups=p.groups, **shared,
    )  # fmt: skip


def _two(numbers: Sequence[int], fill: int = 1) -> tuple[int, ...]:
    """Extend a parameter of a window over one axis to two axes."""
    return (*(fill,) * (2 - len(numbers)), *numbers)


def _image(slot: Slot) -> View:
    """View ``[N, L, C]`` as ``[N, 1, L, C]``; images stay unchanged."""
    shape: tuple[Extent, ...] = slot.shape
    if len(shape) == 3:
        shape = (shape[0], 1, *shape[1:])
    return View(slot.buffer, shape, dense_strides(shape))
