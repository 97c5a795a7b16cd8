"""Select the kernel of a call, and name it by everything its source depends on.

A name is the kernel's symbol without the architecture, a space, and a JSON description of the
calls that share the kernel.  A kernel can be generated from its name and the chains alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import Extent, combine, evaluate, product, symbols_of
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.attention_choice import (
    attends,
    attention_choices,
    attention_refusal,
    cache_choices,
    cache_refusal,
)
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.composed_kernels import COMPOSED, COMPOSED_CHOICES
from tracea_graph.kernels.gpu.convolution_choice import (
    FEW_PIXELS,
    PRODUCTS,
    WINDOWS,
    convolution_choices,
    warpgroup_tile_of,
)
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import launch_of, symbol_of
from tracea_graph.kernels.gpu.families import (
    block_quantized_matmul,
    few_pixel_convolution,
    few_row_matmul,
    image_resize,
    one_row_matmul,
    tensor_core_matmul,
    warpgroup_blocks,
    warpgroup_convolution,
    warpgroup_integers,
    warpgroup_matmul,
    warpgroup_two_of_four,
)
from tracea_graph.kernels.gpu.families.strided_copies import contiguous_axis
from tracea_graph.kernels.gpu.launch import MOST, Launch
from tracea_graph.kernels.gpu.one_row_choice import ONE_ROW, coded_choices, one_row_choices
from tracea_graph.kernels.gpu.row_choice import row_choices
from tracea_graph.kernels.gpu.schedule import TileSchedule
from tracea_graph.kernels.gpu.source_attributes import SOURCE_ATTRIBUTES
from tracea_graph.kernels.gpu.structured_choice import (
    BLOCKS,
    TWO_OF_FOUR,
    block_choices,
    two_of_four_choices,
)
from tracea_graph.kernels.gpu.tile_choice import (
    H100_SMS,
    LEAST_FILTERS,
    LEAST_MANY,
    LEAST_SIDE,
    MANY_ROWS,
    MEASURED_BYTES,
    TYPICAL_FEW,
    FewTile,
    choose_few_tile,
    choose_tile,
    choose_warpgroup_tiles,
    choose_wide_rows,
    most_few,
)
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.gpu.window_choice import PROJECTED, window_choices, with_tap_sizes
from tracea_graph.kernels.program import Attributes, Buffer, Call, View
from tracea_graph.ops.chain import FAST_MATH, Chain
from tracea_graph.ops.index_map import dense_strides

__all__ = [
    "COMPOSED",
    "FEW_ROWS",
    "INTEGERS",
    "ONE_ROW",
    "WARPGROUPS",
    "Choice",
    "Kernel",
    "few_row_variants",
    "for_variant",
    "is_transposing_copy",
    "kernel_of",
    "kernels_of",
    "key_of",
    "launches_for",
    "launches_of",
    "refusal_of",
    "tile_numbers",
    "variant_of",
    "variants_of",
]

_ANY = Target(CUDA, ARCHITECTURES["sm_90a"])
WARPGROUPS, FEW_ROWS = "gemm_wgmma.cu.in", "gemm_few.cu.in"
INTEGERS = ("gemm_bytes_wgmma.cu.in", "conv_bytes_wgmma.cu.in")
"""Warpgroup kernels of 8-bit numbers."""
_SUMMING = (WARPGROUPS, TWO_OF_FOUR)
"""Kernels that read and write sums of rows."""
_OF_BYTES = ("integer_gemm", "integer_conv", "float8_gemm")
_MANY_PIXELS = 4096
"""Minimum number of rows of a matmul by few columns in warpgroup kernels."""
_STEEP, _NORMED = 5, 3  # cheap steps that take as long as a GELU, as a norm of the rows of x
_OF_HEADS = ("attention", "kv_append_rotated")
"""Beginnings of ops whose sources depend on the size of heads."""
_SOME = "n"
"""Placeholder for a size or stride that the kernel's source does not depend on."""
_LEAST_SIDE = 16  # of a tile that is transposed in shared memory
_PIXELS, _VOLUME = (2, 3, 5, 7), (2, 3, 4, 5, 7)
"""Placeholder dimensions of an image (N, H, W, C) and of a volume (N, D, H, W, C)."""
Choice = tuple[Call, Variant, Extent]
"""A call, a variant that can compute it, and an extent; the variant is used if it is positive."""


@dataclass(frozen=True)
class Kernel:
    """A kernel reconstructed from its name: one call that runs it, and its variant."""

    symbol: str
    call: Call
    variant: Variant


def variant_of(call: Call) -> Variant:
    """Select the variant that computes a call.  Raises GraphError if there is none."""
    known = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)]
    tile = _tile(call)
    found = [v for v in known if not tile or v.tile == tile]
    if not found:
        raise GraphError(f"no GPU kernel computes {call.name}")
    return found[0]


def variants_of(call: Call) -> tuple[tuple[Variant, Extent], ...]:
    """Return the variants that can compute a call, best first, each with a condition.

    The condition is an extent: it holds at sizes at which the extent is positive.  Variants chosen
    by the call's schedules come first.  The last variant computes the call on every architecture
    and at all sizes.
    """
    choices = {"gemm": _matmul_choices, "attention": attention_choices}.get(call.op)
    found = choices(call) if choices and call.dtype != "f32" else []
    if call.op == "conv" and call.dtype != "f32":
        found += convolution_choices(call, _steps(call), _reads(call))
    found += _byte_choices(call) if call.op in _OF_BYTES else []
    found += block_choices(call) if call.op == "gemm_blocks" else []
    found += two_of_four_choices(call, _steps(call), _reads(call))
    found += window_choices(call) if call.op in ("depthwise", "pool", PROJECTED) else []
    found += row_choices(call) if call.op in ("norm", "softmax", "reduce") else []
    found += coded_choices(call) if call.op == "gemm_nbits" else []
    found += _cluster_choices(call) if call.op == "squeeze_excite" else []
    found += cache_choices(call) if call.op == "attention_cached" else []
    if call.op == "gemm_nbits" and call.attributes["second"]:
        # of one row, as it is at all sizes; not every GPU has the shared memory of the first
        return tuple((variant, 1) for variant, _ in found if variant.params["rows"] == 1)
    if call.op in COMPOSED:
        return (*COMPOSED_CHOICES[call.op](call), *variants_of(COMPOSED[call.op].part_of(call)))
    return (*_scheduled(call), *found, *_wide_choices(call), (variant_of(call), 1))


def _wide_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the variant with large tiles for a matmul whose number of rows varies at run time.

    Warpgroup kernels are faster at most of these sizes, but not every architecture has them.  A
    matmul that normalises its rows gets none: large tiles leave no registers for the moments.
    """
    normed = call.attributes.get("norm", "none") != "none"
    if call.op != "gemm" or _rows(call) or normed or _exchanges_sums(call):
        return []
    named: dict[str, Any] = CALLS.of(call).named(call)
    if named["partial"] is not None:  # sums of another tile
        return []
    tile, _ = choose_tile(call.op, call.dtype, MANY_ROWS, 0)
    found = next(v for v in VARIANTS if (v.op, v.dtype, v.tile) == (call.op, call.dtype, tile))
    rows = product(named["y"][0].dims[:-1])
    return [(found, combine("sub", rows, MANY_ROWS - 1))]


def _cluster_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel of a call whose blocks form clusters."""
    return [(v, 1) for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)
            and v.params["cluster"] > 1 and not refusal_of(call, v)]  # fmt: skip


def tile_numbers(variant: Variant) -> tuple[int, ...]:
    """Return a tile in the order of :attr:`TileSchedule.tile`."""
    p = variant.params
    if variant.op == "attention":
        queries, keys = map(int, variant.tile.split("x")[:2])
        return queries, keys, 0, p["stages"], 0, 0, 0
    if variant.template == ONE_ROW:
        return 1, one_row_matmul.COLUMNS, 0, 0, 0, 0, 0
    if variant.template in (FEW_ROWS, FEW_PIXELS):
        return 64, p["n"], 0, 0, p["split"], 0, 0
    if variant.template in (WARPGROUPS, WINDOWS):
        k = 64 // (1 + p.get("halves", 0))
        return p["m"], p["n"], k, p["stages"], p["depths"], p["pingpong"], p["pair"]
    size = 4 if variant.dtype in ("f32", "tf32", "tf32x3") else 2
    return p["m"], p["n"], p.get("k", p.get("k_bytes", 0) // size), p.get("stages", 0), 0, 0, 0


def refusal_of(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    own = {
        FEW_ROWS: few_row_matmul.refusal, WARPGROUPS: warpgroup_matmul.refusal,
        WINDOWS: warpgroup_convolution.refusal, FEW_PIXELS: few_pixel_convolution.refusal,
        **dict.fromkeys(INTEGERS, warpgroup_integers.refusal), BLOCKS: warpgroup_blocks.refusal,
        TWO_OF_FOUR: warpgroup_two_of_four.refusal,
    }  # fmt: skip
    refuse = own.get(variant.template)
    if variant.template == ONE_ROW:
        return "it is chosen for one row alone"
    if call.op == "attention":
        return attention_refusal(call, variant)
    if call.op == "attention_cached":
        return cache_refusal(call, variant)
    return refuse(call, variant) if refuse else ""


def _scheduled(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the variants that a call's schedules name, each for its range of rows."""
    found, after = list[tuple[Variant, Extent]](), 0
    for schedule in call.schedules:
        assert isinstance(schedule, TileSchedule)
        before, after = after, schedule.max_rows
        named = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)
                 and tile_numbers(v) == schedule.tile and not refusal_of(call, v)]  # fmt: skip
        if not named:  # the rule's
            continue
        rows = _scheduled_rows(call)
        when = combine("sub", rows, before)
        if schedule.max_rows < MOST:
            when = combine("min", when, combine("sub", schedule.max_rows + 1, rows))
        if _exchanges_sums(call):
            when = combine("min", when, _together(named[0], rows))
        if call.op == "attention":
            when = combine("min", when, attends(call, named[0]))
        if not isinstance(when, int) or when > 0:
            found.append((named[0], when))
    return found


def _scheduled_rows(call: Call) -> Extent:
    """Return what the ranges of a call's schedules count.

    These are images, sequences of a fixed length, tokens of a sequence, or rows of a matmul.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    y: View = named["y"] if call.op == "attention" else named["y"][0]
    if call.op == "attention":
        return y.dims[0] if isinstance(y.dims[2], int) else y.dims[2]
    return y.dims[0] if call.op == "conv" else product(y.dims[:-1])


def _exchanges_sums(call: Call) -> bool:
    """Whether a matmul reads or writes sums of rows; see ``x_sums`` in CALLS.md."""
    named = CALLS.of(call).named(call)
    return any(named.get(one) is not None for one in ("x_sums", "y_sums"))


def _together(variant: Variant, rows: Extent) -> Extent:
    """Return an extent that is positive where a variant suits matmuls that exchange sums of rows.

    Matmuls of many rows use warpgroup kernels, which write and read the sums.  Other kernels do
    neither, so they are only for fewer rows.
    """
    many = combine("sub", rows, LEAST_MANY - 1)
    return many if variant.template == WARPGROUPS else combine("sub", 1, many)


def _matmul_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the warpgroup kernels for a matmul."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    *outer, rows, columns = named["y"][0].dims
    sizes = product(tuple(outer)), rows, columns, named["x"].dims[-1]
    batch, height, width, depth = (n if isinstance(n, int) else 0 for n in sizes)
    able = {warpgroup_tile_of(v): v for v in VARIANTS if v.template == WARPGROUPS
            and v.dtype == call.dtype and not warpgroup_matmul.refusal(call, v)}  # fmt: skip
    if warpgroup_matmul.alternates_slowly(call):
        able = {tile: v for tile, v in able.items() if not v.params["pingpong"]}
    few = 0 < height < LEAST_MANY or 0 < height * batch < _MANY_PIXELS
    narrow = call.attributes["layout"] == "nk" and not few
    side = LEAST_FILTERS if narrow else LEAST_SIDE
    whole = product((*outer, rows))
    image = evaluate(whole, dict.fromkeys(symbols_of(whole), 1)) or 1
    depth *= 2 if call.dtype in PRODUCTS else 1  # a step has half as many numbers
    tiles = choose_warpgroup_tiles(batch, height, width, depth, tuple(able), side, image,
                                   _steps(call), _reads(call),
                                   PRODUCTS.get(call.dtype, 0))  # fmt: skip
    many = [(able[tile], combine("sub", whole, least - 1)) for tile, least in tiles]
    return [*one_row_choices(call), *_few_choices(call, rows, width, depth), *many]


def _few_choices(call: Call, rows: Extent, width: int, depth: int) -> list[tuple[Variant, Extent]]:
    """Return the kernels of few rows for a matmul.

    There are none if it has more rows, and up to two if the number of rows varies at run time.
    """
    able, most = few_row_variants(call), most_few(width)
    if not able or not width:
        return []
    tiles = list(able)
    least = evaluate(rows, dict.fromkeys(symbols_of(rows), 1))
    if least > most and (wide := choose_wide_rows(least, width, depth, tiles)):
        return [(able[wide], combine("sub", least + 1, rows))]
    if isinstance(rows, int):
        few = 0 < rows <= most
        return [(able[choose_few_tile(rows, width, depth, tiles)], 1)] if few else []
    found = dict[FewTile, Extent]()
    for limit in (min(TYPICAL_FEW, most), most):
        if least <= limit:
            tile = choose_few_tile(limit, width, depth, tiles)
            found[tile] = combine("sub", limit + 1, rows)
    return [(able[tile], when) for tile, when in found.items()]


def few_row_variants(call: Call) -> dict[FewTile, Variant]:
    """Return the kernels of few rows that can compute a matmul, by tile."""
    return {(v.params["n"], v.params["split"]): v for v in VARIANTS if v.template == FEW_ROWS
            and v.dtype == call.dtype and not few_row_matmul.refusal(call, v)}  # fmt: skip


def _byte_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the warpgroup kernels for a matmul or convolution of 8-bit numbers."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    *pixels, columns = named["y"][0].dims
    rows, steps = product(tuple(pixels)), warpgroup_integers.steps_of(call)
    height, width, deep = (n if isinstance(n, int) else 0 for n in (rows, columns, steps))
    image = evaluate(rows, dict.fromkeys(symbols_of(rows), 1)) or 1
    able = {warpgroup_tile_of(v): v for v in VARIANTS if v.template in INTEGERS
            and (v.op, v.dtype) == (call.op, call.dtype)
            and not warpgroup_integers.refusal(call, v)}  # fmt: skip
    fastest = MEASURED_BYTES if call.op == "integer_gemm" else {}
    tiles = choose_warpgroup_tiles(1, height, width, 64 * deep, tuple(able), LEAST_FILTERS, image,
                                   _steps(call), _reads(call), fastest=fastest)  # fmt: skip
    return [(able[tile], combine("sub", rows, least - 1)) for tile, least in tiles]


def _steps(call: Call) -> int:
    """Return the cost of a call's epilogue, with sums and norms of rows, in cheap steps."""
    steps = call.chain.steps if call.chain else ()
    normed = call.attributes.get("norm", "none") != "none"
    around: int = _exchanges_sums(call) + _NORMED * normed
    return sum(_STEEP if s.op in FAST_MATH else 1 for s in steps) + around


def _reads(call: Call) -> int:
    """Return the number of matrices that an epilogue reads."""
    return call.chain.operands[1:].count("full") if call.chain else 0


def _tile(call: Call) -> str:
    """Return the tile for a call, "" if its op has only one."""
    columns, operands, head = 0, 1, 0
    if call.op in ("norm", "softmax", "reduce"):
        size = call.views[0].dims[-1] if call.views[0] else 0
        columns = size if isinstance(size, int) else 0
        operands = len(call.chain.operands) if call.chain else 1
    if call.op == "attention":
        depths = [v.dims[-1] for v in (call.views[0], call.views[2]) if v]
        head = max((d if isinstance(d, int) else 0 for d in depths), default=0)
    tiled = ("gemm", "conv", *_OF_BYTES, "gemm_nbits", "gemm_two_of_four")
    rows = _rows(call) if call.op in tiled else 0
    if call.op == "gemm" and call.dtype in PRODUCTS and rows and _leaves_large_tiles_few(call):
        rows = 1
    permuted = call.op == "copy" and is_transposing_copy(call)
    return choose_tile(call.op, call.dtype, rows, columns, operands, head, permuted)[0]


def _leaves_large_tiles_few(call: Call) -> bool:
    """Whether large tiles of a batch of matmuls are fewer than multiprocessors."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    *batch, rows, columns = named["y"][0].dims
    if not batch or not isinstance(columns, int):
        return False
    tiles: int = prod(batch) * ceil(rows / 128) * ceil(columns / 64)
    return tiles < H100_SMS


def is_transposing_copy(call: Call) -> bool:
    """Return whether a copy transposes: x and y are contiguous along different, long axes."""
    axis, y = contiguous_axis(call), call.views[1]
    if axis is None or y is None:
        return False
    sides = y.dims[axis - max(2 - len(y.dims), 0)], y.dims[-1]
    return not any(isinstance(side, int) and side < _LEAST_SIDE for side in sides)


def _rows(call: Call) -> int:
    """Return the number of rows of a matmul, or 0 if it is symbolic."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    return prod(dim if isinstance(dim, int) else 0 for dim in named["y"][0].dims[:-1])


def kernels_of(call: Call) -> list[str]:
    """Return the names of the kernels that compute a call, best first."""
    return [kernel_of(call, variant) for variant, _ in variants_of(call)]


def kernel_of(call: Call, variant: Variant) -> str:
    """Return the name of the kernel of a variant for a call."""
    whole, call = call, for_variant(call, variant)
    skeleton = with_tap_sizes(_skeleton(call), call)
    if variant.template == FEW_ROWS:
        skeleton = few_row_matmul.with_depth(skeleton, call)
    if call.op == "resize":
        skeleton = image_resize.with_channels(skeleton, call)
    if variant.op in COMPOSED:
        skeleton = COMPOSED[variant.op].with_sizes(skeleton, call)
    if variant.template in (WARPGROUPS, WINDOWS, BLOCKS, *INTEGERS):
        skeleton = warpgroup_matmul.with_row_step(skeleton, call, _SOME)
    symbol = symbol_of(skeleton, variant, _ANY).rpartition("__")[0]
    shape = [v and [list(v.dims), list(v.strides)] for v in skeleton.views]
    made: dict[str, Any] = {
        "op": call.op, "dtype": call.dtype, "tile": variant.tile, "views": shape,
        "attributes": dict(skeleton.attributes), "chain": call.chain.key if call.chain else None,
    }  # fmt: skip
    if whole.op in COMPOSED and call.chain not in (None, whole.chain):  # nobody lists a part's
        given = COMPOSED[whole.op].CHAIN_ATTRIBUTES
        made["part"] = [whole.op, *(whole.attributes[a] for a in ("part", *given))]
        made["chain"] = None
    return f"{symbol} {json.dumps(made, separators=(',', ':'))}"


def key_of(symbol: str) -> int:
    """Return a positive 62-bit hash of a symbol, by which plans and libraries find the kernel."""
    return int.from_bytes(hashlib.sha256(symbol.encode()).digest()[:8], "big") >> 2


def kernel_from_name(name: str, chains: Mapping[int, Chain]) -> Kernel:
    """Reconstruct a kernel from its name.  Raises GraphError if ``chains`` lacks its chain."""
    symbol, _, text = name.partition(" ")
    made = json.loads(text)
    key = made["chain"]
    if key is not None and key not in chains:
        raise GraphError(f"the chain of kernel {symbol} was not given")
    views = tuple(v and View(Buffer("temp", 0), tuple(v[0]), tuple(v[1])) for v in made["views"])
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in made["attributes"].items()}
    chain = None if key is None else chains[key]
    if part := made.get("part"):
        chain = COMPOSED[part[0]].chain_of_part(*part[1:], made["dtype"])
    call = Call(made["op"], made["dtype"], views, Attributes(values.items()), chain)
    variant = next(
        v for v in VARIANTS if (v.op, v.dtype, v.tile) == (call.op, call.dtype, made["tile"])
    )
    return Kernel(symbol, call, variant)


def launches_for(call: Call) -> list[tuple[Launch, str]]:
    """Return the launches that can compute a call, best first, with their kernels' symbols."""
    return launches_of([(call, variant, when) for variant, when in variants_of(call)])


def launches_of(choices: Sequence[Choice]) -> list[tuple[Launch, str]]:
    """Return the launches of alternative choices, and the symbols of their kernels."""
    found = list[tuple[Launch, str]]()
    for call, variant, when in choices:
        launch = replace(launch_of(for_variant(call, variant), variant, _ANY), when=when)
        found.append((launch, launch.symbol.rpartition("__")[0]))
    return found


def for_variant(call: Call, variant: Variant) -> Call:
    """Return a call without operands that a variant does not take."""
    if call.op in COMPOSED and variant.op != call.op:
        call = COMPOSED[call.op].part_of(call)
    if call.op in ("gemm", "gemm_two_of_four") and variant.template not in _SUMMING:
        call = tensor_core_matmul.without_sums(call)
    if call.op in ("integer_gemm", "integer_conv") and variant.template not in INTEGERS:
        call = tensor_core_matmul.without_operands(call, "column_sums")
    if call.op == "gemm_nbits":
        return block_quantized_matmul.with_norm(call, variant)
    own = variant.template in (WARPGROUPS, WINDOWS, FEW_ROWS, FEW_PIXELS, ONE_ROW)
    return tensor_core_matmul.without_parts(call) if own else call


_IMAGES = (*("conv", "depthwise", "pool", "resize", "expanded_depthwise", "squeeze_excite"),
           *("integer_conv", "integer_depthwise", "integer_pool", PROJECTED))  # fmt: skip


def _skeleton(call: Call) -> Call:
    """Replace everything in a call that its kernel's source does not depend on by placeholders."""
    schema = CALLS.of(call)
    kept, values = SOURCE_ATTRIBUTES.get(call.op, ()), dict[str, Any]()
    for attribute in schema.attributes:
        value = call.attributes[attribute.name]
        if call.op.startswith("attention"):
            value = _told(attribute.name, value, call)
        elif attribute.name == "groups":
            value = _PIXELS[-1] if value > 1 else 1  # a channel of the placeholder each
        elif attribute.name not in kept:
            several = attribute.count > 1 or isinstance(value, tuple)
            value = (1,) * (attribute.count or len(value)) if several else 1.0
        values[attribute.name] = value
    heads, images = call.op.startswith(_OF_HEADS), call.op in _IMAGES
    views = tuple(v and (_image(v) if images else _bare(v, heads)) for v in call.views)
    if call.op == "depthwise":  # the taps are part of the source
        at = schema.slices(call)["w"].start
        w, own = views[at], call.views[at]
        assert w is not None and own is not None
        views = (*views[:at], replace(w, dims=(*own.dims[:-1], w.dims[-1])), *views[at + 1 :])
    return Call(call.op, call.dtype, views, Attributes(values.items()), call.chain)


def _told(name: str, value: Any, call: Call) -> Any:
    """Reduce an attribute of attention to what the kernel's source depends on."""
    if name == "window_left":
        return -1 if value < 0 else 0
    if name == "global_keys":
        return int(value > 0 and call.op == "attention")
    if name == "window_right":
        return 0
    if name in ("scale", "epsilon"):
        return 1.0
    if name in ("softcap", "factor"):
        return 1.0 if value > 0 else 0.0
    if name == "fill":
        return float("-inf") if value == float("-inf") else 0.0
    return value


def _image(view: View) -> View:
    """Replace sizes and strides of an image or a volume by those of a dense placeholder."""
    sizes = {len(one): one for one in (_PIXELS, _VOLUME)}.get(len(view.dims))
    if sizes is None:
        return _bare(view, heads=False)
    own = list(zip(view.dims, view.strides, dense_strides(sizes), strict=True))
    repeats = any(step == 0 and size != 1 for size, step, _ in own)
    return View(view.buffer, sizes, tuple(0 if repeats and s == 0 else d for _, s, d in own))


def _bare(view: View, heads: bool) -> View:
    last = len(view.dims) - 1

    def dim(axis: int, size: Extent) -> Extent:
        return size if size == 1 or (heads and axis == last and isinstance(size, int)) else _SOME

    def step(size: Extent) -> Extent:
        return size if size in (0, 1) else _SOME

    dims = tuple(dim(a, d) for a, d in enumerate(view.dims))
    return View(view.buffer, dims, tuple(step(s) for s in view.strides))
