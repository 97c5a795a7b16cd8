"""Attention to few keys and its projection in one launch, for sm_90a: short heads, few rows.

A cluster has 16 rows, a block of it the heads of 64 columns and their part of the projection's
depth; blocks exchange sums through distributed shared memory.  A call stands for attention or for
the matmul behind it (``part``): kernels of their own compute them where no cluster does; where one
does, the matmul launches it and attention launches nothing.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from tracea_graph.ir import DType, Extent, combine, evaluate, product, symbols_of
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS, PROJECTION_PARTS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    constant_buffer_flag,
    divisor,
    f32,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import COL, FULL, ROW, Chain, Step

__all__ = ["MOST_KEYS", "QUERIES", "is_aligned", "launch", "name", "parameters", "part_of",
           "refusal", "residual_norm", "shared", "with_sizes"]  # fmt: skip

QUERIES, MOST_KEYS = 16, 128
"""Rows of a cluster, and the maximum number of keys."""
_HEAD, _OWN, _LINE = 32, 64, 128
"""Columns of a head and of a block, and bytes of a row in shared memory."""


def residual_norm(dtype: str) -> Chain:
    """Return the epilogue that adds rows normalised by given means, deviations, gamma and beta."""
    own, f = TYPES[dtype], DType.F32
    steps = (Step("sub", (1, 2)), Step("mul", (6, 3)), Step("mul", (7, 4)), Step("add", (8, 5)),
             Step("add", (0, 9)))  # fmt: skip
    return Chain((FULL, FULL, COL, COL, ROW, ROW), steps, (10,), (f, own, f, f, f, f), (own,))


def _named(call: Call) -> dict[str, Any]:
    return dict(CALLS.of(call).named(call))


def part_of(call: Call) -> Call:
    """Return the attention or the matmul that a call stands for."""
    n = _named(call)
    if call.attributes["part"] == "attention":
        made = CALLS.make(
            "attention", call.dtype, q=n["q"], k=n["k"], v=n["v"], mask=n["mask"], y=n["attended"],
            mask_kind="none" if n["mask"] is None else "add", order="none", zero_rows="none",
            scale=call.attributes["scale"], fill=-inf, softcap=0.0,
        )  # fmt: skip
    else:
        added = [n[x] for x in ("x", "mean", "inverse", "gamma", "beta")]
        made = CALLS.make("gemm", call.dtype, x=n["rows"], w=n["w"], bias=n["bias"], inputs=added,
                          y=[n["y"]], layout="nk", chain=call.chain)  # fmt: skip
    return replace(made, step=call.step)


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the weight's sizes, on which the kernel's source depends."""
    at, views = CALLS.of(call).slices(call)["w"].start, list(skeleton.views)
    view, own = views[at], call.views[at]
    assert view is not None and own is not None
    views[at] = replace(view, dims=own.dims)
    return replace(skeleton, views=tuple(views))


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    n, columns = _named(call), variant.params["cluster"] * _OWN
    heads, rows = [n["q"], n["k"], n["v"]], [n["x"], n["y"]]
    if n["w"].dims != (columns, columns) or any(
        v.dims[1] * _HEAD != columns or v.dims[3] != _HEAD for v in heads
    ):
        return f"there are not {columns} columns, in heads of {_HEAD}"
    if call.chain != residual_norm(call.dtype):
        return "the epilogue does not add normalised rows"
    if any(v.strides[1] != _HEAD for v in heads):
        return "heads do not lie beside each other"
    if n["mask"] is not None and n["mask"].strides[1:] != (0, 0, 1):
        return "the mask is not one contiguous row for all queries"
    keys = n["k"].dims[2]
    if isinstance(keys, int) and not 0 < keys <= MOST_KEYS:
        return f"the number of keys is 0 or above {MOST_KEYS}"
    vectors = [n[v] for v in ("bias", "gamma", "beta")]
    if any(v.strides[-1] != 1 for v in (*heads, *rows, *vectors, n["w"])):
        return "rows and vectors are not contiguous"
    if any(v.strides != (1, 0) for v in (n["mean"], n["inverse"])):
        return "means and deviations are not one number per row"
    if any(v.buffer.kind != "temp" for v in (*heads, *rows)):
        return "rows are those of an input or output, which may lie at any address"
    steps = [s for v in (*heads, *rows, n["w"]) for s in (*v.strides[:-1], v.offset)]
    steps += [v.offset for v in vectors]
    if not all(map(is_aligned, steps)):
        return "rows or vectors are not aligned to 16 bytes"
    return ""


def is_aligned(step: Extent) -> bool:
    """Whether a stride or offset is a multiple of 16 bytes for every size.

    Otherwise a run could find that tensor maps cannot copy the operands, when attention has
    already been left to the matmul's launch.
    """
    several = (dict.fromkeys(symbols_of(step), n) for n in (1, 2, 3))
    return all(evaluate(step, sizes) % 8 == 0 for sizes in several)


def name(call: Call) -> str:
    word = f"attention_projection_{_named(call)['w'].dims[0]}"
    return word + ("_add" if _named(call)["mask"] is not None else "")


def shared(call: Call, variant: Variant) -> int:
    columns = variant.params["cluster"] * _OWN
    lines = columns + 2 * MOST_KEYS + QUERIES
    return lines * _LINE + QUERIES * columns * 4 + QUERIES * 16 * 4 + 4 * 8


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    return {
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "kind": call.dtype,
        "instructions": [],
        "masked": _named(call)["mask"] is not None,
        "queries": QUERIES,
        "keys": MOST_KEYS,
    }


def _as_rows(view: View) -> View:
    """Return heads beside each other as rows of all columns."""
    batch, heads, rows, head = view.dims
    dims = batch, rows, combine("mul", heads, head)
    return View(view.buffer, dims, (view.strides[0], view.strides[2], 1), view.offset)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    """Return the launch of a call; that of attention has no blocks."""
    taken = shared(call, variant)
    if call.attributes["part"] != PROJECTION_PARTS[-1]:
        return Launch(symbol, (0, 1, 1), variant.threads, taken, ())
    n, own, columns = _named(call), TYPES[call.dtype], variant.params["cluster"] * _OWN
    made: list[Argument] = [tensor_map(_as_rows(n["q"]), own, (1, QUERIES, _OWN))]
    made += [tensor_map(_as_rows(n[v]), own, (1, MOST_KEYS, _OWN)) for v in ("k", "v")]
    made += [tensor_map(n["w"], own, (columns // 2, _OWN))]
    if n["mask"] is not None:
        made += [pointer(n["mask"], DType.F32), i32(n["mask"].strides[0])]
    made += [pointer(n["bias"], DType.F32), pointer(n["x"], own)]
    made += [pointer(n[v], DType.F32) for v in ("mean", "inverse", "gamma", "beta")]
    made += [pointer(n["y"], own), i32(n["x"].strides[0]), i32(n["y"].strides[0])]
    batch, _, queries, _ = n["q"].dims
    tiles = combine("ceildiv", queries, QUERIES)
    made += [divisor(tiles), i32(queries), i32(n["k"].dims[2]), f32(call.attributes["scale"])]
    made += [constant_buffer_flag(n["w"])]
    blocks = product((batch, tiles, variant.params["cluster"]))
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
