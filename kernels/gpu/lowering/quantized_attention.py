"""Compute attention of 8-bit integers in one launch, with all its roundings.

Quantizers round scores, softmax weights and results, so that attention is a product, a softmax and
a product.  These remain calls, which architectures without the kernel and more keys use: each
becomes a part of the call that stands for all three (``families/quantized_attention.py``).
"""

from __future__ import annotations

from typing import Any

from tracea_graph.kernels.gpu.calls import CALLS, ROUNDED_PARTS
from tracea_graph.kernels.gpu.families.quantized_attention import result_form
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.call_parts import replace_by_parts, stands_for
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.row_choice import rounded_attention_choices
from tracea_graph.kernels.program import Call

__all__ = ["fold_quantized_attentions"]

_TYPES = ("f16", "bf16")


def fold_quantized_attentions(w: GpuProgramWriter) -> None:
    """Make each softmax with rounded weights, and the products around it, parts of one call."""
    for values in [c for c in w.calls if c.op == "gemm" and c.dtype in _TYPES]:
        calls = _calls_before(BufferUses(w.calls), values)
        made = calls and _call_of(calls)
        if calls and made:
            replace_by_parts(w, made, ROUNDED_PARTS, calls)


def _calls_before(uses: BufferUses, values: Call) -> tuple[Call, Call, Call] | None:
    """Return the product of scores, the softmax that alone reads it, and what alone reads that."""
    read = values.views[0]
    softmax = uses.only_for(read, values) if read else None
    if softmax is None or (softmax.op, softmax.dtype) != ("softmax", values.dtype):
        return None
    if not softmax.attributes["stepped"] or softmax.attributes["log"] or not softmax.views[0]:
        return None
    scores = uses.only_for(softmax.views[0], softmax)
    if scores is None or (scores.op, scores.dtype) != ("gemm", values.dtype):
        return None
    return scores, softmax, values


def _call_of(calls: tuple[Call, Call, Call]) -> Call | None:
    """Return the call that stands for attention; None if no kernel computes it."""
    scores, softmax, values = [(c, dict[str, Any](CALLS.of(c).named(c))) for c in calls]
    form = result_form(values[0].chain, values[0].dtype)
    if form is None or any(len(one["y"]) != 1 for _, one in (scores, values)):
        return None
    if softmax[0].chain is not None or len(softmax[1]["x"]) != 1:
        return None
    named: dict[str, Any] = {"q": scores[1]["x"], "k": scores[1]["w"], "v": values[1]["w"]}
    if any(len(view.dims) != 4 for view in (*named.values(), values[1]["y"][0])):
        return None
    named |= {"inputs": scores[1]["inputs"], "scores": scores[1]["y"][0]}
    named |= {"score_rows": softmax[1]["x"][0], "weight_rows": softmax[1]["y"]}
    named |= {"weights": values[1]["x"], "y": values[1]["y"][0]}
    numbers = {f"weight_{n}": softmax[0].attributes[n] for n in ("step", "low", "high")}
    made = CALLS.make("quantized_attention", values[0].dtype, **named, **numbers, **form,
                      part=ROUNDED_PARTS[-1], chain=scores[0].chain)  # fmt: skip
    same = stands_for(made, ROUNDED_PARTS, calls)
    return made if same and rounded_attention_choices(made) else None
