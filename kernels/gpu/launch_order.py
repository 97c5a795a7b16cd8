"""List the calls of a program that one execution launches, and why each is a separate launch.

At batch 1 the execution time is that of the launches one after another, so read this list first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tracea_graph.ir import evaluate, symbols_of
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import COMPOSED, launches_for, variants_of
from tracea_graph.kernels.program import Buffer, Call, LaunchedCall, Program

__all__ = ["constant_calls", "launch_order"]

_NEEDS = MappingProxyType({
    "gemm": "a product reads whole rows",
    "mlp": "a product reads whole rows",
    "gated_gemm": "a product reads whole rows",
    "grouped_integer_gemm": "a product reads whole rows",
    "normed_integer_gemm": "a product reads whole rows",
    "low_rank_gemm": "a product reads whole rows",
    "attention_projection": "a query reads all keys",
    "quantized_attention": "a query reads all keys",
    "conv": "a filter reads pixels of several tiles",
    "expanded_depthwise": "a filter reads all channels of a pixel",
    "depthwise": "a filter reads pixels of several tiles",
    "depthwise_projection": "a filter reads pixels of several tiles",
    "pool": "a window reads pixels of several tiles",
    "squeeze_excite": "a gate needs the mean of all pixels",
    "resize": "an interpolation reads pixels of several tiles",
    "attention": "a query reads all keys",
    "attention_rows": "a query reads all keys",
    "attention_cached": "a query reads all keys",
    "norm": "a norm reads whole rows",
    "softmax": "a softmax reads whole rows",
    "reduce": "a sum reads whole rows",
    "arg": "an ArgMax or ArgMin reads whole rows",
    "top_k": "a top-k selection reads whole rows",
    "take": "a look-up reads any element of its row",
    "gather_nd": "a look-up reads any slice",
    "scatter_elements": "an element reads all updates of its line",
    "cumulative_sum": "a sum reads its line up to its end",
    "grid_sample": "a grid names any pixel",
    "update_order": "the order of updates is found from zeros",
    "scatter_nd": "an update reads the order of all updates",
    "recurrent": "the steps of a sequence read many rows",
})  # fmt: skip
"""Reasons why an op needs the results of several blocks of the previous launch."""


def constant_calls(calls: Sequence[Call], fixed: frozenset[int]) -> list[bool]:
    """Return for each call whether it runs once, when a session opens, and not at every execution.

    Such a call only reads constants.  ``fixed`` are the indices of constant inputs.  The runtime
    decides by the same rules.
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


def launch_order(
    program: Program, fixed: frozenset[int], sizes: Mapping[str, int]
) -> tuple[LaunchedCall, ...]:
    """Return the calls that one execution at given sizes launches on the newest architecture, and
    why each is a separate launch.
    """
    once = constant_calls(program.calls, fixed)
    made, before = list[LaunchedCall](), None
    for i, (given, done) in enumerate(zip(program.calls, once, strict=True)):
        call = None if done else _launched(given, sizes)
        if call is not None:
            made.append(LaunchedCall(i, call.name, _why(before, call)))
            before = call
    return tuple(made)


def _launched(call: Call, sizes: Mapping[str, int]) -> Call | None:
    """Return what a call launches: nothing, itself, or the one of several calls it stands for."""
    if call.op not in COMPOSED:
        return call
    for (variant, when), (launch, _) in zip(variants_of(call), launches_for(call), strict=True):
        together = variant.op == call.op and sizes.keys() >= set(symbols_of(when))
        if together and evaluate(when, sizes) > 0:
            return call if all(launch.blocks(sizes)) else None
    own: Call = COMPOSED[call.op].part_of(call)
    return own


def _why(before: Call | None, call: Call) -> str:
    """Return why a call is not fused into the launch before it."""
    if before is None:
        return ""
    written = {v.buffer for o, v in CALLS.of(before).each(before) if o.written and v is not None}
    read = {v.buffer for o, v in CALLS.of(call).each(call) if not o.written and v is not None}
    if not written & read:
        return f"it does not read the {before.op}, and no kernel computes both"
    need = _NEEDS.get(call.op)
    if need is None:
        return f"no rule fuses it into the {before.op}"
    return f"{need}, which several blocks of the {before.op} write"
