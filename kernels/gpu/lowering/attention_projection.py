"""Compute attention and the matmul behind it in one launch, if rows are few.

Both remain calls, which architectures without the kernel and more rows use: each becomes a part of
the call that stands for both (``families/attention_projection.py``).
"""

from __future__ import annotations

from typing import Any

from tracea_graph.kernels.gpu.calls import CALLS, PROJECTION_PARTS
from tracea_graph.kernels.gpu.families.attention_projection import residual_norm
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.call_parts import replace_by_parts, stands_for
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
        replace_by_parts(w, made, PROJECTION_PARTS, (attention, project))


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
    same = stands_for(made, PROJECTION_PARTS, (attention, project))
    return made if same and projection_choices(made) else None
