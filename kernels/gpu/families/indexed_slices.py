"""Slices that index tuples name: GatherND, and ScatterND in two launches.

The first launch of ScatterND finds the first and the last update of each slice by integer maxima,
the second combines the updates between them in order.  So results do not depend on the order in
which threads run, and floating-point atomics are not needed.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["COMBINED", "launch", "name", "parameters", "shared"]

COMBINED = MappingProxyType(
    {
        "none": ("", ""),
        "add": ("value + update", "value + update"),
        "mul": ("value * update", "value * update"),
        "min": ("smaller(value, update)", "update < value ? update : value"),
        "max": ("larger(value, update)", "update > value ? update : value"),
    }
)
"""Expressions of floating-point numbers and of integers."""
_BYTES = 16
"""Bytes of one access."""


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _depth(call: Call) -> int:
    """Return the number of indices in a tuple."""
    named = _named(call)
    return len(named["x"].dims) - 2 if call.op == "gather_nd" else len(named["ends"].dims) - 1


def name(call: Call) -> str:
    if call.op == "scatter_nd":
        return f"scatter_nd_{call.attributes['reduction']}"
    words = call.op.replace("_", "")
    return f"{words}_{_depth(call)}_{call.attributes['index_type']}"


def _vector(call: Call) -> int:
    """Return the number of elements of a slice that a thread of GatherND copies."""
    return _BYTES // int(DType.from_short(call.dtype).size)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    own, floating = chain_parameters.ELEMENTS[DType.from_short(call.dtype)], call.dtype in TYPES
    if call.op == "scatter_nd":
        combined = COMBINED[str(call.attributes["reduction"])][0 if floating else 1]
        return {
            "element": own, "floating": floating, "sum": "float" if floating else own,
            "combined": combined,
        }  # fmt: skip
    missing = '__builtin_nanf("")' if floating else ""
    return {
        "element": own, "index_element": call.attributes["index_type"], "depth": _depth(call),
        "missing": missing, "vector": _vector(call),
    }  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    make = {"gather_nd": _gathered, "update_order": _ordered, "scatter_nd": _scattered}
    made, count = make[call.op](call)
    blocks = combine("ceildiv", count, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))


def _gathered(call: Call) -> tuple[list[Argument], Any]:
    named, own = _named(call), DType.from_short(call.dtype)
    x, ids, y = named["x"], named["ids"], named["y"]
    made = [pointer(x, own), i32(x.strides[0])]
    for step, size in zip(x.strides[1:-1], x.dims[1:-1], strict=True):
        made += [i32(step), i32(size)]
    index = DType.from_short(str(call.attributes["index_type"]))
    made += [i32(x.strides[-1]), pointer(ids, index), *map(i32, ids.strides)]
    items, rows, cols = y.dims
    runs = combine("ceildiv", cols, _vector(call))
    count = product((items, rows, runs))
    made += [pointer(y, own), *map(i32, y.strides), *map(divisor, (rows, runs))]
    made += [i32(cols), i32(count)]
    return made, count


def _ordered(call: Call) -> tuple[list[Argument], Any]:
    named = _named(call)
    ids, ends = named["ids"], named["ends"]
    made = [pointer(ids, DType.from_short(str(call.attributes["index_type"])))]
    made += [*map(i32, ids.strides), pointer(ends, DType.I32), *map(i32, ends.dims[:-1])]
    made += [pointer(named["slices"], DType.I32), i32(ids.dims[0])]
    return made, ids.dims[0]


def _scattered(call: Call) -> tuple[list[Argument], Any]:
    named, own = _named(call), DType.from_short(call.dtype)
    made = list[Argument]()
    for one in ("x", "updates"):
        made += [pointer(named[one], own), *map(i32, named[one].strides)]
    made += [pointer(named[one], DType.I32) for one in ("ends", "slices")]
    y = named["y"]
    count = product(y.dims)
    made += [pointer(y, own), *map(i32, y.strides), divisor(y.dims[1]), i32(count)]
    made.append(i32(named["updates"].dims[0]))
    return made, count
