"""Concatenations and paddings in one launch: rows of parts side by side, and zeros between them.

The kernel writes all of y as aligned vectors, wherever parts begin and end.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.strided_copies import ELEMENTS, VECTOR_BYTES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = ["launch", "name", "parameters", "shared"]


def _rank(call: Call) -> int:
    place = CALLS.of(call).named(call)["place"]
    assert isinstance(place, View)
    return len(place.dims)


def name(call: Call) -> str:
    filled = "_filled" if call.attributes["filled"] else ""
    return f"concat_{call.attributes['count']}_rank{_rank(call)}{filled}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    (size, element, _), rank = ELEMENTS[call.dtype], _rank(call)
    count, filled = (call.attributes[key] for key in ("count", "filled"))
    axes = range(rank - 1)
    starts = [" + ".join(f"i{axis} * x_{k}_{axis}" for axis in axes) for k in range(count)]
    return {"size": size, "element": element, "rank": rank, "run": VECTOR_BYTES // size,
            "count": count, "filled": filled, "starts": starts}  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    parts, place, y, (size, _, dtype) = (*(named[n] for n in ("x", "place", "y")),
                                         ELEMENTS[call.dtype])  # fmt: skip
    count, run = product(y.dims), VECTOR_BYTES // size
    made: list[Argument] = [pointer(y, dtype), i32(count)]
    made += [i32(combine("sub", place.offset, y.offset))]
    for step, dim in zip(place.strides[:-1], place.dims[:-1], strict=True):
        made += [divisor(step), i32(dim)]
    end: Extent = 0
    for part in parts:
        end = combine("add", end, part.dims[-1])
        made += [pointer(part, dtype), *map(i32, part.strides[:-1]), i32(end)]
    # a vector more than y has if y begins inside of one
    vectors = combine("ceildiv", combine("add", count, run - 1), run)
    blocks = combine("mul", combine("ceildiv", vectors, variant.threads),
                     combine("min", count, 1))  # fmt: skip
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
