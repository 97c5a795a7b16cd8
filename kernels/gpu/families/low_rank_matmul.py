"""Two matmuls by the factors of a matrix of low rank in one launch, for sm_90a.

A cluster of two blocks has 64 rows.  What is between both products never leaves it: each block
computes half of its columns and stores them in the shared memory of both, rounded as in memory.
A call stands for one of two matmuls (``part``): kernels of their own compute them where this one
does not; where it does, the last one launches it and the other launches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS, LOW_RANK_PARTS
from tracea_graph.kernels.gpu.families import tensor_core_matmul, warpgroup_matmul
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.families.warpgroup_tile import ROWS, WORD
from tracea_graph.kernels.gpu.launch import (
    MAP_ALIGN,
    Launch,
    constant_buffer_flag,
    f32,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, prove_free
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import (
    Instruction,
    MatrixOperand,
    prove_read,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "part_of", "refusal", "shared", "with_sizes"]

_BLOCKS = 2
"""Blocks of a cluster."""
_GROUP = 8
"""Rows that tensor cores address as one group."""
_NORM = ("norm", "epsilon")
_WIDEST_READ = 192
"""Maximum columns of a tile whose epilogue reads a matrix."""


@dataclass(frozen=True)
class FirstVector:
    """A vector of the first product, of whose columns a block stages its own at an offset."""

    name: str
    at: int


def _named(call: Call) -> dict[str, Any]:
    return dict(CALLS.of(call).named(call))


def _half_depth(variant: Variant) -> bool:
    """Whether a block computes half of the first product's depth, and not of its columns."""
    return bool(variant.params.get("half_depth"))


def _columns(variant: Variant) -> int:
    """Return the columns of the first product that a cluster computes."""
    return variant.params["first"] * (1 if _half_depth(variant) else _BLOCKS)


def part_of(call: Call) -> Call:
    """Return the matmul that a call stands for."""
    n, a = _named(call), call.attributes
    first = a["part"] == LOW_RANK_PARTS[0]
    own = {"partial": n["partial"], "arrivals": n["arrivals"]}
    if first:
        own |= {one: n[one] for one in ("column_sums", "mean", "inverse", "x_sums")}
        own |= {one: a[one] for one in _NORM}
        own |= {"x": n["x"], "w": n["w1"], "bias": n["bias1"], "y": [n["middle"]]}
    else:
        own |= {"x": n["middle"], "w": n["w2"]}
        own |= {one: n[one] for one in ("bias", "inputs", "y", "y_sums")}
    layout, chain = a["layout1" if first else "layout2"], None if first else call.chain
    return replace(CALLS.make("gemm", call.dtype, **own, layout=layout, chain=chain),
                   step=call.step)  # fmt: skip


def _products(call: Call) -> list[Call]:
    """Return both matmuls of a call, without buffers of split-K."""
    return [tensor_core_matmul.without_parts(part_of(call.having(part=part)))
            for part in LOW_RANK_PARTS]  # fmt: skip


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the step of the result's rows."""
    at = CALLS.of(call).slices(call)["y"]
    views = list(skeleton.views)
    for i in range(at.start, at.stop):
        view, own = views[i], call.views[i]
        assert view is not None and own is not None
        views[i] = replace(view, strides=(MAP_ALIGN, *view.strides[1:]))
    return replace(skeleton, views=tuple(views))


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    named = _named(call)
    rank, most = named["middle"].dims[-1], _columns(variant)
    if not isinstance(rank, int) or rank > most:
        return f"the rank is above {most}"
    if named["x"].buffer.kind != "temp":  # the first part could not know which kernel is launched
        return "rows are those of an input, which may lie at any address"
    maps = [named[one] for one in ("x", "w1", "w2")]
    if not all(isinstance(n, int) for v in maps for n in (v.strides[0], v.offset)):
        return "it is not known whether tensor maps can copy the operands"
    first, second = _products(call)
    chain = tensor_core_matmul.chain_of(second)
    if variant.params["n"] > _WIDEST_READ and "full" in chain.operands[1:]:
        return "accumulators leave no registers for a matrix that the epilogue reads"
    types = chain.result_types
    steps = [(y.strides[0], int(t.size)) for y, t in zip(named["y"], types, strict=True)]
    if any(not isinstance(n, int) or n * size % MAP_ALIGN for n, size in steps):
        return "rows of the result are not aligned to 16 bytes"
    why = warpgroup_matmul.map_refusal(first, variant)
    if why := why or warpgroup_matmul.refusal(second, variant):
        return why
    if shared(call, variant) > ARCHITECTURES["sm_90a"].block_shared:
        return "vectors leave no shared memory for the tile"
    return ""


def name(call: Call) -> str:
    first, second = (warpgroup_matmul.name(one) for one in _products(call))
    return f"low_rank_{first.removeprefix('wgmma_')}_{second.removeprefix('wgmma_')}"


def _first_vectors(call: Call, variant: Variant) -> tuple[FirstVector, ...]:
    """Return the staged vectors of the first product."""
    named, at = _named(call), warpgroup_matmul.shared(_products(call)[1], variant)
    found = [one for one in ("bias1", "column_sums") if named[one] is not None]
    size = variant.params["first"] * WORD
    return tuple(FirstVector(one, at + i * size) for i, one in enumerate(found))


def shared(call: Call, variant: Variant) -> int:
    vectors = len(_first_vectors(call, variant)) * variant.params["first"] * WORD
    return warpgroup_matmul.shared(_products(call)[1], variant) + vectors


def _operand(call: Call, variant: Variant) -> MatrixOperand:
    """Return a block's columns of w1, 64 of the depth."""
    return MatrixOperand(variant.params["first"], ROWS, call.attributes["layout1"] == "nk")


def _box(call: Call, variant: Variant, rank: int) -> tuple[int, int]:
    """Return the rows and columns of w1 that one copy transfers.

    A copy takes as long for rows beyond the rank as for others, or longer: there are few of them.
    """
    high, wide = _operand(call, variant).box
    if call.attributes["layout1"] == "kn":
        return high, wide
    return min(high, -(-rank // _GROUP) * _GROUP) if _half_depth(variant) else ROWS, wide


@cache
def _proved(a: MatrixOperand, w1: MatrixOperand) -> MatrixOperand:
    """Prove that products read what was copied and stored; raises GraphError otherwise."""
    prove_read(w1, w1.extent)
    pairs = [
        [(lane // 4, (j * 8 + lane % 4 * 2) * a.size) for lane in range(32)] for j in range(8)
    ]
    prove_free([Access("the middle", 4, tuple(a.layout.offset(*one) for one in j)) for j in pairs])
    return w1


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    second, columns = _products(call)[1], variant.params["first"]
    made, tile = warpgroup_matmul.parameters(second, variant), warpgroup_matmul.shared_layout(
        second, variant
    )  # fmt: skip
    w1 = _proved(tile.a, _operand(call, variant))
    first = Instruction(columns, False, w1.by_depth, name="multiply_first")
    return {
        **made,
        "instructions": [*made["instructions"], first],
        "w1": w1,
        "first_norm": call.attributes["norm"],
        "first_bias": _named(call)["bias1"] is not None,
        "first_vectors": _first_vectors(call, variant),
        "middle_at": tile.strips_at - tile.middle,
    }


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    """Return the launch of a call; that of the first part has no blocks."""
    taken = shared(call, variant)
    if call.attributes["part"] == LOW_RANK_PARTS[0]:
        return Launch(symbol, (0, 1, 1), variant.threads, taken, ())
    named, (first, second), own = _named(call), _products(call), TYPES[call.dtype]
    (rows, depth), rank = named["x"].dims, named["middle"].dims[-1]
    tile, cols = warpgroup_matmul.shared_layout(second, variant), named["y"][0].dims[-1]
    (height, width), alone = tile.a.box, _half_depth(variant)
    made = [
        tensor_map(named["x"], own, (height if alone else height // _BLOCKS, width)),
        tensor_map(named["w1"], own, _box(call, variant, rank)),
        tensor_map(named["w2"], own, tile.b.box),
    ]
    for one in _first_vectors(call, variant):
        made += [pointer(named[one.name], DType.F32), i32(named[one.name].strides[-1])]
    if call.attributes["norm"] != "none":
        made += [pointer(named[one], DType.F32) for one in ("mean", "inverse")]
        made += [f32(1.0 / int(named["x"].dims[-1])), f32(float(call.attributes["epsilon"]))]
        made += warpgroup_matmul.sum_arguments(first)
    made += warpgroup_matmul.epilogue_arguments(second) + warpgroup_matmul.sum_arguments(second)
    made += [*map(i32, (rows, cols, depth, rank)), constant_buffer_flag(named["w1"])]
    blocks = combine("mul", combine("ceildiv", rows, tile.m), _BLOCKS)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
