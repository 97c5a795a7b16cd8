"""Matmul of 8-bit integers and the layer norm of its rows, whose results are bytes, for sm_90a.

The kernel is that of :mod:`warpgroup_integers`.  Two blocks of a cluster have 64 rows, each of
their warpgroups a quarter of the columns; they exchange the moments of their parts of each row
through shared memory.  A call stands for the matmul or the norm (``part``): kernels of their own
compute them where this one does not; where it does, the norm launches it and the matmul launches
nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS, NORMED_PARTS
from tracea_graph.kernels.gpu.families import warpgroup_integers
from tracea_graph.kernels.gpu.launch import MAP_ALIGN, Launch, f32
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import MAX_OPERANDS, ROW, Chain

__all__ = ["launch", "name", "parameters", "part_of", "refusal", "shared", "with_sizes"]

_QUARTERS = 4
"""Warpgroups that have the columns of a row."""
_NORM = ("gamma", "beta")
_ROUNDING = {"step": "level", "zero": "level_zero", "low": "low", "high": "high"}
"""Attributes of a norm by those of the call."""


def _named(call: Call) -> dict[str, Any]:
    return dict(CALLS.of(call).named(call))


def part_of(call: Call) -> Call:
    """Return the matmul or the norm that a call stands for."""
    n, a = _named(call), call.attributes
    if a["part"] == NORMED_PARTS[0]:
        return replace(_matmul(call, n["inputs"], n["middle"], call.chain), step=call.step)
    assert call.chain is not None
    made = CALLS.make(
        "norm", call.chain.result_types[0].short, x=[n["middle"]], rounded=n["y"], kind="layer",
        **{one: n[one] for one in _NORM}, **{one: a[own] for one, own in _ROUNDING.items()},
        **dict.fromkeys(("y", "also", "scales")), rounded_type=a["rounded_type"],
        epsilon=a["epsilon"],
    )  # fmt: skip
    return replace(made, step=call.step)


def _matmul(call: Call, inputs: list[View], y: View, chain: Chain | None) -> Call:
    n, a = _named(call), call.attributes
    operands = {one: n[one] for one in ("x", "w", "x_zero", "column_sums")}
    return CALLS.make("integer_gemm", call.dtype, **operands, w_zeros=None, inputs=inputs, y=[y],
                      chain=chain, shifted=a["shifted"], zero=a["zero"])  # fmt: skip


def _whole(call: Call) -> Call:
    """Return the matmul as the kernel computes it: gamma and beta are rows, results are bytes."""
    chain, n = call.chain, _named(call)
    assert chain is not None
    own, added = len(chain.operands), len(_NORM)

    def moved(ref: int) -> int:
        return ref + added * (ref >= own)

    made = Chain(
        (*chain.operands, *(ROW for _ in _NORM)), tuple(s.renumbered(moved) for s in chain.steps),
        tuple(map(moved, chain.results)), (*chain.operand_types, *(DType.F32 for _ in _NORM)),
        (DType.from_short(str(call.attributes["rounded_type"])),),
    )  # fmt: skip
    rows = [View(n[one].buffer, n["y"].dims, (0, *n[one].strides), n[one].offset) for one in _NORM]
    return _matmul(call, [*n["inputs"], *rows], n["y"], made)


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the step of the result's rows."""
    at = CALLS.of(call).slices(call)["y"].start
    y = skeleton.views[at]
    assert y is not None
    views = (*skeleton.views[:at], replace(y, strides=(MAP_ALIGN, 1)), *skeleton.views[at + 1 :])
    return replace(skeleton, views=views)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    n, chain = _named(call), call.chain
    if n["y"].dims[-1] != _QUARTERS * variant.params["n"]:
        return f"rows have not {_QUARTERS * variant.params['n']} columns"
    if chain is None or len(chain.operands) + len(_NORM) > MAX_OPERANDS:
        return "the epilogue has too many operands"
    if any(v.buffer.kind != "temp" for v in (n["x"], n["w"])):
        return "operands are those of an input, which may lie at any address"
    if not all(isinstance(s, int) for v in (n["x"], n["w"]) for s in (v.strides[0], v.offset)):
        return "it is not known whether tensor maps can copy the operands"
    if n["y"].strides[0] != n["y"].dims[-1]:
        return "rows of the result are not aligned to 16 bytes"
    whole = _whole(call)
    if warpgroup_integers.table_of(whole) is not None:
        return "a table holds the results of a matmul without a norm"
    return warpgroup_integers.refusal(whole, variant)


def name(call: Call) -> str:
    return warpgroup_integers.name(_whole(call)).replace("wgmma", "wgmma_normed", 1)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    whole = _whole(call)
    made, last = warpgroup_integers.parameters(whole, variant), len(_named(whole)["inputs"])
    rows = {one: f"x{last - 1 + i}" for i, one in enumerate(_NORM)}
    return {**made, **rows}


def shared(call: Call, variant: Variant) -> int:
    return warpgroup_integers.shared(_whole(call), variant)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    """Return the launch of a call; that of the matmul has no blocks."""
    taken, a = shared(call, variant), call.attributes
    if a["part"] == NORMED_PARTS[0]:
        return Launch(symbol, (0, 1, 1), variant.threads, taken, ())
    numbers = [f32(float(a[one])) for one in ("epsilon", *_ROUNDING.values())]
    return warpgroup_integers.launch(_whole(call), variant, symbol, numbers)
