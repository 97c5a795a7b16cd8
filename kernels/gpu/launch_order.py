"""Tell which calls of a program a run launches, and why each is a launch of its own.

At batch 1 a run takes as long as its launches follow one another, so this is what to read first.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import Buffer, Call, LaunchedCall, Program

__all__ = ["constant_calls", "launch_order"]

_NEEDS = MappingProxyType({
    "gemm": "a tile multiplies whole rows",
    "conv": "a filter reads across tiles",
    "depthwise": "a filter reads across tiles",
    "pool": "a window reads across tiles",
    "resize": "an interpolation reads across tiles",
    "attention": "a query reads all keys",
    "attention_rows": "a query reads all keys",
    "norm": "a norm reads whole rows",
    "softmax": "a softmax reads whole rows",
    "reduce": "a sum reads whole rows",
    "arg": "a search reads whole rows",
    "top_k": "a choice reads whole rows",
    "take": "rows are looked up anywhere",
    "recurrent": "steps follow one another",
})  # fmt: skip
"""Ops that need results of several blocks of the launch before."""


def constant_calls(calls: Sequence[Call], fixed: frozenset[int]) -> list[bool]:
    """Return which calls run once, when a session opens: those of constants and nothing else.

    ``fixed`` are the inputs that are constants.  The rules are those of the runtime.
    """
    once, changing = [True] * len(calls), True
    while changing:
        changing = False
        varying = set[Buffer]()
        for call, done in zip(calls, once, strict=True):
            for operand, view in CALLS.of(call).each(call):
                if view is not None and operand.written and not done:
                    varying.add(view.buffer)
        for i, call in enumerate(calls):
            touched = {v.buffer for v in call.views if v is not None}
            moves = any(b.kind == "output" or (b.kind == "input" and b.index not in fixed)
                        for b in touched)  # fmt: skip
            sized = any(not isinstance(e, int) for v in call.views if v is not None
                        for e in (*v.dims, *v.strides, v.offset))  # fmt: skip
            if once[i] and (moves or sized or touched & varying):
                once[i], changing = False, True
    return once


def launch_order(program: Program, fixed: frozenset[int]) -> tuple[LaunchedCall, ...]:
    """Return the calls that a run launches, and why each is not part of the launch before."""
    once = constant_calls(program.calls, fixed)
    order = [i for i, done in enumerate(once) if not done]
    made, before = list[LaunchedCall](), None
    for i in order:
        call = program.calls[i]
        made.append(LaunchedCall(i, call.name, _why(before, call)))
        before = call
    return tuple(made)


def _why(before: Call | None, call: Call) -> str:
    """Return what keeps a call from being part of the launch before it."""
    if before is None:
        return ""
    written = {v.buffer for o, v in CALLS.of(before).each(before) if o.written and v is not None}
    read = {v.buffer for o, v in CALLS.of(call).each(call) if not o.written and v is not None}
    if not written & read:
        return f"no kernel computes it beside the {before.op}, which it does not read"
    need = _NEEDS.get(call.op)
    if need is None:
        return f"no rule makes it part of the {before.op}"
    return f"{need}, which several blocks of the {before.op} write"
