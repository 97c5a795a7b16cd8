"""Compute a depthwise convolution together with the 1×1 convolution that makes its image.

Both remain calls, which kernels of their own compute where that is faster: each becomes a part of
the call that stands for both (``families/expanded_depthwise.py``).
"""

from __future__ import annotations

from typing import Any

from tracea_graph.kernels.gpu.calls import CALLS, EXPANSIONS
from tracea_graph.kernels.gpu.families.convolution import is_of_volumes
from tracea_graph.kernels.gpu.families.expanded_depthwise import activation_of
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.call_parts import replace_by_parts, stands_for
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.window_choice import expansion_choices
from tracea_graph.kernels.program import Call

__all__ = ["fold_expansions"]

_TYPES = ("f16", "bf16")


def fold_expansions(w: GpuProgramWriter) -> None:
    """Make each 1×1 convolution and the depthwise one that alone reads it parts of one call."""
    uses = BufferUses(w.calls)
    of_images = [c for c in w.calls if c.op == "depthwise" and not is_of_volumes(c)]
    for filtered in [c for c in of_images if c.dtype in _TYPES]:
        image = filtered.views[0]
        expanded = uses.only_for(image, filtered) if image else None
        if expanded is None or (expanded.op, expanded.dtype) != ("conv", filtered.dtype):
            continue
        made = _call_of(expanded, filtered)
        if made is None:
            continue
        replace_by_parts(w, made, EXPANSIONS, (expanded, filtered))


def _call_of(expanded: Call, filtered: Call) -> Call | None:
    """Return the call that stands for both convolutions; None if no kernel computes it."""
    activation = activation_of(expanded)
    first: dict[str, Any] = CALLS.of(expanded).named(expanded)
    second: dict[str, Any] = CALLS.of(filtered).named(filtered)
    if activation is None or first["w"].dims[1:3] != (1, 1):
        return None
    named = {"x": first["x"], "w1": first["w"], "bias1": first["bias"], "expanded": second["x"]}
    named |= {name: second[name] for name in ("w", "bias", "inputs", "y")}
    attributes = {name: filtered.attributes[name] for name in ("strides", "pads")}
    made = CALLS.make(
        "expanded_depthwise", filtered.dtype, **named, **attributes, part=EXPANSIONS[-1],
        activation=activation, chain=filtered.chain,
    )  # fmt: skip
    same = stands_for(made, EXPANSIONS, (expanded, filtered))
    return made if same and expansion_choices(made) else None
