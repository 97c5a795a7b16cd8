"""Cumulative sums of lines, and updates of a line's elements where indices say."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.indexed_slices import COMBINED
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]


_BYTES = 16
_WARP = 32
_RESIDENT = MappingProxyType({4: 3, 8: 2})
"""Blocks of an SM, by the bytes of a sum; one more of floats."""
_ROWS = 8
"""Consecutive elements of a thread where lines lie side by side."""
_WIDE = 128
"""Adjacent lines of a block, where lines lie side by side and are short."""
_FEW_LINES = 4096
"""Lines that need narrower blocks, so that there are enough of these."""
_SHORT, _MOST_TEAMS = 512, 8
"""Maximum elements of lines of which a block takes several at a time, and their number."""
_SHORTEST, _TINY_TEAMS = 128, 32
"""The same of a cumulative sum's shortest lines."""
_SLOTS = _SHORT * _MOST_TEAMS
"""Elements whose updates a block counts at a time."""


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _held(call: Call) -> DType:
    """Return the type of sums: float32 for floats, else that of the elements."""
    return DType.F32 if call.dtype in TYPES else DType.from_short(call.dtype)


def _by_columns(call: Call) -> bool:
    """Whether lines of all operands lie side by side, and their elements apart."""
    steps = [v.strides[-2:] for v in call.views if v]
    return all(line == 1 and element != 1 for line, element in steps)


def name(call: Call) -> str:
    a = call.attributes
    if call.op == "cumulative_sum":
        said = "_exclusive" * bool(a["exclusive"]) + "_back" * bool(a["reverse"])
        return "cumulative_sum" + "_columns" * _by_columns(call) + said
    by = "_columns" * _by_columns(call)
    return f"scatter_elements{by}_{a['reduction']}_{a['index_type']}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    a, floating = call.attributes, call.dtype in TYPES
    own, held = chain_parameters.ELEMENTS[DType.from_short(call.dtype)], _held(call)
    if call.op == "cumulative_sum":
        columns = _by_columns(call)
        return {
            "element": own, "held": chain_parameters.ELEMENTS[held], "floating": floating,
            "exclusive": a["exclusive"], "reverse": a["reverse"], "columns": columns,
            "run": _run(call), "each": _ROWS if columns else _vectors(call),
            "blocks": _RESIDENT[int(held.size)] + floating,
            "size": _BYTES // _run(call), "widths": (*sorted(set(_narrow(call))), _WIDE),
        }  # fmt: skip
    return {
        "element": own, "index_element": a["index_type"], "floating": floating,
        "sum": chain_parameters.ELEMENTS[held], "columns": _by_columns(call), "slots": _SLOTS,
        "combined": COMBINED[str(a["reduction"])][0 if floating else 1],
    }  # fmt: skip


def _run(call: Call) -> int:
    """Return the number of elements of a vector of 16 bytes."""
    return _BYTES // int(DType.from_short(call.dtype).size)


def _vectors(call: Call) -> int:
    """Return the vectors of a thread where elements of a line lie side by side."""
    return 2 if call.dtype in ("f16", "bf16") else 4


def _narrow(call: Call) -> tuple[int, int]:
    """Return the adjacent lines of a block that adds up long ones, of few lines and of many."""
    return {2: (32, 32), 4: (16, 32), 8: (16, 16)}[int(DType.from_short(call.dtype).size)]


def _across(call: Call, lines: Extent) -> Extent:
    """Return the adjacent lines of a block, of so many long ones in all."""
    few, many = _narrow(call)
    return combine("sub", many, combine("mul", _is_at_most(lines, _FEW_LINES - 1), many - few))


def _is_at_most(size: Extent, limit: int) -> Extent:
    """Return 1 if a size is at most ``limit``, else 0."""
    return combine("min", 1, combine("floordiv", limit, combine("max", size, 1)))


def shared(call: Call, variant: Variant) -> int:
    if call.op != "cumulative_sum":
        return 4 * _SLOTS * (1 if call.attributes["reduction"] == "none" else 2)
    lines = _WIDE if _by_columns(call) else 1
    return 2 * int(_held(call).size) * variant.threads // _WARP * lines


def _teams(cols: Extent, tiny: bool = False) -> Extent:
    """Return how many lines a block takes at a time: several short ones, or one."""
    more = combine("mul", _is_at_most(cols, _SHORT), _MOST_TEAMS - 1)
    if tiny:
        least = combine("mul", _is_at_most(cols, _SHORTEST), _TINY_TEAMS - _MOST_TEAMS)
        more = combine("add", more, least)
    return combine("add", more, 1)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, own = _named(call), DType.from_short(call.dtype)
    made = list[Argument]()
    if call.op == "cumulative_sum":
        for one in ("x", "y"):
            made += [pointer(named[one], own), *map(i32, named[one].strides)]
        outer, inner, cols = named["x"].dims
        if _by_columns(call):
            narrow = _across(call, combine("mul", outer, inner))
            few = _is_at_most(cols, _ROWS * variant.threads * _run(call) // _WIDE)
            across = combine("add", combine("mul", few, combine("sub", _WIDE, narrow)), narrow)
            width = combine("ceildiv", inner, across)
            made += [divisor(width), i32(cols), i32(inner), i32(across)]
            blocks = combine("mul", outer, width)
        else:
            lines, teams = combine("mul", outer, inner), _teams(cols, tiny=True)
            made += [divisor(inner), i32(cols), i32(lines), i32(teams)]
            blocks = combine("ceildiv", lines, teams)
        return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))
    index = DType.from_short(str(call.attributes["index_type"]))
    for one, dtype in {"x": own, "ids": index, "updates": own, "y": own}.items():
        made += [pointer(named[one], dtype), *map(i32, named[one].strides)]
    outer, second, third, cols = named["y"].dims
    lines, teams = product((outer, second, third)), _teams(cols)
    if _by_columns(call):
        teams = _MOST_TEAMS
    spans = combine("ceildiv", cols, combine("floordiv", _SLOTS, teams))
    made += [divisor(second), divisor(third), i32(cols), i32(lines)]
    made += [i32(named["ids"].dims[-1]), divisor(spans), i32(teams)]
    blocks = combine("mul", combine("ceildiv", lines, teams), spans)
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))
