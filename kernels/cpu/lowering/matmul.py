"""Lower products of two computed tensors, both of them strided views."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import combine, product
from tracea_graph.kernels.cpu.lowering.region_writer import (
    RegionWriter,
    Shape,
    Slot,
    broadcast_view,
)
from tracea_graph.kernels.program import View
from tracea_graph.ops.index_map import IndexMap, StridedLayout, ViewMove, dense_strides
from tracea_graph.ops.matmul import MatMulParams

__all__ = ["lower_matmul"]


def lower_matmul(
    w: RegionWriter, p: MatMulParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    a, b, *epilogue_inputs = operands
    _, _, full = p.shapes([s.spec for s in operands])
    left = _seen(a, _as_read(p, 0, a), full[:-2], column=False)
    right = _seen(b, _as_read(p, 1, b), full[:-2], column=True)
    views = [broadcast_view(slot, full) for slot in epilogue_inputs]
    into = [View(slot.buffer, full, dense_strides(full)) for slot in results]
    flat = _flat(left, right, [*views, *into])
    x, weight, *rest = flat
    if p.integers:
        zeros = [one.zero for one in p.integers]
        w.call(
            "matmul_bytes", x=x, w=weight, zero=zeros[0], w_zero=zeros[1],
            inputs=rest[: len(views)], y=rest[len(views) :], chain=p.epilogue,
        )  # fmt: skip
        return
    w.call(
        "gemm", x=x, w=weight, inputs=rest[: len(views)], y=rest[len(views) :], layout="kn",
        chain=p.epilogue,
    )  # fmt: skip


def _as_read(p: MatMulParams, which: int, slot: Slot) -> StridedLayout:
    """The strided layout of an operand after splitting heads and permuting axes."""
    perm, at = (p.a_perm, p.b_perm)[which], StridedLayout.dense(slot.shape)
    if p.heads[which]:
        split = (*[0] * (len(perm) - 2), p.heads[which], -1)
        at = IndexMap((ViewMove("reshape", split),)).layout(at)
    return IndexMap((ViewMove("transpose", perm),)).layout(at) if perm else at


def _seen(slot: Slot, at: StridedLayout, outer: Shape, column: bool) -> View:
    """View an operand as one matrix per matrix of the result; stride 0 where one is repeated.

    A vector is a row, or a column if it is the right operand.
    """
    dims, strides = at.dims, at.strides
    if len(dims) == 1:
        dims, strides = ((*dims, 1), (*strides, 0)) if column else ((1, *dims), (0, *strides))
    own, steps = dims[:-2], strides[:-2]
    missing = len(outer) - len(own)
    pairs = zip(own, steps, outer[missing:], strict=True)
    repeated = tuple(0 if d == 1 and f != 1 else s for d, s, f in pairs)
    lead = (0,) * missing + repeated
    return View(slot.buffer, (*outer, *dims[-2:]), (*lead, *strides[-2:]))


def _flat(left: View, right: View, others: Sequence[View]) -> list[View]:
    """Merge a batch into one tall product if it shares the right matrix and has even strides."""
    views = [left, right, *others]
    outer = len(left.dims) - 2
    shared = all(s == 0 for s in right.strides[:outer])
    even = all(_even(v) for v in (left, *others))
    if outer == 0 or not shared or not even:
        return views
    tall = [_tall(v) for v in (left, *others)]
    return [tall[0], View(right.buffer, right.dims[outer:], right.strides[outer:]), *tall[1:]]


def _even(view: View) -> bool:
    """Return True if all rows of all matrices follow each other at one stride."""
    if all(s == 0 for s in view.strides[:-1]):
        return True
    return view.strides[:-1] == _row_strides(view)


def _row_strides(view: View) -> Shape:
    return tuple(
        combine("mul", view.strides[-2], product(view.dims[i + 1 : -1]))
        for i in range(len(view.dims) - 1)
    )


def _tall(view: View) -> View:
    return View(view.buffer, (product(view.dims[:-1]), view.dims[-1]), view.strides[-2:])
