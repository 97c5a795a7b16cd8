"""Compute attention and the matmul behind it in one launch, if rows are few.

Both remain calls, which architectures without the kernel and more rows use: each becomes a part of
the call that stands for both (``families/attention_projection.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.kernels.gpu.calls import CALLS, PROJECTION_PARTS
from tracea_graph.kernels.gpu.families.attention_projection import part_of, residual_norm
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.row_choice import projection_choices
from tracea_graph.kernels.program import Call

__all__ = ["fold_attention_projections"]

_TYPES = ("f16", "bf16")


def fold_attention_projections(w: GpuProgramWriter) -> None:
    """Make each attention and the matmul that alone reads it parts of one call."""
    for project in [c for c in w.calls if c.op == "gemm" and c.dtype in _TYPES]:
        if project.chain != residual_norm(project.dtype) or not project.views[0]:
            continue
        attention = BufferUses(w.calls).only_for(project.views[0], project)
        if attention is None or (attention.op, attention.dtype) != ("attention", project.dtype):
            continue
        made = _call_of(attention, project)
        if made is None:
            continue
        for part, call in zip(PROJECTION_PARTS, (attention, project), strict=True):
            at = next(i for i, one in enumerate(w.calls) if one is call)
            w.calls[at] = _as_part(made, part, call)


def _call_of(attention: Call, project: Call) -> Call | None:
    """Return the call that stands for attention and a matmul; None if no kernel computes it."""
    scores: dict[str, Any] = CALLS.of(attention).named(attention)
    sums: dict[str, Any] = CALLS.of(project).named(project)
    if sums["bias"] is None:
        return None
    named = {n: scores[n] for n in ("q", "k", "v", "mask")} | {"attended": scores["y"]}
    named |= {"rows": sums["x"], "w": sums["w"], "bias": sums["bias"], "y": sums["y"][0]}
    named |= dict(zip(("x", "mean", "inverse", "gamma", "beta"), sums["inputs"], strict=True))
    made = CALLS.make("attention_projection", project.dtype, **named, part=PROJECTION_PARTS[-1],
                      scale=attention.attributes["scale"], chain=project.chain)  # fmt: skip
    parts = zip(PROJECTION_PARTS, (attention, project), strict=True)
    same = all(part_of(_as_part(made, part, call)) == call for part, call in parts)
    return made if same and projection_choices(made) else None


def _as_part(call: Call, part: str, own: Call) -> Call:
    """Return a call as the ``part`` that replaces its ``own`` call."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    made = CALLS.make(call.op, call.dtype, **named, **{**call.attributes, "part": part},
                      chain=call.chain)  # fmt: skip
    return replace(made, step=own.step)
