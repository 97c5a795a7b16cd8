"""Matmul by warpgroups (``wgmma``) with an epilogue, for sm_90a: fp16, bf16, tf32, 8 bits.

One warpgroup copies tiles of both operands by tensor maps; two others multiply.  Blocks loop over
tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import tensor_core_matmul
from tracea_graph.kernels.gpu.families.fast_gelu import (
    last_gelu,
    rounding_after,
    without_last,
)
from tracea_graph.kernels.gpu.families.level_tables import LevelTable
from tracea_graph.kernels.gpu.families.tensor_core_matmul import (
    TYPES,
    batch_of,
    chain_of,
    strides_of,
)
from tracea_graph.kernels.gpu.families.warpgroup_tile import ROWS, STRIP, WORD, Tile, Vector
from tracea_graph.kernels.gpu.launch import (
    MAP_ALIGN,
    Argument,
    Launch,
    constant_buffer_flag,
    divisor,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import prove_free
from tracea_graph.kernels.gpu.semantic.epilogue_exchanges import Exchange
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import prove
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import Instruction, prove_read
from tracea_graph.kernels.gpu.tile_choice import SHARED_W, SHARED_X
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FLOATS8, Chain

__all__ = ["MOST_PARTS", "alternates_slowly", "epilogue_arguments", "epilogue_statements",
           "launch", "map_refusal", "name", "parameters", "refusal", "shared", "sum_arguments",
           "with_row_step"]  # fmt: skip

_INTEGERS = ("u8", "i8")
_TYPES = {**TYPES, "u8": DType.U8, "i8": DType.I8, **{t.short: t for t in FLOATS8}}
"""Element type of x by the variant's dtype; that of w is the same, or int8 if x has integers."""
_BAND = 8
"""Number of tiles of a column that are computed before those of the next column."""
_PRODUCER, _CONSUMER = 24, 240
_PARTING, _SPLITTING = 40, 232
"""Registers of a thread that copies, and of one that multiplies; and those of kernels in which
float32 numbers become sums of two tf32 numbers.
"""
_ADDRESSES = {False: 72, True: 93}
"""Registers of a thread for all but sums and prefetched operands, by ``pingpong``."""
_FOR_ZERO = 24
"""Registers of a thread for the correction of a zero point."""
_FOR_INTEGERS = 24
"""Registers of a thread for an epilogue of integers that reads a matrix."""
_FOR_PAIR = 8
"""Registers of a thread for what blocks that share an operand need besides."""
_FOR_FIRST = 24
"""Registers of a thread for what a product in front of the tile's needs besides."""
_MOST_AXES = 5
"""Maximum number of axes of a tensor map."""
MOST_PARTS = 8
"""Maximum number of partial sums of a row of x that a thread adds up."""


@cache
def _proved(tile: Tile, exchanged: tuple[Exchange, ...]) -> Tile:
    """Prove a tile's layouts and pipeline; raises GraphError otherwise.

    Accesses to pairs of 4-byte elements are not checked: they have bank conflicts, but programs
    store no such elements between calls.
    """
    prove_read(tile.a, ROWS)
    prove_read(tile.b, tile.n)
    for one in exchanged:
        prove_free([a for a in one.accesses() if a.width != 8])
    prove(tile.ring)
    return tile


def shared_layout(call: Call, variant: Variant) -> Tile:
    """Return the shared-memory layout of a call's operands."""
    p = variant.params
    size, by_depth = int(_TYPES[variant.dtype].size), call.attributes["layout"] == "nk"
    split = variant.dtype == "tf32x3"
    return Tile(p["m"], p["n"], p["stages"], bool(p["pingpong"]), by_depth, size, split,
                p["depths"] or 1, bool(p["gated"]), p.get("first", 0),
                bool(p.get("normed")), bool(p.get("half_depth")),
                bool(p.get("halves")))  # fmt: skip


def vectors_of(call: Call, variant: Variant) -> tuple[Vector, ...]:
    """Return the staged operands: the bias, and the chain's operands that are one row."""
    found = list[tuple[str, DType]]()
    if tensor_core_matmul.views_by_operand(call)["bias"] is not None:
        found.append(("bias", DType.F32))
    if tensor_core_matmul.norm_of(call) == "layer" or has_zero_point(call):
        found.append(("column_sums", DType.F32))
    listed = chain_parameters.operands(chain_of(call))[1:]
    found += [(f"x{x.index}", x.dtype) for x in listed if x.kind == "row"]
    at, made = shared_layout(call, variant).vectors_at, list[Vector]()
    for name, dtype in found:
        element = chain_parameters.ELEMENTS[dtype]
        exact = name == "column_sums" and has_zero_point(call)
        made.append(Vector(name, element, "i32" if exact else element, int(dtype.size), at))
        at += -(-shared_layout(call, variant).columns * int(dtype.size) // 16) * 16
    return tuple(made)


def has_zero_point(call: Call) -> bool:
    """Whether column sums correct the sums for a zero point of x, and not for a norm."""
    sums = tensor_core_matmul.views_by_operand(call).get("column_sums")
    return sums is not None and tensor_core_matmul.norm_of(call) == "none"


def _moments_at(call: Call, variant: Variant) -> int:
    """Return the offset of the moments of a warpgroup's rows, after its staged operands."""
    tile = shared_layout(call, variant)
    bytes_of_all = [-(-tile.columns * v.size // 16) * 16 for v in vectors_of(call, variant)]
    return tile.vectors_at + sum(bytes_of_all)


def _vector_bytes(call: Call, variant: Variant) -> int:
    """Return the bytes of the staged operands of one warpgroup, and of its rows' moments."""
    tile = shared_layout(call, variant)
    moments = tile.tall * ROWS * 2 * WORD if tensor_core_matmul.norm_of(call) != "none" else 0
    return _moments_at(call, variant) - tile.vectors_at + moments


def name(call: Call) -> str:
    words = [
        tensor_core_matmul.name(tensor_core_matmul.without_parts(call)).replace("gemm", "wgmma", 1)
    ]
    words += ["summed"] * _counted(call)
    words += ["uneven"] * _in_windows(call)
    named, batch = tensor_core_matmul.views_by_operand(call), len(batch_of(call))
    for operand in "xw":
        axes = _axes(named[operand], batch)
        words += [operand + "".join(map(str, axes))] * (len(axes) < batch)
    return "_".join(words)


def _counted(call: Call) -> bool:
    """Whether the call requests sums of the result's rows."""
    return row_sum_views(call)[1] is not None


def row_sum_views(call: Call) -> tuple[View | None, View | None]:
    """Return the views ``x_sums`` and ``y_sums`` of a call; None for one that it does not have.

    These are sums of the rows of x, which it reads, and of its first result, which it writes.
    """
    named = tensor_core_matmul.views_by_operand(call)
    return named.get("x_sums"), named.get("y_sums")


def _axes(view: View, batch: int) -> list[int]:
    """Return the batch axes along which an operand varies."""
    steps = strides_of(view, batch)[:-2]
    return [axis for axis, step in enumerate(steps) if step != 0]


def map_refusal(call: Call, variant: Variant) -> str:
    """Return why tensor maps cannot copy a call's operands, or its rows not be summed; else ""."""
    named, batch = tensor_core_matmul.views_by_operand(call), len(batch_of(call))
    x, w, tile = named["x"], named["w"], shared_layout(call, variant)
    if why := _refusal_of_sums(call, variant):
        return why
    if x.strides[-1] != 1 or w.strides[-1] != 1:
        return "tensor maps need operands that are contiguous along their last axis"
    step = MAP_ALIGN // tile.size
    for view in (x, w):
        fixed_ones = [s for s in (*view.strides[:-1], view.offset) if isinstance(s, int)]
        if any(s % step for s in fixed_ones):
            return f"tensor maps need row strides that are multiples of {MAP_ALIGN} bytes"
        if len(_axes(view, batch)) + 2 > _MOST_AXES:
            return f"tensor maps have at most {_MOST_AXES} axes"
    return ""


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    named, tile = tensor_core_matmul.views_by_operand(call), shared_layout(call, variant)
    if why := map_refusal(call, variant):
        return why
    taken = [v for v, kind in zip(named["inputs"], chain_of(call).operands[1:], strict=True)
             if kind in ("full", "row")]  # fmt: skip
    if any(v.strides[-1] != 1 for v in (*taken, *named["y"])):
        return "the epilogue needs tensors that are contiguous along their last axis"
    if any(
        int(t.size) > WORD for t in (*chain_of(call).operand_types, *chain_of(call).result_types)
    ):
        return "the epilogue has elements of more than 4 bytes"
    if tile.crowded and "full" in chain_of(call).operands[1:]:
        return "accumulators leave no registers for a matrix that the epilogue reads"
    own = int(chain_of(call).result_types[0].size)
    if _in_windows(call) and tile.columns % (LINE // 2 // own):
        return "blocks finish fewer columns than lie in aligned runs of unaligned rows"
    if tile.crowded and len(named["y"]) > 1:
        return "accumulators leave no registers for a second result"
    if tile.crowded and any(_uneven(v, t) for v, t in zip(named["y"], chain_of(call).result_types,
                                                         strict=True)):  # fmt: skip
        return "accumulators leave no registers to store unaligned rows in runs"
    if call.attributes["layout"] == "kn" and tile.size != 2:
        return "tensor cores read numbers of 32 bits along the depth only"
    if call.attributes["layout"] == "kn" and variant.params["n"] % tile.depth:
        return "w is stored as [K, N], and the tile's columns are no multiple of 64"
    if shared(call, variant) > ARCHITECTURES["sm_90a"].block_shared:
        return "the epilogue's vectors leave no shared memory for the tile"
    return ""


def _uneven(y: View, dtype: DType) -> bool:
    """Whether a result's rows are known not to be aligned to 16 bytes."""
    step = y.strides[-2]
    return isinstance(step, int) and step * int(dtype.size) % MAP_ALIGN != 0


def _in_windows(call: Call) -> bool:
    """Whether 64 aligned bytes of a row of the result are stored at a time.

    This is for a single result of 16 or 32 bits whose rows need not be aligned to 16 bytes; those
    of 16 bits only where they are known not to be.
    """
    chain, (y, *more) = chain_of(call), tensor_core_matmul.views_by_operand(call)["y"]
    if more or "full" in chain.operands[1:]:
        return False
    size, step = int(chain.result_types[0].size), y.strides[-2]
    unknown = size == WORD and not isinstance(step, int)
    return size > 1 and (_uneven(y, chain.result_types[0]) or unknown)


def with_row_step(skeleton: Call, call: Call, unknown: Extent) -> Call:
    """Return ``skeleton`` with what a kernel's source depends on of the step between result rows.

    That is whether the step of ``call`` is known, and whether it is a multiple of 16 bytes.
    """
    at = CALLS.of(call).slices(call)["y"].start
    y, own = skeleton.views[at], call.views[at]
    assert y is not None and own is not None
    known = isinstance(own.strides[-2], int)
    uneven = _uneven(own, (call.chain or chain_of(call)).result_types[0])
    step = (1 if uneven else MAP_ALIGN) if known else unknown
    strides = (*y.strides[:-2], step, y.strides[-1])
    if call.op in ("conv", "integer_conv"):  # its pixels are the rows, all equally far apart
        inner = [product((*y.dims[axis:-1], step)) for axis in range(1, len(y.dims))]
        strides = (*inner, y.strides[-1])
    y = replace(y, strides=strides)
    return replace(skeleton, views=(*skeleton.views[:at], y, *skeleton.views[at + 1 :]))


def alternates_slowly(call: Call) -> bool:
    """Whether tiles that take turns are slower than the cost model says: rows known as uneven.

    GPT-2's scores at batch 32 take 631 µs by 128x256x64x4x1 and 755 by 128x128x64x6x2 in fp16, and
    689 and 759 in fp32 (one H100 each).
    """
    (y, *_), dtype = tensor_core_matmul.views_by_operand(call)["y"], chain_of(call).result_types[0]
    return _in_windows(call) and _uneven(y, dtype)


def _refusal_of_sums(call: Call, variant: Variant) -> str:
    """Return why a variant cannot normalise rows of x, or sum rows of the result; else ""."""
    (taken, made), normed = row_sum_views(call), tensor_core_matmul.norm_of(call) != "none"
    if normed and (taken is None or batch_of(call)):
        return "the kernel normalises rows of one matrix only, and needs their sums"
    if normed and shared_layout(call, variant).crowded:
        return "accumulators leave no registers for a norm"
    if taken is not None and not (isinstance(taken.dims[1], int) and taken.dims[1] <= MOST_PARTS):
        return f"the kernel adds up at most {MOST_PARTS} partial sums of a row"
    width = tensor_core_matmul.views_by_operand(call)["y"][0].dims[-1]
    tile = shared_layout(call, variant)
    part = tile.n
    if made is not None and tile.depths > 1:
        return "blocks that share the depth of a tile do not sum rows of its result"
    if made is not None and (batch_of(call) or combine("mul", made.dims[1], part) != width):
        return "partial sums are requested of columns that are not those of one tile"
    return ""


def exchanges(call: Call, variant: Variant) -> tuple[list[Exchange], list[Exchange]]:
    """Return how the epilogue's matrices pass through shared memory: those read, those written."""
    chain, tile = chain_of(call), shared_layout(call, variant)
    taken = [x for x in chain_parameters.operands(chain)[1:] if x.kind == "full"]
    made = chain_parameters.results(chain)
    large = any(int(t.dtype.size) > 2 for t in (*taken, *made))
    widths: tuple[int, ...] = (32, 16) if tile.crowded or large else (64, 32, 16)
    normed = tensor_core_matmul.norm_of(call) != "none"
    several = tile.pingpong and ((normed and tile.tall > 1) or (len(made) > 1 and large))
    if several or (tile.crowded and (large or len(chain.operands) > 1)):
        widths = widths[1:]  # registers suffice for fewer columns at a time
    wide = next(width for width in widths if tile.columns % width == 0)
    if _in_windows(call) and not tile.crowded:
        wide = LINE // 2 // int(made[0].dtype.size)
    # what a thread's sums and addresses leave of its registers, in runs of four
    held = tile.tall * (tile.n // 2 + 2 * len(_narrow(chain))) + tile.held
    held += _FOR_ZERO * has_zero_point(call)
    held += _FOR_INTEGERS * (variant.dtype in _INTEGERS)
    held += _FOR_PAIR * bool(variant.params["pair"])
    held += _FOR_FIRST * (tile.first > 0)
    held += tile.tall * tile.n // 2 * bool(variant.params.get("promoted"))
    free = (_CONSUMER - _ADDRESSES[tile.pingpong] - held) // 4
    strips = tile.tall * tile.columns // wide
    read = list[Exchange]()
    for x in taken:
        runs = wide * int(x.dtype.size) // 32
        ahead = max(0, min(strips, free // (runs * len(taken))))
        read.append(Exchange(f"x{x.index}", x.element, x.held, int(x.dtype.size), wide, ahead))
    written = [Exchange(f"y{y.index}", y.element, y.held, int(y.dtype.size), wide) for y in made]
    return read, written


def _element_of(call: Call) -> list[str]:
    """Return the C expressions of one element of each operand of the chain, in order."""
    words = {"full": "two_x{0}.at[e]", "row": "at_x{0}.at[e]", "scalar": "ahead_x{0}[i][h]",
             "col": "ahead_x{0}[i][h]"}  # fmt: skip
    return [words[x.kind].format(x.index) for x in chain_parameters.operands(chain_of(call))[1:]]


def parameters(
    call: Call, variant: Variant, table: LevelTable | None = None
) -> dict[str, Any]:  # fmt: skip
    """Return the template's parameters; a ``table`` behind shared memory ends the epilogue."""
    call = tensor_core_matmul.without_parts(call)
    read, written = exchanges(call, variant)
    tile = _proved(shared_layout(call, variant), (*read, *written))
    named, batch, chain = (
        tensor_core_matmul.views_by_operand(call),
        len(batch_of(call)),
        chain_of(call),
    )
    epilogue = tensor_core_matmul.epilogue(call) | epilogue_statements(call, table)
    return {
        **epilogue,
        "table": table and {**epilogue["table"], "at": shared(call, variant)},
        "strided": False,
        "conv": False,
        "volume": False,
        "by_two": tile.halves,
        "blocks_of": False,
        "read": read,
        "written": written,
        "sizes": list({one.size: one for one in (*read, *written)}.values()),
        "crowded": tile.crowded,
        # results replace what was read where both take as much room
        "in_place": read[-1].name if read and read[-1].size == written[0].size else "",
        "wide": written[0].wide,
        "strips": tile.columns // written[0].wide,
        "sharing": tile.depths,
        "own_n": tile.columns,
        "received_at": tile.stages * tile.stage_bytes,
        "received_bytes": tile.received,
        "strip_bytes": STRIP,
        "shifted": _in_windows(call) and not tile.crowded,
        "counted": _counted(call),
        "narrow": [x for x in epilogue["tensors"] if x.operand and x.name in _narrow(chain)],
        "operands_of": _element_of(call),
        "a": tile.a,
        "b": tile.b,
        "ring": tile.ring,
        "tall": tile.tall,
        "kind": "tf32" if tile.size == WORD else chain_parameters.ELEMENTS[_TYPES[variant.dtype]],
        "halved": {0: "", SHARED_X: "x", SHARED_W: "w"}[variant.params["pair"]],
        "integers": variant.dtype in _INTEGERS,
        "promoted": bool(variant.params.get("promoted")),
        "zero_point": has_zero_point(call),
        "span": tile.depth,
        "split": tile.split,
        "instructions": [Instruction(tile.n, tile.split, tile.by_depth)],
        "stage_bytes": tile.stage_bytes,
        "copied_bytes": tile.a.nbytes + tile.b.nbytes * (1 + tile.normed),
        "strips_at": tile.strips_at,
        "barriers_at": tile.barriers_at,
        "vectors": vectors_of(call, variant),
        "most_parts": MOST_PARTS,
        "moments_at": _moments_at(call, variant),
        "vector_bytes": _vector_bytes(call, variant),
        "band": _BAND,
        "x_outer": "".join(f", i{axis}" for axis in reversed(_axes(named["x"], batch))),
        "w_outer": "".join(f", i{axis}" for axis in reversed(_axes(named["w"], batch))),
        "producer_registers": _PARTING if tile.split else _PRODUCER,
        "consumer_registers": _SPLITTING if tile.split else _CONSUMER,
    }


def epilogue_statements(
    call: Call, table: LevelTable | None, near: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Return the template's parameters for the statements, their roundings ``near`` or not."""
    chain, exact = chain_of(call), _counted(call) or _in_windows(call)
    gelu = None if exact else last_gelu(chain)
    rounding = rounding_after(chain) if gelu else ""
    # fused sums are held longer, and matrices that the epilogue reads leave no registers for it
    own = without_last(chain, 1 + bool(rounding)) if gelu else table.head if table else chain
    made = chain_parameters.chain_template_parameters(
        own, "full" not in chain.operands[1:], near, rounded_by_sums=True
    )
    return {
        **made, "gelu": gelu, "rounding": rounding, "table": table and table.parameters(),
    }  # fmt: skip


def _narrow(chain: Chain) -> set[str]:
    """Return the operands of a chain that hold one number per row, or a single number."""
    return {
        f"x{x.index}" for x in chain_parameters.operands(chain)[1:] if x.kind in ("col", "scalar")
    }


def shared(call: Call, variant: Variant) -> int:
    return shared_layout(call, variant).vectors_at + 2 * _vector_bytes(call, variant)


def _map(view: View, batch: int, dtype: DType, box: tuple[int, int]) -> Argument:
    """Return the tensor map of an operand, with the batch axes along which it varies."""
    axes = _axes(view, batch)
    missing = batch + 2 - len(view.dims)
    dims = tuple(view.dims[axis - missing] for axis in axes)
    steps = tuple(view.strides[axis - missing] for axis in axes)
    whole = View(view.buffer, (*dims, *view.dims[-2:]), (*steps, *view.strides[-2:]), view.offset)
    return tensor_map(whole, dtype, ((1,) * len(axes)) + box)


def boxes_of(tile: Tile, variant: Variant) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return what one copy transfers of x and of w: half of what a pair of blocks shares."""
    halves = [
        (box[0] // 2, box[1]) if variant.params["pair"] == operand else box
        for operand, box in ((SHARED_X, tile.a.box), (SHARED_W, tile.b.box))
    ]
    return halves[0], halves[1]


def launch(call: Call, variant: Variant, symbol: str, zero: Sequence[Argument] = ()) -> Launch:
    """Return the launch; ``zero`` are the arguments of a zero point of x."""
    named, own = tensor_core_matmul.views_by_operand(call), _TYPES[variant.dtype]
    batch, tile = len(batch_of(call)), shared_layout(call, variant)
    x, w = named["x"], named["w"]
    right = DType.I8 if variant.dtype in _INTEGERS else own
    boxes = boxes_of(tile, variant)
    maps = [_map(x, batch, own, boxes[0]), _map(w, batch, right, boxes[1])]
    maps = [replace(one, rounded=variant.dtype == "tf32") for one in maps]
    return launch_over(call, variant, symbol, maps, x.dims[-1], [], zero)


def epilogue_arguments(call: Call) -> list[Argument]:
    """Return the arguments of a bias, of the matrices that an epilogue reads, and of results."""
    named, chain, made = tensor_core_matmul.views_by_operand(call), chain_of(call), []
    if named["bias"] is not None:
        made += [pointer(named["bias"], DType.F32), i32(named["bias"].strides[-1])]
    types = (*chain.operand_types[1:], *chain.result_types)
    for view, dtype in zip((*named["inputs"], *named["y"]), types, strict=True):
        made += [pointer(view, dtype), *map(i32, strides_of(view, len(batch_of(call)))[:-1])]
    return made


def sum_arguments(call: Call) -> list[Argument]:
    """Return the arguments of sums of rows: those of x that it reads, those that it writes."""
    return [one for sums in row_sum_views(call) if sums is not None
            for one in (pointer(sums, DType.F32), i32(sums.dims[1]))]  # fmt: skip


def launch_over(
    call: Call,
    variant: Variant,
    symbol: str,
    maps: Sequence[Argument],
    depth: Extent,
    more: Sequence[Argument],
    zero: Sequence[Argument] = (),
) -> Launch:
    """Return the launch of a matmul whose operands have the tensor maps ``maps``.

    ``depth`` is the kernel's argument for the depth, in elements for matmuls and in steps for
    convolutions.  ``more`` are arguments that only some kernels take, ``zero`` those of a zero
    point of x.
    """
    named, batch = tensor_core_matmul.views_by_operand(call), batch_of(call)
    tile, made = shared_layout(call, variant), [*maps, *epilogue_arguments(call)]
    made += [*tensor_core_matmul.norm_arguments(call), *zero, *sum_arguments(call)]
    made += [divisor(dim) for dim in batch[1:]]
    rows, cols = named["y"][0].dims[-2:]
    pair = variant.params["pair"]
    tiles_m = combine("ceildiv", rows, tile.m * 2 if pair == SHARED_W else tile.m)
    across = tile.columns * tile.depths * (4 if tile.normed else 1 + (pair == SHARED_X))
    tiles_n = combine("ceildiv", cols, across)
    tiles = combine("mul", tiles_m, tiles_n)
    count = product((*batch, tiles))
    blocks = combine("mul", count, 2 if pair else tile.cluster)
    made += [i32(rows), i32(cols), i32(depth), i32(count), i32(tiles_m), divisor(tiles)]
    made += [divisor(combine("mul", tiles_n, _BAND)), *more, constant_buffer_flag(named["w"])]
    taken = shared(call, variant)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made),
                  persistent=int(tile.cluster == 1))  # fmt: skip
