"""Matmuls of 8-bit integers of the same rows in one launch, for sm_90a: queries, keys and values.

Quantized layers have steps and bounds of their own, so that such matmuls cannot become one of a
wider matrix.  Their tiles are numbered one matmul after the other instead; a tile takes the
operands and the numbers of its epilogue from its matmul.  A call stands for one of these matmuls
(``part``): kernels of their own compute them where this one does not; where it does, the last one
launches it and the others launch nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu.calls import CALLS, GROUP_PARTS
from tracea_graph.kernels.gpu.families import warpgroup_integers, warpgroup_matmul
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    constant_buffer_flag,
    f32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import ROW

__all__ = ["launch", "matmuls_of", "name", "numbers_of", "parameters", "part_of", "refusal",
           "shared", "with_sizes"]  # fmt: skip


def _named(call: Call) -> dict[str, Any]:
    return dict(CALLS.of(call).named(call))


def matmuls_of(call: Call) -> tuple[Call, ...]:
    """Return all matmuls of a call's group, with the epilogue of the call."""
    return tuple(_matmul(call, i) for i in range(_count(call)))


def _count(call: Call) -> int:
    return int(call.attributes["matrices"])


def part_of(call: Call) -> Call:
    """Return the matmul that a call stands for."""
    return _matmul(call, GROUP_PARTS.index(call.attributes["part"]))


def _matmul(call: Call, i: int) -> Call:
    """Return the matmul with a number, with the epilogue of the call."""
    n, a = _named(call), call.attributes
    each = len(n["inputs"]) // _count(call)
    made = CALLS.make(
        "integer_gemm", call.dtype, x=n["x"], w=n["w"][i], x_zero=n["x_zero"], w_zeros=None,
        column_sums=n["column_sums"][i] if n["column_sums"] else None,
        inputs=n["inputs"][i * each : (i + 1) * each], y=[n["y"][i]], chain=call.chain,
        shifted=a["shifted"], zero=a["zero"],
    )  # fmt: skip
    return replace(made, step=call.step)


def numbers_of(matmul: Call) -> tuple[str, tuple[float, ...]]:
    """Return the key of a matmul's epilogue without its numbers, and these numbers."""
    found = warpgroup_integers.epilogue_of(matmul)
    return found.key, found.values


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with what a kernel's source depends on of the results' rows."""
    return warpgroup_matmul.with_row_step(skeleton, call, "n")


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    matmuls, n = matmuls_of(call), _named(call)
    columns = {w.dims[0] for w in n["w"]}
    if len(columns) > 1 or not all(isinstance(c, int) and c % variant.params["n"] == 0
                                   for c in columns):  # fmt: skip
        return "a tile would have columns of two matrices"
    if len({y.strides for y in n["y"]}) > 1 or n["y"][0].strides[-1] != 1:
        return "rows of the results are not equally far apart"
    if call.chain is None or set(call.chain.operands[1:]) - {ROW}:
        return "an epilogue reads numbers that differ from row to row"
    if warpgroup_integers.table_of(matmuls[0]) is not None:
        return "a table holds the results of one matmul"
    if any(v.buffer.kind != "temp" for v in (n["x"], *n["w"])):
        return "operands are those of an input, which may lie at any address"
    operands = (n["x"], *n["w"])
    if not all(isinstance(s, int) for v in operands for s in (v.strides[0], v.offset)):
        return "it is not known whether tensor maps can copy the operands"
    return next((w for m in matmuls if (w := warpgroup_integers.refusal(m, variant))), "")


def name(call: Call) -> str:
    made = warpgroup_integers.name(_matmul(call, 0)).replace("wgmma", "wgmma_grouped", 1)
    return f"{made}_{_count(call)}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = warpgroup_integers.parameters(_matmul(call, 0), variant)
    return {**made, "groups": _count(call)}


def shared(call: Call, variant: Variant) -> int:
    return warpgroup_integers.shared(_matmul(call, 0), variant)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    """Return the launch of a call; only that of the last part has blocks."""
    first, *others = matmuls_of(call)
    taken = shared(call, variant)
    if call.attributes["part"] != GROUP_PARTS[_count(call) - 1]:
        return Launch(symbol, (0, 1, 1), variant.threads, taken, ())
    made = warpgroup_integers.launch_without_numbers(first, variant, symbol)
    count = len(numbers_of(first)[1])
    numbers = [f32(float(value)) for value in call.attributes["numbers"]]
    *arguments, fixed = made.arguments
    for i, other in enumerate(others, 1):
        arguments += _operands(other, variant)
        arguments += numbers[i * count : (i + 1) * count]
    blocks, _, _ = made.grid
    return replace(
        made,
        arguments=(*arguments, fixed, *numbers[:count]),
        grid=(combine("mul", blocks, 1 + len(others)), 1, 1),
        shared=taken,
    )


def _operands(matmul: Call, variant: Variant) -> Iterator[Argument]:
    """Yield the arguments of a matmul behind the first one that are its own."""
    n, chain = _named(matmul), matmul.chain
    assert chain is not None
    box = warpgroup_matmul.boxes_of(warpgroup_integers.layout_of(matmul, variant), variant)[1]
    yield tensor_map(n["w"], DType.I8, box)
    types = (*chain.operand_types[1:], *chain.result_types)
    for view, dtype in zip((*n["inputs"], *n["y"]), types, strict=True):
        yield pointer(view, dtype)
    if n["column_sums"] is not None:
        yield pointer(n["column_sums"], DType.F32)
    yield constant_buffer_flag(n["w"])
