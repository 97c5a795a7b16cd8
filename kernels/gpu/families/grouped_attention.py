"""Attention of few queries to caches by tensor cores, which reads each key once for a group.

The queries that share a head of the caches, of all rows, are the rows of matrices; see
:mod:`cached_attention` for the operands and for the source of the split over blocks.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.kernels.gpu.families.cached_attention import (
    head_of,
    is_multiple,
    launch_of_tiles,
    name_of,
    named_operands,
    parameters_of_operands,
)
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, matrix_load, prove_free
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, WARP, MatrixLoad
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import RUN, Layout
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["QUERIES", "launch", "name", "parameters", "refusal", "shared"]

QUERIES, _KEYS = 16, 16
"""Queries of a block, and keys of a tile: the sides of a matrix."""
_WIDE, _SIZE, _STEP = 256, 2, 16
"""Largest size of heads, bytes of a number, and what sizes of heads are multiples of."""
_VECTOR, _RESULTS = RUN // _SIZE, 4
"""Numbers of one copy, and of one store of results."""
_PAD = 8
"""Padding of rows of partial results, in numbers."""
_SHARED, _MOST_STAGES = 99 << 10, 4
"""Bytes of shared memory that a block has on every GPU with clusters; most stages of a ring."""


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can."""
    a, named, head = call.attributes, named_operands(call), head_of(call)
    if call.dtype not in ("f16", "bf16") or a["cache_type"] != call.dtype:
        return "caches and queries are not in the same 16 bits"
    if head % _STEP or head > _WIDE:
        return f"heads do not have a multiple of {_STEP} columns up to {_WIDE}"
    if int(a["page_size"]) % _KEYS:
        return f"pages do not have a multiple of {_KEYS} rows"
    if shared(call, variant) > _SHARED:
        return f"it takes more than {_SHARED} bytes of shared memory"
    whole = [(one, _VECTOR) for one in ("past_k", "past_v", "k", "v")] + [("y", _RESULTS)]
    for operand, run in whole:
        if (view := named[operand]) is None:
            continue
        steps = (view.offset, *view.strides[:-1])
        if view.strides[-1] != 1 or not all(is_multiple(n, run) for n in steps):
            return f"rows of {operand} are not known to be runs of {run} numbers"
    return ""


def name(call: Call) -> str:
    return name_of(call, "attention_grouped", str(head_of(call)))


def _warps(variant: Variant) -> int:
    return variant.threads // WARP


def _pitch(call: Call) -> int:
    """Return the distance of rows in shared memory in bytes: eight of them meet in no bank."""
    return head_of(call) * _SIZE + RUN


def _stage_bytes(call: Call) -> int:
    """Return the bytes of a tile of keys and its values; its warp's sums have room there."""
    sums = QUERIES * (head_of(call) + _PAD) * 4
    return max(2 * _KEYS * _pitch(call), sums)


def _most_runs(call: Call, variant: Variant) -> int:
    """Return how many runs of results a block of a cluster adds at most."""
    runs = QUERIES * head_of(call) // _RESULTS
    return -(-runs // int(variant.params["cluster"]))


def _sent_at(call: Call) -> int:
    return QUERIES * _pitch(call)


def _ends_at(call: Call, variant: Variant) -> int:
    runs = int(variant.params["cluster"]) * _most_runs(call, variant)
    return _sent_at(call) + runs * _RESULTS * 4


def _barrier_at(call: Call, variant: Variant) -> int:
    parts = int(variant.params["cluster"]) + _warps(variant)
    return _ends_at(call, variant) + parts * QUERIES * 2 * 4


def _ring_at(call: Call, variant: Variant) -> int:
    return _barrier_at(call, variant) + RUN


def _stages(call: Call, variant: Variant) -> int:
    """Return how many tiles a warp's ring has."""
    left = _SHARED - _ring_at(call, variant)
    return max(1, min(_MOST_STAGES, left // (_warps(variant) * _stage_bytes(call))))


def _prove(call: Call) -> None:
    """Prove accesses free of bank conflicts; raises BankConflict otherwise."""
    layout = Layout(_pitch(call))
    a = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)))
    nk = MatrixLoad(((0, 0), (0, 8), (8, 0), (8, 8)))
    kn = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)), transposed=True)
    for column in range(0, head_of(call), _STEP):
        prove_free([matrix_load(what, load, layout, 0, column)
                    for what, load in (("queries", a), ("keys", nk), ("values", kn))])  # fmt: skip
    pitch = head_of(call) + _PAD
    stores = tuple(4 * (i // 4 * pitch + i % 4 * 2) for i in range(WARP))
    prove_free([Access("partial results", 8, stores)])


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    _prove(call)
    return {
        **parameters_of_operands(call),
        "kind": call.dtype, "instructions": (),  # of warpgroups, which it does not use
        "fragment": ATOMS["m16n8k16.f16"].d,
        "queries": QUERIES, "keys": _KEYS, "warps": _warps(variant),
        "pairs": -(-head_of(call) // (2 * WARP)),
        "pitch": _pitch(call), "sum_pitch": head_of(call) + _PAD,
        "stages": _stages(call, variant), "stage_bytes": _stage_bytes(call),
        "most_runs": _most_runs(call, variant),
        "sent_at": _sent_at(call), "ends_at": _ends_at(call, variant),
        "barrier_at": _barrier_at(call, variant), "ring_at": _ring_at(call, variant),
    }  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    rings = _warps(variant) * _stages(call, variant) * _stage_bytes(call)
    return _ring_at(call, variant) + rings


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    return launch_of_tiles(call, variant, symbol, QUERIES, shared(call, variant))
