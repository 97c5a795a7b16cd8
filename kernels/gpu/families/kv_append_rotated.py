"""Append rotated rows to caches of keys and values, and rotate queries, in one launch.

Attention by tensor cores reads what this kernel writes: queries, and caches in its own type.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["BEYOND", "launch", "name", "parameters", "shared"]

BEYOND = 384
"""Rows behind an item's last one that become zeros: more than tiles of queries and keys reach."""
_RUN = 8
"""Numbers of each half of a row that a lane has."""


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _head(call: Call) -> int:
    size = _named(call)["k"].dims[-1]
    assert isinstance(size, int)
    return size


def _lanes(call: Call) -> int:
    """Return the number of lanes that have a row."""
    return _head(call) // (2 * _RUN)


def _cache_type(call: Call) -> DType:
    return TYPES[str(call.attributes["cache_type"])]


def name(call: Call) -> str:
    named = _named(call)
    words = [f"kv_append_rotated_d{_head(call)}", str(call.attributes["cache_type"])]
    words += ["normed"] * (named["q_gamma"] is not None)
    words += ["unturned"] * (named["cos"] is None) + ["keys"] * (named["q"] is None)
    return "_".join(words + ["rounded"] * (named["near_k"] is not None))


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    named = _named(call)
    return {
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "cache": chain_parameters.ELEMENTS[_cache_type(call)],
        "turned": named["q"] is not None,
        "rotated": named["cos"] is not None,
        "normed": named["q_gamma"] is not None,
        "rounded": named["near_k"] is not None,
        "head": _head(call), "lanes": _lanes(call), "run": _RUN, "beyond": BEYOND,
    }  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, own, cache = _named(call), TYPES[call.dtype], _cache_type(call)
    _, heads, rows, _ = (named["q"] or named["new_k"]).dims
    batch, kept, slots, _ = named["k"].dims
    made = list[Argument]()

    def add(dtype: DType, *names: str) -> None:
        for one in names:
            if named[one] is not None:
                made.extend([pointer(named[one], dtype), *map(i32, named[one].strides)])

    add(own, "q", "new_k", "new_v")
    add(cache, "past_k", "past_v")
    add(own, "cos", "sin")
    if named["q_gamma"] is not None:
        made += [pointer(named[one], DType.F32) for one in ("q_gamma", "k_gamma")]
        made.append(f32(float(call.attributes["epsilon"])))
    made += [pointer(named["positions"], DType.I64), i32(named["positions"].strides[0])]
    add(own, "turned")
    add(cache, "k", "v")
    add(own, "near_k", "near_v")
    of_q = product((batch, heads, rows)) if named["q"] is not None else 0
    of_cache = product((batch, kept, slots))
    made += [*map(divisor, (heads, kept, slots)), i32(rows), i32(named["past_k"].dims[2])]
    made += [i32(of_q), i32(of_cache)]
    whole = combine("add", of_q, combine("mul", 2, of_cache))
    blocks = combine("ceildiv", whole, variant.threads // _lanes(call))
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
