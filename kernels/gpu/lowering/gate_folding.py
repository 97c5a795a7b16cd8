"""Compute a gate and the matmul that it multiplies in one launch, if there are many rows.

    gate = f(x · W), y = gate · (x · V)                     ->    y = f(x · W) · (x · V)
    h = x · [W V], y = f(h[:, :n]) · h[:, n:]               ->    the same

Both matmuls remain calls, which architectures without the kernel and few rows use: each becomes a
part of the call that stands for both (``families/gated_matmul.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType, Extent, combine
from tracea_graph.kernels.gpu.calls import ACTIVATIONS, CALLS, GATE_PARTS
from tracea_graph.kernels.gpu.families.gated_matmul import part_of
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.product_calls import with_split_k
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.row_choice import gated_choices
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FULL, Chain

__all__ = ["fold_gates"]

_TYPES = {"f16": DType.F16, "bf16": DType.BF16}
_PARTS_OF_SUMS = ("partial", "arrivals")


def fold_gates(w: GpuProgramWriter) -> None:
    """Make the calls of each gate and the matmul that it multiplies parts of one call."""
    for last in list(w.calls):
        uses = BufferUses(w.calls)
        if last.op == "gemm":
            _fold_two(w, uses, last)
        elif last.op == "elementwise":
            _fold_halves(w, uses, last)


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _is_plain(call: Call) -> bool:
    """Whether a call is a matmul of rows in 16 bits without bias, norm and sums of rows."""
    if call.op != "gemm" or call.dtype not in _TYPES:
        return False
    named = _named(call)
    without = ("bias", "column_sums", "mean", "inverse", "x_sums", "y_sums")
    flat = all(len(view.dims) == 2 for view in (named["x"], named["w"], *named["y"]))
    plain = call.attributes["norm"] == "none" and len(named["y"]) == 1
    return flat and plain and all(named[one] is None for one in without)


def _activation(chain: Chain | None, dtype: DType, product: Chain | None = None) -> str:
    """Return the one activation of a gate's chain and of a product by the gate, else "".

    The chain of a ``product`` multiplies its first operand by the second one, which it may
    activate first.
    """
    if chain and (chain.operands != (FULL,) or chain.result_types != (dtype,)):
        return ""
    own = [s.op for s in chain.steps] if chain else []
    if product:
        if product.operands != (FULL, FULL) or product.result_types != (dtype,):
            return ""
        *before, last = product.steps or (None,)
        gate = 1 + len(before)  # the gate, or what is made of it
        own += [s.op for s in before if s.args == (1,)]
        if not last or last.op != "mul" or set(last.args) != {0, gate} or len(before) > 1:
            return ""
        if len(own) != len(before) + (len(chain.steps) if chain else 0):
            return ""
    return own[0] if len(own) == 1 and own[0] in ACTIVATIONS else ""


def _fold_two(w: GpuProgramWriter, uses: BufferUses, last: Call) -> None:
    """Fold a matmul that reads the gate, which another one computes of the same rows."""
    if not _is_plain(last) or last.chain is None or len(_named(last)["inputs"]) != 1:
        return
    named = _named(last)
    gate = uses.only_for(named["inputs"][0], last)
    if gate is None or not _is_plain(gate) or gate.dtype != last.dtype:
        return
    other = _named(gate)
    same = other["x"] == named["x"] and other["y"][0] == named["inputs"][0]
    alike = other["w"].dims == named["w"].dims
    alike = alike and gate.attributes["layout"] == last.attributes["layout"]
    activation = _activation(gate.chain, _TYPES[last.dtype], last.chain)
    if same and alike and activation and not other["inputs"]:
        made = _whole(last, (other["w"], named["w"]), other["y"][0], named["y"][0], activation)
        _replace(w, gate, last, made)


def _fold_halves(w: GpuProgramWriter, uses: BufferUses, last: Call) -> None:
    """Fold a product of both halves of a matmul's columns, one of them activated."""
    named, chain = _named(last), last.chain
    if chain is None or len(named["x"]) != 2 or len(named["y"]) != 1 or len(chain.steps) != 2:
        return
    halves, (y,) = named["x"], named["y"]
    first, both = chain.steps
    writers = {id(c): c for half in halves for c in uses.writers.get(half.buffer, [])}
    readers = [c for half in halves for c in uses.readers.get(half.buffer, [])]
    if len(writers) != 1 or any(c is not last for c in readers) or len(y.dims) != 2:
        return
    (whole,) = writers.values()
    if not _is_plain(whole) or _named(whole)["inputs"] or halves[0].buffer.kind != "temp":
        return
    own, made = _TYPES[whole.dtype], _named(whole)["y"][0]
    gate = next((i for i in range(2) if first.args == (i,)), None)
    if gate is None or both.op != "mul" or set(both.args) != {2, 1 - gate}:
        return
    identity = whole.chain is None or (not whole.chain.steps and not whole.chain.operands[1:])
    typed = (*chain.operand_types, *chain.result_types) == (own,) * 3
    if not identity or not typed or first.op not in ACTIVATIONS:
        return
    columns = y.dims[1]
    at = [half.offset for half in halves]
    starts = made.offset, combine("add", made.offset, columns)
    views = [View(made.buffer, (made.dims[0], columns), made.strides, start) for start in starts]
    if sorted(map(str, at)) != sorted(map(str, starts)) or made.dims[1] != combine(
        "mul", columns, 2
    ):
        return
    if any(half not in views for half in halves):
        return
    first_half, second_half = (
        _half(_named(whole)["w"], whole.attributes["layout"], columns, views.index(half) == 1)
        for half in (halves[gate], halves[1 - gate])
    )
    both_halves = first_half, second_half
    _replace(w, whole, last, _whole(whole, both_halves, views[0], y, first.op))


def _half(matrix: View, layout: str, columns: Extent, second: bool) -> View:
    """Return half of a matrix's columns."""
    axis = int(layout == "kn")
    dims = tuple(columns if i == axis else d for i, d in enumerate(matrix.dims))
    step = combine("mul", matrix.strides[axis], columns if second else 0)
    return replace(matrix, dims=dims, offset=combine("add", matrix.offset, step))


def _whole(like: Call, matrices: tuple[View, View], gate: View, y: View, activation: str) -> Call:
    """Return the call that stands for both matmuls, as its last part, of the rows of another."""
    w, v = matrices
    return CALLS.make(
        "gated_gemm", like.dtype, x=_named(like)["x"], w=w, v=v, gate=gate, y=y,
        part=GATE_PARTS[-1], activation=activation, layout=like.attributes["layout"],
    )  # fmt: skip


def _replace(w: GpuProgramWriter, gate: Call, last: Call, made: Call) -> None:
    """Replace two calls by the parts of one, if a kernel computes it at some size."""
    if not gated_choices(made):
        return
    for part, own in zip(GATE_PARTS, (gate, last), strict=True):
        one = replace(made, attributes=made.having(part=part).attributes)
        shared = _named(with_split_k(w, part_of(one)))
        named = {**_named(made), **{n: shared[n] for n in _PARTS_OF_SUMS}}
        call = CALLS.make("gated_gemm", made.dtype, **named, **one.attributes)
        at = next(i for i, c in enumerate(w.calls) if c is own)
        w.calls[at] = replace(call, step=own.step)
