"""Compute two matmuls by the factors of one matrix in one launch, if there are many rows.

    h = x · A, y = f(h · B)    ->    y = f((x · A) · B)

Both matmuls remain calls, which architectures without the kernel and other sizes use: each becomes
a part of the call that stands for both (``families/low_rank_matmul.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS, LOW_RANK_PARTS
from tracea_graph.kernels.gpu.families.low_rank_matmul import part_of
from tracea_graph.kernels.gpu.low_rank_choice import low_rank_choices
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import FULL, Chain

__all__ = ["fold_low_rank_pairs"]

_TYPES = {"f16": DType.F16, "bf16": DType.BF16}
_OF_SPLITS = ("partial", "arrivals")


def fold_low_rank_pairs(w: GpuProgramWriter) -> None:
    """Make each matmul of which another alone reads the result a part of a call of both."""
    for up in [c for c in w.calls if c.op == "gemm" and c.dtype in _TYPES]:
        x = up.views[0]
        down = BufferUses(w.calls).only_for(x, up) if x else None
        made = down and _parts_of(down, up)
        if not down or not made or not low_rank_choices(made[-1]):
            continue
        for part, call in zip(made, (down, up), strict=True):
            w.calls[next(i for i, one in enumerate(w.calls) if one is call)] = part


def _parts_of(down: Call, up: Call) -> tuple[Call, Call] | None:
    """Return two matmuls as parts of one call; None if no call stands for them."""
    if (down.op, down.dtype) != (up.op, up.dtype) or not _is_identity(down):
        return None
    first, second = (dict[str, Any](CALLS.of(call).named(call)) for call in (down, up))
    views = [v for n in (first, second) for v in (n["x"], n["w"], *n["y"])]
    if any(len(view.dims) != 2 for view in views) or second["x"] != first["y"][0]:
        return None
    named = {one: first[one] for one in ("x", "column_sums", "mean", "inverse", "x_sums")}
    named |= {one: second[one] for one in ("bias", "inputs", "y", "y_sums")}
    named |= {"w1": first["w"], "bias1": first["bias"], "middle": second["x"], "w2": second["w"]}
    named |= {one: down.attributes[one] for one in ("norm", "epsilon")}
    named |= {"layout1": down.attributes["layout"], "layout2": up.attributes["layout"]}
    made = list[Call]()
    for part, own, call in zip(LOW_RANK_PARTS, (first, second), (down, up), strict=True):
        splits = {one: own[one] for one in _OF_SPLITS}
        one = CALLS.make("low_rank_gemm", up.dtype, **named, **splits, part=part, chain=up.chain)
        made.append(replace(one, step=call.step))
        if part_of(made[-1]) != replace(call, chain=part_of(made[-1]).chain):
            return None
    return made[0], made[1]


def _is_identity(call: Call) -> bool:
    """Whether a matmul stores its sums, in its own type."""
    own = Chain((FULL,), (), (0,), (), (_TYPES[call.dtype],))
    return call.chain in (None, own)
