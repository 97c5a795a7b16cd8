"""Compute a layer norm and the two matmuls behind it in one launch, if there are many rows.

The norm and both matmuls remain calls, which architectures without the kernel and few rows use:
each becomes a part of the call that stands for all three (``families/row_mlp.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import ACTIVATIONS, CALLS, MLP_PARTS
from tracea_graph.kernels.gpu.families.row_mlp import GROUP
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.call_parts import replace_by_parts, stands_for
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.row_choice import mlp_choices
from tracea_graph.kernels.gpu.tile_choice import LEAST_MLP_ROWS
from tracea_graph.kernels.program import Call, View
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.index_map import ViewMove

__all__ = ["fold_mlps"]

_TYPES = {"f16": DType.F16, "bf16": DType.BF16}


def fold_mlps(w: GpuProgramWriter) -> None:
    """Make the calls of each norm with two small matmuls behind it parts of one call."""
    for down in [c for c in w.calls if c.op == "gemm" and c.dtype in _TYPES]:
        rows = w.about(down.views[0].dims[0]) if down.views[0] else None
        if rows is None or rows < LEAST_MLP_ROWS:
            continue
        calls = _calls_before(BufferUses(w.calls), down)
        made = calls and _call_of(calls)
        if not calls or not made:
            continue
        own, copies = _with_turned_weights(w, made, _TYPES[down.dtype])
        at = replace_by_parts(w, own, MLP_PARTS, calls)
        # ``at`` is the last part's: what weights are converted from stands before it
        w.calls[at:at] = [replace(copy, step=down.step) for copy in copies]
        if w.counted is not None and w.counted[0] > at:
            w.counted = w.counted[0] + len(copies), w.counted[1]


def _calls_before(uses: BufferUses, down: Call) -> tuple[Call, Call, Call] | None:
    """Return a norm, the matmul that alone reads it, and the one that alone reads that."""
    hidden = down.views[0]
    up = uses.only_for(hidden, down) if hidden else None
    if up is None or up.op != "gemm" or up.dtype != down.dtype or not up.views[0]:
        return None
    norm = uses.only_for(up.views[0], up)
    if norm is None or norm.op != "norm" or norm.dtype != down.dtype:
        return None
    return norm, up, down


def _call_of(calls: tuple[Call, Call, Call]) -> Call | None:
    """Return the call that stands for a norm and two matmuls; None if no kernel computes it."""
    norm, up, down = [(call, dict[str, Any](CALLS.of(call).named(call))) for call in calls]
    named: dict[str, Any] = {"x": norm[1]["x"][0], "gamma": norm[1]["gamma"],
                             "beta": norm[1]["beta"], "normed": norm[1]["y"]}  # fmt: skip
    named |= {"w1": up[1]["w"], "bias1": up[1]["bias"], "hidden": up[1]["y"][0]}
    named |= {n: down[1][n] for n in ("inputs", "y")}
    named |= {"w2": down[1]["w"], "bias2": down[1]["bias"]}
    steps = up[0].chain.steps if up[0].chain else ()
    if len(steps) != 1 or steps[0].op not in ACTIVATIONS or down[0].chain is None:
        return None
    if any(v is None or (isinstance(v, View) and len(v.dims) > 2) for v in named.values()):
        return None
    made = CALLS.make(
        "mlp", down[0].dtype, **named, turned1=named["w1"], turned2=named["w2"],
        part=MLP_PARTS[-1], activation=steps[0].op, epsilon=norm[0].attributes["epsilon"],
        chain=down[0].chain,
    )  # fmt: skip
    same = stands_for(made, MLP_PARTS, calls)
    return made if same and mlp_choices(made) else None


def _with_turned_weights(w: GpuProgramWriter, call: Call, dtype: DType) -> tuple[Call, list[Call]]:
    """Return a call that reads weights in the kernel's order, and the calls that write them.

    Of every 32 columns of w1, and rows of w2, a lane's fragments hold those that are eight
    adjacent ones of x and y.
    """
    first, named = len(w.calls), dict[str, Any](CALLS.of(call).named(call))
    for source, target, axis in (("w1", "turned1", 1), ("w2", "turned2", 0)):
        view: View = named[source]
        size = view.dims[axis]
        assert isinstance(size, int)
        cut = ViewMove("reshape", (*(0,) * axis, size // GROUP, 4, 4, 2, *(-1,) * (1 - axis)))
        order = [*range(axis + 1), axis + 2, axis + 1, *range(axis + 3, 5)]
        made = w.temp(dtype, view.dims)
        w.copy(Value(view, dtype).moved(cut).transposed(order), made.moved(cut))
        named[target] = made.view
    copies = w.calls[first:]
    del w.calls[first:]
    return CALLS.make(call.op, call.dtype, **named, **call.attributes, chain=call.chain), copies
